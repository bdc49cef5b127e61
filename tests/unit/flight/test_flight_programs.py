"""Who stopped in a program of any shape is found again in the records, in whatever form they come; nobody else is named with certainty."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from aegis_lognexus.flight import Report, analyze, from_mapping
from flight_jobs import call, raw
from flight_programs import (
    FORMS,
    Program,
    Stood,
    active_only,
    mesh,
    of_a_later_schema,
    own,
    pipeline,
    records,
    run,
    without_members,
)
from hypothesis import given, settings
from hypothesis import strategies as st

BACKENDS = ("nccl", "ncclx", "hccl", "xccl", "tpu9", "")
Form = Callable[[dict[str, Any]], dict[str, Any]]


def analyzed(raws: dict[int, dict[str, Any]]) -> Report:
    return analyze({rank: from_mapping(rank, raw) for rank, raw in raws.items()})


def a_mesh(rng: random.Random, culprits: int, ahead: int = 1) -> Program:
    side = rng.choice([2, 2, 4])
    world = side * rng.choice([2, 3, 4])
    groups = mesh(world, side)
    kinds = [rng.choice(["all", "row", "column"]) for _ in range(rng.randint(2, 5))] * rng.randint(2, 5)
    calls = [[(own(groups, r, kind, side),) for kind in kinds] for r in range(world)]
    stops = {r: rng.randint(len(kinds) // 2, len(kinds) - 1) for r in rng.sample(range(world), min(culprits, world // 2))}
    return Program(groups, calls, stops, ahead)


def a_pipeline(rng: random.Random, culprits: int, ahead: int = 1) -> Program:
    groups, calls = pipeline(rng.choice([2, 3, 4]), rng.choice([1, 2, 3]), rng.randint(1, 3), rng.randint(1, 3))
    world = len(calls)
    stops = {r: rng.randint(0, len(calls[r]) - 1) for r in rng.sample(range(world), min(culprits, world // 2))}
    return Program(groups, calls, stops, ahead)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 3), st.sampled_from(BACKENDS[:4]), st.sampled_from(FORMS), st.sampled_from([a_mesh, a_pipeline]))
def test_who_stopped_is_named_exactly_in_any_shape_and_form(
    seed: int, culprits: int, backend: str, form: Form, shape: Callable[..., Program]
) -> None:
    program = shape(random.Random(seed), culprits if form is not active_only else min(culprits, 1))
    stood = run(program)
    report = analyzed({rank: form(raw) for rank, raw in records(program, stood, backend).items()})
    assert report.culprits == stood.culprits, (report, stood)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 3), st.booleans(), st.sampled_from([f for f in FORMS if f is not active_only]))
def test_gloo_that_tells_no_members_is_enough_for_collectives(seed: int, culprits: int, ranks: bool, form: Form) -> None:
    program = a_mesh(random.Random(seed), culprits)
    stood = run(program)
    raws = {rank: form(raw) for rank, raw in records(program, stood, "gloo", told=False).items()}
    report = analyzed(raws if ranks else {rank: without_members(raw) for rank, raw in raws.items()})
    assert report.culprits == stood.culprits, (report, stood)


@settings(max_examples=25, derandomize=True, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 3), st.sampled_from(["nccl", "hccl"]))
def test_where_hosts_run_ahead_of_their_devices_only_who_stopped_is_named(seed: int, culprits: int, backend: str) -> None:
    program = a_mesh(random.Random(seed), culprits, ahead=4)
    stood = run(program)
    report = analyzed(records(program, stood, backend))
    assert set(report.culprits) <= set(stood.culprits) and bool(report.culprits) == bool(stood.culprits), (report, stood)


@settings(max_examples=25, derandomize=True, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 2))
def test_transfers_that_a_backend_does_not_record_never_make_an_innocent_sure(seed: int, culprits: int) -> None:
    program = a_pipeline(random.Random(seed), culprits)
    stood = run(program)
    report = analyzed(records(program, stood, "gloo", told=False))
    assert report.confidence != "high"
    assert report.confidence == "low" or set(report.culprits) <= set(stood.culprits), (report, stood)
    assert any("no send or receive" in text for text in (*report.missing, *report.evidence))


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 2), st.sampled_from(FORMS), st.sampled_from(["gloo", "nccl"]), st.sampled_from([a_mesh, a_pipeline]))
def test_a_part_of_the_records_never_names_an_innocent_with_certainty(
    seed: int, culprits: int, form: Form, backend: str, shape: Callable[..., Program]
) -> None:
    rng = random.Random(seed)
    program = shape(rng, culprits)
    stood = run(program)
    raws = {rank: form(raw) for rank, raw in records(program, stood, backend).items() if rng.random() < 0.8}
    report = analyzed(raws)
    assert report.confidence != "high" or set(report.culprits) <= set(stood.culprits), (report, stood)


@settings(max_examples=25, derandomize=True, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from(["size_mismatch", "dtype_mismatch", "op_mismatch"]), st.sampled_from(["gloo", *BACKENDS]))
def test_a_minority_of_any_size_that_calls_something_else_is_named(seed: int, cause: str, backend: str) -> None:
    rng = random.Random(seed)
    world = rng.randint(3, 12)
    odd = sorted(rng.sample(range(world), rng.randint(1, (world - 1) // 2)))
    other: dict[str, Any] = {"size_mismatch": {"size": 300}, "dtype_mismatch": {"dtype": "Half"}, "op_mismatch": {"op": "barrier"}}[cause]
    before = [call(line=10 + i) for i in range(rng.randint(0, 6))]
    last = call(line=99, done=False)
    groups = {"0": list(range(world))}
    report = analyzed({r: raw(r, [*before, last | (other if r in odd else {})], groups, backend) for r in range(world)})
    assert (list(report.culprits), report.cause) == (odd, cause)
    assert report.first_bad_op is not None and report.first_bad_op.seq == len(before) + 1


def test_a_member_that_never_called_a_group_is_found_by_elimination() -> None:
    groups = {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}
    start = [call(), call()]
    raws = {r: raw(r, [*start, call(group="1", done=False)] if r != 2 else start, groups, "gloo", told=False) for r in range(4)}
    report = analyzed({rank: without_members(each) for rank, each in raws.items()})
    assert (report.culprits, report.cause, report.confidence) == ((2,), "not_joined", "medium")


def test_pipeline_ends_that_made_fewer_transfers_than_the_middle_wait_for_nobody() -> None:
    groups, calls = pipeline(3, 1, 1, 2)
    program = Program(groups, calls)
    raws = {rank: active_only(each) for rank, each in records(program, run(program), "nccl").items()}
    assert analyzed(raws).culprits == ()


def test_a_status_of_a_group_that_has_no_description_is_no_error() -> None:
    program = a_mesh(random.Random(4), 1)
    raws = records(program, run(program), "nccl")
    for each in raws.values():
        each["pg_status"]["77"] = dict(next(iter(each["pg_status"].values())))
    assert analyzed({rank: of_a_later_schema(active_only(each)) for rank, each in raws.items()}).verdict


def test_the_program_that_nobody_stops_ends() -> None:
    program = a_mesh(random.Random(1), 0)
    assert run(program) == Stood([len(c) for c in program.calls], [len(c) for c in program.calls], ())


@pytest.mark.parametrize("form", FORMS)
def test_one_rank_of_a_job_alone_accuses_nobody(form: Form) -> None:
    raws = records(Program({"0": [0]}, [[("0",)] * 5]), Stood([5], [4], ()), "nccl")
    assert analyzed({0: form(raws[0])}).culprits == ()
