"""The analyzer on hand-made sets, one per rule, and on synthetic jobs of every size."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import flight_jobs
import pytest
from aegis_lognexus.flight import analyze, broken, explain, from_mapping, read_folder, synthetic
from aegis_lognexus.flight.dump import TRUNCATED, Dump
from flight_jobs import call, job
from flight_jobs import raw as written

STEPS = [call(line=10), call(line=11), call(line=12)] * 4


def _open(line: int = 10, **more: object) -> dict[str, object]:
    return call(line=line, done=False, **more)  # type: ignore[arg-type]


def test_a_finished_job_has_no_finding() -> None:
    report = analyze(job({r: list(STEPS) for r in range(4)}))
    assert (report.verdict, report.culprits, report.cause) == ("healthy", (), "none")


def test_the_rank_that_never_enters_is_named() -> None:
    report = analyze(job({r: [*STEPS, _open()] if r != 2 else list(STEPS) for r in range(4)}))
    assert (report.culprits, report.cause) == ((2,), "not_joined")
    assert report.first_bad_op is not None and (report.first_bad_op.pg, report.first_bad_op.seq) == ("default_pg", 13)


def test_a_rank_without_a_dump_is_the_prime_suspect_but_not_surely() -> None:
    report = analyze(job({r: [*STEPS, _open()] for r in range(4) if r != 1}, groups={"0": [0, 1, 2, 3]}))
    assert (report.culprits, report.cause) == ((1,), "rank_died")
    assert report.confidence in ("low", "medium") and any("rank 1" in m for m in report.missing)


def test_a_truncated_dump_counts_as_none_and_is_told() -> None:
    dumps = job({r: [*STEPS, _open()] for r in range(4)})
    report = analyze(dumps | {3: broken(3, TRUNCATED, "cut off")})
    assert report.culprits == (3,) and any("truncated" in m for m in report.missing)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_losing_an_innocent_ranks_dump_does_not_move_the_blame(lost: int) -> None:
    dumps = job({r: [*STEPS, _open()] if r != 2 else list(STEPS) for r in range(4)})
    del dumps[lost]
    report = analyze(dumps)
    assert report.culprits == (2,) and report.confidence != "high"


def test_operations_marked_complete_by_their_failure_still_accuse_who_was_absent() -> None:
    report = analyze(job({r: [*STEPS, call()] if r != 1 else list(STEPS) for r in range(4)}))
    assert report.culprits == (1,) and any("failed" in e for e in report.evidence)


@pytest.mark.parametrize(
    ("odd", "cause"), [({"size": 300}, "size_mismatch"), ({"dtype": "Half"}, "dtype_mismatch"), ({"op": "broadcast"}, "op_mismatch")]
)
@pytest.mark.parametrize("culprit", [0, 3])
def test_the_minority_of_an_argument_vote_is_named_whatever_its_number(odd: dict[str, object], cause: str, culprit: int) -> None:
    report = analyze(job({r: [*STEPS, _open(**odd) if r == culprit else _open()] for r in range(4)}))
    assert (report.culprits, report.cause) == ((culprit,), cause)


def test_two_members_that_disagree_are_both_named_with_low_confidence() -> None:
    report = analyze(job({r: [*STEPS, _open(size=256 + r)] for r in range(2)}))
    assert report.culprits == (0, 1) and report.confidence == "low"


def test_sizes_that_may_differ_are_no_mismatch() -> None:
    report = analyze(job({r: [call(op="all_to_all", size=100 + r)] * 6 for r in range(4)}))
    assert report.verdict == "healthy"


def test_a_skipped_call_is_found_where_it_was_skipped() -> None:
    skipped = [c for i, c in enumerate(STEPS) if i != 4]
    report = analyze(job({r: [*skipped] if r == 1 else [*STEPS[:-1], _open(line=12)] for r in range(4)}))
    assert (report.culprits, report.cause) == ((1,), "skipped_op")
    assert report.first_bad_op is not None and report.first_bad_op.seq == 5


def test_branches_that_always_differ_by_rank_are_no_finding() -> None:
    report = analyze(job({r: [call(line=10 if r else 99), call(line=11)] * 6 for r in range(4)}))
    assert report.verdict == "healthy"


GROUPS = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("backend", ["gloo", "nccl", "ncclx", "hccl"])
def test_the_root_is_found_across_groups(told: bool, backend: str) -> None:
    def steps(r: int) -> list[dict[str, object]]:
        return [call(group=str(1 + r // 2)), call(group=str(3 + r % 2)), call()]

    # rank 3 stops after its tp call: 1 waits in group 4, 0 and 2 wait for 1 and 3 in the group of all
    last = {0: _open(), 1: _open(group="4"), 2: _open()}
    calls = {r: steps(r) * 3 + ([*steps(r)[:2], last[r]] if r in (0, 2) else [steps(r)[0], last[r]] if r == 1 else steps(r)[:1]) for r in range(4)}
    report = analyze(job(calls, GROUPS, backend, told))
    assert report.culprits == (3,)
    assert report.cause == ("not_joined" if backend == "gloo" else "host_hang_gil")


def test_groups_called_in_another_order_are_a_deadlock_of_the_minority() -> None:
    groups = {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3], "2": [0, 1, 2, 3]}
    calls = {r: [call(group="1"), call(group="2")] * 3 + [_open(group="2" if r == 2 else "1")] for r in range(4)}
    report = analyze(job(calls, groups))
    assert (report.culprits, report.cause) == ((2,), "order_deadlock")


def test_a_circle_of_two_has_no_majority_and_low_confidence() -> None:
    groups = {"0": [0, 1], "1": [0, 1], "2": [0, 1]}
    report = analyze(job({r: [call(group="1"), call(group="2"), _open(group=str(1 + r))] for r in range(2)}, groups))
    assert report.culprits == (0, 1) and report.cause == "order_deadlock" and report.confidence == "low"


def test_a_stopped_host_is_the_root_even_where_its_queued_work_waits_for_others() -> None:
    groups = {"0": [0, 1, 2], "1": [0, 1, 2], "2": [0, 1, 2]}
    calls = {r: [call(group="1"), call(group="2"), _open(group="2"), _open(group="1")] for r in (1, 2)}
    calls[0] = [call(group="1"), call(group="2"), _open(group="1")]
    report = analyze(job(calls, groups, "nccl"))
    assert (report.culprits, report.cause) == ((0,), "not_joined") and report.confidence != "high"


def test_completed_but_not_retired_counts_as_done_and_is_told() -> None:
    dumps = {}
    for rank, raw in synthetic.dumps(synthetic.Job(world=4, side=0, entries=20)):
        raw["entries"][-1]["retired"] = False
        dumps[rank] = from_mapping(rank, raw)
    report = analyze(dumps)
    assert report.verdict == "healthy" and any("not retired" in m for m in report.missing)


def test_two_idle_ranks_where_sends_are_not_recorded_are_never_accused_with_certainty() -> None:
    report = analyze(job({r: [*STEPS, _open()] if r > 1 else list(STEPS) for r in range(4)}))
    assert report.culprits == (0, 1) and report.confidence == "low"


def test_dumps_without_any_operation_are_no_evidence() -> None:
    dumps = {r: from_mapping(r, {"version": "2.10", "pg_config": {"": {"ranks": "[0, 1]"}}, "pg_status": {}, "entries": []}) for r in range(2)}
    report = analyze(dumps)
    assert (report.verdict, report.culprits, report.confidence) == ("no_evidence", (), "none")


def test_dumps_that_cannot_be_read_are_not_said_to_hold_nothing() -> None:
    report = analyze({0: broken(0, "unreadable", "no dump at all"), 1: broken(1, "refused", "too large")})
    assert report.verdict == "no_evidence" and report.evidence == ("no dump could be read",) and len(report.missing) == 2


def test_no_dumps_at_all_are_no_evidence() -> None:
    assert analyze({}).verdict == "no_evidence"


@pytest.mark.parametrize(("op", "cause"), [("send 0->1", "p2p_no_recv"), ("recv 0<-1", "p2p_no_send")])
def test_a_half_posted_transfer_accuses_the_other_half(op: str, cause: str) -> None:
    groups = {"0": [0, 1, 2, 3], "1": [2, 3]}
    calls = {0: [call()], 1: [call()], 2: [call(), _open(group="1", op=op)], 3: [call()]}
    report = analyze(job(calls, groups, "nccl"))
    assert (report.culprits, report.cause) == ((3,), cause)


def test_a_stall_at_one_stage_is_followed_down_the_pipeline() -> None:
    groups = {"0": [0, 1, 2, 3]}
    done = [call(), call()]
    calls = {0: [*done, _open(op="recv 0<-1")], 1: [*done, _open(op="recv 1<-2")], 2: [*done], 3: [*done, _open(op="send 3->2")]}
    report = analyze(job(calls, groups, "nccl"))
    assert report.culprits == (2,)


def test_all_inside_one_operation_accuses_nobody() -> None:
    report = analyze(job({r: [*STEPS, _open()] for r in range(4)}, backend="nccl"))
    assert (report.verdict, report.culprits, report.cause) == ("undecided", (), "stuck_inside")


def test_a_device_that_completes_nothing_more_in_several_groups_is_named() -> None:
    def steps(r: int) -> list[dict[str, object]]:
        return [call(group=str(1 + r // 2)), call(group=str(3 + r % 2)), call()]

    calls = {}
    for r in range(4):
        mine = steps(r) * 4
        calls[r] = mine[:3] + [c | {"done": False} for c in mine[3:]] if r == 2 else mine
    report = analyze(job(calls, GROUPS, "nccl"))
    assert (report.culprits, report.cause) == ((2,), "gpu_error")


@pytest.mark.parametrize("late", [0, 3])
def test_a_device_that_does_not_reach_what_the_others_run_is_named_but_not_surely(late: int) -> None:
    dumps = {}
    for r in range(4):
        told = flight_jobs.raw(r, [*STEPS, _open()], {"0": [0, 1, 2, 3]}, "nccl")
        told["entries"][-1]["state"] = "scheduled" if r == late else "started"
        dumps[r] = from_mapping(r, told)
    report = analyze(dumps)
    assert (report.verdict, report.culprits, report.cause, report.confidence) == ("hang", (late,), "gpu_hang", "medium")


def test_a_lag_of_one_group_accuses_nobody() -> None:
    calls = {r: [call(group=str(1 + r // 2)), call()] * 4 for r in range(4)}
    calls[1] = [*calls[1][:-1], _open()]
    report = analyze(job(calls, GROUPS, "nccl"))
    assert report.culprits == ()


@pytest.mark.parametrize("late", [0, 3])
def test_a_straggler_is_slow_and_no_culprit(late: int) -> None:
    rng = random.Random(late)
    dumps: dict[int, Dump] = {}
    for r in range(4):
        calls = [call(at=(0.6 if r == late and i % 8 else 0.0) + rng.random() / 100) for i in range(24)]
        dumps |= {r: job({r: calls}, {"0": [0, 1, 2, 3]})[r]}
    report = analyze(dumps)
    assert (report.verdict, report.culprits, report.slow, report.cause) == ("slow", (), (late,), "slow_not_hung")


@pytest.mark.parametrize("offset", [-3.0, 0.4, 120.0])
def test_a_clock_that_is_off_is_no_straggler(offset: float) -> None:
    rng = random.Random(1)
    dumps: dict[int, Dump] = {}
    for r in range(4):
        dumps |= {r: job({r: [call(at=(offset if r == 1 else 0.0) + rng.random() / 100) for _ in range(24)]}, {"0": [0, 1, 2, 3]})[r]}
    assert analyze(dumps).verdict == "healthy"


@pytest.mark.parametrize(("world", "side"), [(64, 8), (64, 0), (512, 8)])
def test_a_large_healthy_job_has_no_finding(world: int, side: int) -> None:
    dumps = {r: from_mapping(r, d) for r, d in synthetic.dumps(synthetic.Job(world=world, side=side, entries=96))}
    report = analyze(dumps)
    assert (report.verdict, report.culprits, report.slow) == ("healthy", (), ())


@pytest.mark.parametrize(("world", "side", "culprit"), [(64, 8, 37), (64, 0, 0), (512, 16, 511)])
@pytest.mark.parametrize("at", [1, 5, 17])
def test_one_culprit_of_many_is_found(world: int, side: int, culprit: int, at: int) -> None:
    dumps = {r: from_mapping(r, d) for r, d in synthetic.dumps(synthetic.Job(world=world, side=side, entries=96, culprit=culprit, at=at))}
    assert analyze(dumps).culprits == (culprit,)


def test_dumps_that_wrapped_around_at_other_places_line_up(tmp_path: Path) -> None:
    dumps = {}
    for rank, raw in synthetic.dumps(synthetic.Job(world=16, side=4, entries=120, culprit=9)):
        raw["entries"] = raw["entries"][-(16 + rank) :]
        dumps[rank] = from_mapping(rank, raw)
    assert analyze(dumps).culprits == (9,)


def test_dumps_of_active_entries_only_are_enough() -> None:
    dumps = {}
    for rank, raw in synthetic.dumps(synthetic.Job(world=16, side=4, entries=120, culprit=9)):
        raw["entries"] = [e for e in raw["entries"] if not e["retired"]]
        dumps[rank] = from_mapping(rank, raw)
    report = analyze(dumps)
    assert report.culprits == (9,)


def test_an_empty_dump_with_hashed_group_names_is_read_by_the_order_the_others_show() -> None:
    dumps = {}
    for rank, raw in synthetic.dumps(synthetic.Job(world=16, side=4, entries=120, culprit=9)):
        raw["entries"] = [e for e in raw["entries"] if not e["retired"]] if rank in (8, 9) else raw["entries"]
        for e in raw["entries"]:
            e["process_group"] = (f"h{int(e['process_group'][0]) * 7919:x}", e["process_group"][1])
        raw["pg_config"] = {f"h{int(n) * 7919:x}": c for n, c in raw["pg_config"].items()} | {"unused": {"desc": "ep", "ranks": f"[{rank}]"}}
        dumps[rank] = from_mapping(rank, raw)
    assert len(dumps[9]) == 0
    assert analyze(dumps).culprits == (9,)


def test_any_part_of_a_healthy_set_accuses_nobody_with_certainty() -> None:
    dumps = {r: from_mapping(r, d) for r, d in synthetic.dumps(synthetic.Job(world=16, side=4, entries=64))}
    rng = random.Random(5)
    for _ in range(20):
        kept = {r: d for r, d in dumps.items() if rng.random() < 0.6}
        assert analyze(kept).culprits == ()


def test_a_number_far_off_is_no_rank_of_the_job_and_makes_none() -> None:
    dumps = job({r: [*STEPS, _open()] if r != 1 else list(STEPS) for r in range(4)}, told=False)
    lost = {r: dataclasses.replace(d, config={}) for r, d in dumps.items()}
    report = analyze(lost | {999_999: broken(999_999, TRUNCATED, "cut off")})
    assert set(report.roles) == {0, 1, 2, 3, 999_999}


def test_a_world_of_a_hundred_thousand_ranks_is_told_in_a_page() -> None:
    dumps = job({r: [*STEPS, _open()] for r in range(3)}, {"0": list(range(100_000))})
    found = explain(dumps)
    assert len(found.text(matrix=True)) < 50_000 and len(found.html("x")) < 500_000
    assert found.report.confidence == "low"


@pytest.mark.parametrize("active", [False, True])
def test_records_of_different_moments_of_a_job_that_goes_on_make_nobody_sure(active: bool) -> None:
    """Device backends finish nothing without all members: what others finished, the earliest had entered later."""
    raws = {r: written(r, [call(done=i < 30 + r) for i in range(30 + r + (r == 5))], {"0": list(range(6))}, "nccl") for r in range(6)}
    if active:
        raws = {r: each | {"entries": [e for e in each["entries"] if not e["retired"]]} for r, each in raws.items()}
    report = analyze({r: from_mapping(r, each) for r, each in raws.items()})
    assert report.confidence == "low"
    assert any("earlier moment" in text for text in report.evidence)


def test_the_order_of_dumps_does_not_matter() -> None:
    dumps = job({r: [*STEPS, _open(size=256 if r < 3 else 300)] for r in range(4)})
    assert dataclasses.astuple(analyze(dumps)) == dataclasses.astuple(analyze(dict(reversed(dumps.items()))))


def test_from_files_to_the_culprit(tmp_path: Path) -> None:
    synthetic.write(synthetic.Job(world=32, side=4, entries=200, culprit=21), tmp_path)
    assert analyze(read_folder(tmp_path)).culprits == (21,)
