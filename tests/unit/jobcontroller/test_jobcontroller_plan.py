"""The plan: a pure function of the world. Who goes where, who does not, and what is given back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aegis_jobcontroller.pending import describe, pending, record
from aegis_jobcontroller.plan import FOUND_AGAIN_WITHIN, LARGE, Assign, Release, Retire, Stop, plan
from aegis_jobcontroller.world import EMPTY, Holding, Node, Placed, World, excluded, free
from aegis_proto.ids import pod_name
from aegis_proto.lemon import Risk
from aegis_proto.messages import Place, Slot, SlotStatus, Taint
from aegis_proto.phases import FailedReason, Phase
from aegis_proto.state import Pod
from hypothesis import given
from hypothesis import strategies as st
from worlds import HERE, NOW, PLAIN, RESTARTS, RUNS, at, held, make_job, make_node, make_world, running, told


def assigned(actions: list[object]) -> dict[str, str]:
    return {action.pod: action.node for action in actions if isinstance(action, Assign)}


def test_a_new_job_is_spread_over_the_nodes_in_natural_order() -> None:
    world = make_world([make_job()], [make_node(name) for name in ("n10", "n2", "n1")])
    assert assigned(plan(world)) == {"w0": "n1", "w1": "n2", "w2": "n10"}


def test_behind_a_restore_nothing_is_begun_until_the_nodes_can_have_said_what_runs() -> None:
    """What already runs is recorded all the same."""
    job = make_job("job-a", 1)
    world = replace(make_world([job], [make_node("n1")]), settled=False)
    assert plan(world) == []
    said = replace(make_world([job], [running(job, 0, "n1")]), settled=False)
    assert assigned(plan(said)) == {"w0": "n1"}


def test_the_emptiest_nodes_come_first() -> None:
    other = make_job("other", 1, {0: HERE}, **RUNS)
    busy = make_node("n1", 2, {"0": told(other, 0, "running")}, holdings={"0": held(other, 0)})
    world = make_world([make_job(workers=1), other], [busy, make_node("n2", 2)], [at(other, 0, "n1")])
    assert assigned(plan(world)) == {"w0": "n2"}


def test_the_first_placing_is_all_or_nothing() -> None:
    assert plan(make_world([make_job(workers=3)], [make_node("n1"), make_node("n2", 4)])) == []


def test_two_jobs_that_do_not_both_fit_are_not_both_half_placed() -> None:
    jobs = [make_job("job-a", 2, createdAt=1), make_job("job-b", 2, createdAt=2)]
    actions = plan(make_world(jobs, [make_node("n1"), make_node("n2"), make_node("n3")]))
    assert {action.job for action in actions if isinstance(action, Assign)} == {"job-a"}


def test_spares_are_kept_from_jobs_behind_and_taken_by_their_own() -> None:
    """A running job keeps its spare; a lost place of it goes there at once; a job before it goes first."""
    running_job = make_job("job-a", 1, {0: HERE}, createdAt=1, spec=dict(spares=1), **RUNS)
    on_n1 = make_node("n1", 1, {"0": told(running_job, 0, "running")}, holdings={"0": held(running_job, 0)})
    nodes = [on_n1, make_node("n2"), make_node("n3")]
    behind = make_job("job-b", 2, createdAt=2)
    world = make_world([running_job, behind], nodes, [at(running_job, 0, "n1")])
    assert plan(world) == []
    reason = pending(behind, world)
    assert reason is not None and "1 kept as a spare (n2, job job-a)" in reason.message
    assert assigned(plan(make_world([running_job, make_job("job-b", 1, createdAt=2)], nodes, [at(running_job, 0, "n1")]))) == {"w0": "n3"}
    urgent = make_job("job-b", 2, createdAt=2, spec=dict(priority=5))
    assert assigned(plan(make_world([running_job, urgent], nodes, [at(running_job, 0, "n1")]))) == {"w0": "n2", "w1": "n3"}
    lost = make_job("job-a", 1, {0: dict(attempt=2, gone=True)}, createdAt=1, spec=dict(spares=1), errors=("n1",), **RESTARTS)
    world = make_world([lost, make_job("job-b", 1, createdAt=2)], [make_node("n1"), make_node("n2")], [at(lost, 0, "n1")])
    assert {(a.job, a.node) for a in plan(world) if isinstance(a, Assign)} == {("job-a", "n2"), ("job-b", "n1")}


def _risky(name: str, risk: float) -> Node:
    return make_node(name, risk=Risk(name, risk))


@pytest.mark.parametrize(
    ("workers", "spec", "nodes"),
    [
        (2, {"priority": 10}, ["n3", "n5"]),  # urgent: the best, to the hundredth
        (2, {"riskTolerance": "low"}, ["n3", "n5"]),
        (2, {}, ["n1", "n3"]),  # as they come, but no doubtful one
        (2, {"riskTolerance": "high"}, ["n2", "n4"]),  # the doubtful ones first: the others stay free
        (3, {"riskTolerance": "high"}, ["n1", "n2", "n4"]),
        (5, {"priority": 10}, ["n1", "n2", "n3", "n4", "n5"]),  # rather a doubtful one than none
        (2, {"priority": 10, "nodes": ("n2", "n4")}, ["n2", "n4"]),
    ],
)
def test_who_minds_gets_the_best_nodes_and_who_does_not_the_doubtful(workers: int, spec: dict[str, Any], nodes: list[str]) -> None:
    world = make_world([make_job(workers=workers, spec=spec)], [_risky(f"n{i + 1}", risk) for i, risk in enumerate((0.2, 0.9, 0.0, 0.5, 0.1))])
    assert sorted(action.node for action in plan(world) if isinstance(action, Assign)) == nodes


def test_a_large_job_never_takes_doubtful_nodes_for_liking() -> None:
    nodes = [_risky(f"n{i}", 0.9 if i < 4 else 0.0) for i in range(LARGE + 4)]
    for tolerance in ("normal", "high"):
        world = make_world([make_job(workers=LARGE, spec={"riskTolerance": tolerance})], nodes)
        assert {action.node for action in plan(world) if isinstance(action, Assign)} == {f"n{i}" for i in range(4, LARGE + 4)}


def test_priority_goes_before_age() -> None:
    jobs = [make_job("job-a", 1, createdAt=1), make_job("job-b", 1, createdAt=2, spec=dict(priority=5))]
    actions = plan(make_world(jobs, [make_node("n1")]))
    assert [(action.job, action.node) for action in actions if isinstance(action, Assign)] == [("job-b", "n1")]


REFUSALS = {
    "silent": dict(alive=False, silent_for=20.0),
    "excluded": dict(taint=Taint("n1", True, "XID 79", until=NOW + 1000)),
    "gpuType": dict(spec=dict(gpuType="h100")),
    "gpuType, none": dict(spec=dict(gpuType="")),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_a_node_that_must_not_be_used_is_not(why: str) -> None:
    job = make_job(workers=1, spec=dict(gpuType="b200"))
    world = make_world([job], [make_node("n1", **REFUSALS[why])])
    assert plan(world) == []
    found = pending(job, world)
    assert found is not None and [refusal.why for refusal in found.refusals] == [why.partition(",")[0]]


def test_error_nodes_and_wishes_of_the_job_are_obeyed() -> None:
    nodes = [make_node(f"n{i}") for i in range(1, 6)]
    job = make_job(workers=1, errors=["n1"], spec=dict(nodes=("n1", "n2", "n3"), exclude=("n2",)))
    assert assigned(plan(make_world([job], nodes))) == {"w0": "n3"}


def test_a_taint_ends_by_itself() -> None:
    taint = Taint("n1", True, "XID 79", until=NOW - 1)
    assert not excluded(taint, NOW)
    assert assigned(plan(make_world([make_job(workers=1)], [make_node("n1", taint=taint)]))) == {"w0": "n1"}


def test_a_lost_worker_returns_to_its_node_when_that_is_fine() -> None:
    job = make_job("job-a", 2, {0: dict(attempt=2, gone=True), 1: HERE}, **RESTARTS)
    nodes = [running(job, 0, "n5", state="gone"), running(job, 1, "n2"), make_node("n1")]
    actions = plan(make_world([job], nodes, [at(job, 0, "n5", seq=11), at(job, 1, "n2")]))
    assert actions == [Assign("job-a", "w0", 2, "n5", "0", 11, 7)]


def test_a_lost_worker_leaves_an_error_node_and_its_slot() -> None:
    job = make_job("job-a", 2, {0: dict(attempt=2, gone=True), 1: HERE}, errors=["n5"], **RESTARTS)
    nodes = [running(job, 0, "n5", state="gone"), running(job, 1, "n2"), make_node("n1")]
    actions = plan(make_world([job], nodes, [at(job, 0, "n5", seq=11), at(job, 1, "n2")]))
    assert actions == [Assign("job-a", "w0", 2, "n1", "0", 11, 0, ("n5", "0", 7))]


def test_a_wished_node_comes_before_the_last_one() -> None:
    job = make_job("job-a", 1, {0: dict(attempt=2, gone=True, pin="n1")}, **RESTARTS)
    actions = plan(make_world([job], [running(job, 0, "n5", state="gone"), make_node("n1")], [at(job, 0, "n5")]))
    assert assigned(actions) == {"w0": "n1"}


def test_a_wished_node_is_waited_for_while_the_old_worker_leaves_it_and_not_for_long() -> None:
    for waited, placed in ((1, {}), (30, {"w0": "n1"})):
        job = make_job("job-a", 1, {0: dict(attempt=2, gone=True, pin="n5", ts=NOW - waited * 1000)}, **RESTARTS)
        assert assigned(plan(make_world([job], [running(job, 0, "n5"), make_node("n1")], [at(job, 0, "n5")]))) == placed
        left = make_world([job], [running(job, 0, "n5", state="gone"), make_node("n1")], [at(job, 0, "n5")])
        assert assigned(plan(left)) == {"w0": "n5"}
        stuck = running(job, 0, "n5", state="gone", clean=False, message="processes 7 do not die")
        assert assigned(plan(make_world([job], [stuck, make_node("n1")], [at(job, 0, "n5")]))) == {"w0": "n1"}


def test_nothing_is_placed_before_the_attempt_before_is_gone() -> None:
    job = make_job("job-a", 1, {0: dict(attempt=2)}, **RESTARTS)
    world = make_world([job], [running(job, 0, "n5"), make_node("n1")], [at(job, 0, "n5")])
    assert assigned(plan(world)) == {}
    found = pending(job, world)
    assert found is not None and found.stopping == ("w0",) and "verified gone" in found.message


def test_the_daemons_own_word_that_it_is_gone_is_enough() -> None:
    job = make_job("job-a", 1, {0: dict(attempt=2)}, **RESTARTS)
    assert assigned(plan(make_world([job], [running(job, 0, "n5", state="gone")], [at(job, 0, "n5")]))) == {"w0": "n5"}


def test_a_slot_with_processes_that_do_not_die_takes_nobody() -> None:
    job = make_job("job-a", 1, {0: dict(attempt=2, gone=True)}, **RESTARTS)
    stuck = running(job, 0, "n5", state="gone", clean=False, message="processes 7 do not die")
    assert plan(make_world([job], [stuck], [at(job, 0, "n5")])) == []
    assert assigned(plan(make_world([job], [stuck, make_node("n1")], [at(job, 0, "n5")]))) == {"w0": "n1"}


def test_an_attempt_the_state_has_given_up_is_stopped_while_it_lives() -> None:
    job = make_job("job-a", 1, {0: dict(attempt=2)}, **RESTARTS)
    actions = plan(make_world([job], [running(job, 0, "n5")], [at(job, 0, "n5")]))
    assert [type(action) for action in actions] == [Stop]


def test_a_lost_worker_is_placed_alone() -> None:
    job = make_job("job-a", 3, {0: dict(attempt=2, gone=True), 1: HERE, 2: dict(attempt=2)}, **RESTARTS)
    nodes = [running(job, 0, "n0", state="gone"), running(job, 1, "n1"), running(job, 2, "n2")]
    places = [at(job, i, f"n{i}") for i in range(3)]
    assert assigned(plan(make_world([job], nodes, places))) == {"w0": "n0"}


def test_a_plain_job_is_never_placed_again() -> None:
    job = make_job("job-a", 1, {0: dict(attempt=2, gone=True)}, **PLAIN)
    assert plan(make_world([job], [running(job, 0, "n5", state="gone"), make_node("n1")], [at(job, 0, "n5")])) == []


def test_suspended_and_ended_jobs_get_no_places() -> None:
    nodes = [make_node("n1")]
    assert plan(make_world([make_job(workers=1, suspended=True)], nodes)) == []
    assert plan(make_world([make_job(workers=1, phase=Phase.FAILED, ended_for=0.0)], nodes)) == []


def test_what_still_runs_in_an_ended_job_is_stopped_after_the_grace_and_what_is_gone_is_released() -> None:
    job = make_job("job-a", 2, {}, phase=Phase.FAILED, failedReason=FailedReason.BUDGET, ended_for=3.0, spec=dict(stopGrace=5.0))
    nodes = [running(job, 0, "n0"), running(job, 1, "n1", state="gone", exitCode=1)]
    places = [at(job, 0, "n0"), at(job, 1, "n1")]
    assert plan(make_world([job], nodes, places)) == [Release("n1", "0", 7)]
    late = replace(job, ended_for=15.0)
    assert [type(action) for action in plan(make_world([late], nodes, places))] == [Stop, Release]


def test_a_plain_job_that_was_stopped_is_stopped_at_once() -> None:
    job = make_job("job-a", 1, {}, **{**PLAIN, "phase": Phase.FAILED}, failedReason=FailedReason.STOPPED, ended_for=0.0)
    assert [type(action) for action in plan(make_world([job], [running(job, 0, "n0")], [at(job, 0, "n0")]))] == [Stop]


def test_the_place_of_an_ended_job_is_retired_after_its_slot() -> None:
    job = make_job("job-a", 1, {}, phase=Phase.SUCCEED, ended_for=0.0)
    gone = running(job, 0, "n0", state="gone")
    assert [type(action) for action in plan(make_world([job], [gone], [at(job, 0, "n0")]))] == [Release]
    empty = make_node("n0", 1, {"0": told(job, 0, "gone")})
    assert [type(action) for action in plan(make_world([job], [empty], [at(job, 0, "n0")]))] == [Retire]


def test_nothing_of_a_job_that_cannot_be_read_is_touched() -> None:
    job = make_job("job-a", 1, {0: HERE}, **RUNS)
    assert plan(make_world([], [running(job, 0, "n0")], [at(job, 0, "n0")])) == []


def test_e113_says_who_is_excluded_and_who_is_busy() -> None:
    other = make_job("llm-2", 1, {0: HERE}, **RUNS)
    job = make_job("job-a", 8)
    taint = Taint("cn-114", True, "XID 79", until=NOW)
    nodes = [make_node(f"n{i}") for i in range(6)] + [make_node("cn-114", taint=replace_until(taint, NOW + 60_000)), running(other, 0, "n7")]
    found = pending(job, make_world([job, other], nodes, [at(other, 0, "n7")]))
    assert found is not None and found.code == "E113"
    assert found.message.startswith("E113 8 workers asked, 6 nodes usable: 1 excluded (cn-114, XID 79, until ")
    assert found.message.endswith("1 busy (n7, job llm-2). aegis node ls")


def replace_until(taint: Taint, until: int) -> Taint:
    return Taint(taint.node, taint.excluded, taint.reason, until=until)


def test_a_node_for_one_namespace_does_not_name_the_jobs_of_others() -> None:
    job = make_job("job-a", 1, {0: HERE}, **RUNS)
    world = make_world([job], [running(job, 0, "n0", pid=5)], [at(job, 0, "n0")])
    assert describe(world.nodes["n0"], world, "default").jobs == ("job-a",)
    other = describe(world.nodes["n0"], world, "elsewhere")
    assert other.jobs == () and other.slots[0].job == "" and other.slots[0].pod == "" and other.slots[0].pid == 0 and other.free == 0


def test_a_worker_that_runs_without_a_record_is_recorded_where_it_is() -> None:
    """The store was restored from a copy of before its placement: nothing is placed twice, nothing is stopped."""
    job = make_job("job-a", 2, {0: dict(attempt=3)})
    node = make_node("n2", 1, {"0": told(job, 0, "running", 3)})
    assert plan(make_world([job], [make_node("n1"), node])) == [
        Assign("job-a", "w0", 3, "n2", "0", 0, 0),
        Assign("job-a", "w1", 1, "n1", "0", 0, 0),
    ]


def test_a_worker_of_a_later_attempt_than_the_state_names_waits_until_the_state_names_it() -> None:
    """Its agent tells the master of itself; until then it is neither recorded nor started a second time elsewhere."""
    job = make_job("job-a", 2, {})
    node = make_node("n2", 1, {"0": told(job, 0, "running", 3)})
    assert assigned(plan(make_world([job], [make_node("n1"), node]))) == {"w1": "n1"}


def test_an_older_record_of_a_worker_that_runs_is_replaced_and_not_stopped() -> None:
    job = make_job("job-a", 1, {0: dict(attempt=2, boot="b")}, adopting=True, **RESTARTS)
    node = make_node("n2", 1, {"0": told(job, 0, "running", 2)}, holdings={"0": held(job, 0, 1, seq=8)})
    assert plan(make_world([job], [node], [at(job, 0, "n2", 1, seq=9)])) == [Assign("job-a", "w0", 2, "n2", "0", 9, 8)]


def test_a_worker_whose_agent_has_told_the_state_where_it_runs_is_recorded_there() -> None:
    """Also when all have answered, and the job asks no more, before this replica looked."""
    job = make_job("job-a", 1, {0: dict(attempt=2, boot="b", node="n2")}, **RUNS)
    nodes = [make_node(name, 1, {"0": told(job, 0, "running", 2)}) for name in ("n1", "n2")]
    assert plan(make_world([job], nodes, [at(job, 0, "n3", 1, seq=9)])) == [Assign("job-a", "w0", 2, "n2", "0", 9, 0)]


@pytest.mark.parametrize("attempt", [1, 2, 999])
@pytest.mark.parametrize("phase", [RUNS, dict(adopting=True, **RESTARTS)])
def test_a_daemon_cannot_take_the_worker_of_another_node_by_its_word(attempt: int, phase: dict[str, Any]) -> None:
    job = make_job("job-a", 1, {0: HERE}, **phase)
    thief = make_node("n1", 1, {"0": told(job, 0, "running", attempt)})
    assert plan(make_world([job], [thief, running(job, 0, "n2")], [at(job, 0, "n2")])) == []


def test_a_worker_that_is_lost_is_not_handed_to_the_daemon_that_claims_it() -> None:
    job = make_job("job-a", 1, {0: dict(attempt=2)}, **RESTARTS)
    thief = make_node("n1", 1, {"0": told(job, 0, "running", 2)})
    assert plan(make_world([job], [thief, running(job, 0, "n2", 1)], [at(job, 0, "n2", 1)])) == [Stop("n2", "0", 7, held(job, 0).slot)]


def test_two_daemons_that_claim_one_worker_do_not_both_get_it() -> None:
    job = make_job("job-a", 1, {0: HERE}, **RUNS)
    claims = [make_node(name, 1, {"0": told(job, 0, "running")}) for name in ("n1", "n2")]
    assert plan(make_world([job], claims)) == [Assign("job-a", "w0", 1, "n1", "0", 0, 0)]


def test_a_worker_that_the_job_does_not_have_is_not_recorded_and_stops_no_plan() -> None:
    job = make_job("job-a", 1, {})
    node = make_node("n1", 2, {"0": told(job, 7, "running")})
    assert assigned(plan(make_world([job], [node]))) == {"w0": "n1"}


def test_a_worker_of_an_ended_or_unknown_job_or_of_an_older_attempt_is_not_recorded_anew() -> None:
    ended = make_job("job-a", 1, {}, phase=Phase.FAILED, ended_for=0.0)
    node = make_node("n2", 1, {"0": told(ended, 0, "running", 1)})
    assert plan(make_world([ended], [node])) == [] and plan(make_world([], [node])) == []
    later = make_job("job-a", 1, {0: dict(attempt=2)}, **RESTARTS)
    assert plan(make_world([later], [node])) == []


def test_a_job_that_was_brought_back_begins_no_worker_before_all_daemons_had_their_say() -> None:
    """One may run on a node that has not been heard of since the store was lost."""
    found = dict(adopting=True, phase=Phase.RESTARTING, createdAt=NOW)
    job = make_job("job-a", 2, {}, **found)
    nodes = [make_node("n1"), make_node("n2", 1, {"0": told(job, 0, "running")})]
    world = make_world([job], nodes)
    assert plan(world) == [Assign("job-a", "w0", 1, "n2", "0", 0, 0)]
    later = replace(world, now=NOW + int(FOUND_AGAIN_WITHIN * 1000))
    assert assigned(plan(later)) == {"w0": "n2", "w1": "n1"}


# --- properties over random worlds ---------------------------------------------------------------------------------------------

NAMES = [f"n{i}" for i in range(6)]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Jobs that are partly placed, lost, moved, ended; nodes of all kinds; slots that agree with places or do not."""
    jobs = []
    for number in range(draw(st.integers(1, 3))):
        workers = draw(st.integers(1, 4))
        phase = draw(st.sampled_from([Phase.PENDING, Phase.RUN_COMMAND, Phase.RESTARTING, Phase.FAILED]))
        pods = {
            i: draw(st.fixed_dictionaries(dict(attempt=st.integers(1, 3), gone=st.booleans(), boot=st.sampled_from(["", "b"]))))
            for i in range(workers)
        }
        jobs.append(
            make_job(
                f"job-{number}",
                workers,
                pods,
                phase=phase,
                ended_for=draw(st.sampled_from([0.0, 100.0])) if phase is Phase.FAILED else -1.0,
                errors=draw(st.lists(st.sampled_from(NAMES), max_size=2)),
                spec=dict(exclude=tuple(draw(st.lists(st.sampled_from(NAMES), max_size=1)))),
            )
        )
    places: dict[tuple[str, str], Placed] = {}
    slots: dict[str, dict[str, Holding]] = {name: {} for name in NAMES}
    status: dict[str, dict[str, SlotStatus]] = {name: {} for name in NAMES}
    for job in jobs:
        for index in range(len(job.pods)):
            if not draw(st.booleans()):
                continue
            attempt = draw(st.integers(1, job.pods[index].attempt))
            name, slot = draw(st.sampled_from(NAMES)), draw(st.sampled_from(["0", "1"]))
            if slot in slots[name] or any(h.slot.job == job.head.job for h in slots[name].values()):
                continue
            places.update([at(job, index, name, attempt, slot)])
            if draw(st.booleans()):
                slots[name][slot] = held(job, index, attempt)
                status[name][slot] = told(job, index, draw(st.sampled_from(["running", "gone"])), attempt, slot, clean=draw(st.booleans()))
    nodes = [
        make_node(
            name,
            2,
            status[name],
            holdings=slots[name],
            alive=draw(st.booleans()),
            taint=draw(st.sampled_from([None, Taint(name, True, "bad"), Taint(name, False)])),
        )
        for name in NAMES
    ]
    return make_world(jobs, nodes, list(places.items()))


@given(worlds())
def test_no_plan_uses_a_node_twice_a_slot_twice_or_a_node_that_is_excluded(world: World) -> None:
    used: set[tuple[str, str]] = set()
    by_job: set[tuple[str, str]] = set()
    for action in plan(world):
        if not isinstance(action, Assign):
            continue
        node, job = world.nodes[action.node], world.jobs[action.job]
        assert (action.node, action.slot) not in used
        used.add((action.node, action.slot))
        assert (action.job, action.node) not in by_job, "two workers of a job on one node"
        by_job.add((action.job, action.node))
        assert node.alive and not excluded(node.taint, world.now)
        assert action.node not in job.error_nodes(world.now) and action.node not in job.spec.exclude
        holding = node.holding(action.slot)
        own = world.places.get((action.job, action.pod))
        assert free(node, action.slot) or (own is not None and holding.key == own.key and node.reported(action.slot).clean), "slot of somebody"
        others = {
            h.slot.job for slot, h in node.slots.items() if slot != action.slot and (action.clear is None or action.clear[:2] != (action.node, slot))
        }
        assert action.job not in others, "two workers of a job on one node"
        assert not job.head.phase.terminal and action.attempt == job.pods[int(action.pod[1:])].attempt
        assert action.slot_seq == holding.seq and action.place_seq == (own.seq if own is not None else 0)


def carry_out(world: World) -> World:
    """The world after everything planned was written and obeyed by daemons that live."""
    places = dict(world.places)
    slots = {name: dict(node.slots) for name, node in world.nodes.items()}
    for action in plan(world):
        match action:
            case Assign():
                job = world.jobs[action.job]
                slots[action.node][action.slot] = Holding(
                    Slot(action.job, job.head.uid, "default", action.pod, action.attempt), action.slot_seq + 100
                )
                place = Place(job.head.uid, action.pod, action.attempt, action.node, action.slot)
                places[action.job, action.pod] = Placed(place, action.place_seq + 100)
                if action.clear is not None:
                    slots[action.clear[0]][action.clear[1]] = EMPTY
            case Stop():
                old = slots[action.node][action.slot]
                stopped = Slot(old.slot.job, old.slot.uid, "default", old.slot.pod, old.slot.attempt, stop=True)
                slots[action.node][action.slot] = Holding(stopped, old.seq + 100)
            case Release():
                slots[action.node][action.slot] = Holding(Slot(), action.slot_seq + 100)
            case Retire():
                places.pop((action.job, action.place.pod))
    nodes = {name: replace(node, slots=slots[name]) for name, node in world.nodes.items()}
    return World(world.jobs, places, nodes, world.now)


@given(worlds())
def test_a_plan_that_was_carried_out_is_not_planned_again(world: World) -> None:
    for _ in range(4):
        world = carry_out(world)
    assert plan(world) == []


@given(worlds())
def test_the_same_world_gives_the_same_plan_in_every_replica(world: World) -> None:
    shuffled = World(dict(reversed(world.jobs.items())), dict(reversed(world.places.items())), dict(reversed(world.nodes.items())), world.now)
    assert plan(world) == plan(shuffled)


def test_pods_beyond_the_first_are_named_by_their_index() -> None:
    assert pod_name(11) == "w11" and Pod().attempt == 1


def test_the_record_of_a_job_says_where_its_workers_are_and_what_daemons_say_of_them() -> None:
    job = make_job("job-a", 4, {0: HERE, 1: HERE, 2: HERE}, **RUNS)
    ended = make_node("n1", 1, {"0": told(job, 1, "gone", exitCode=137, message="killed")}, alive=False, silent_for=40.0)
    nodes = [running(job, 0, "n0"), ended]
    places = [at(job, 0, "n0"), at(job, 1, "n1"), at(job, 2, "n9", 3)]
    found = list(record(job, make_world([job], nodes, places)))
    assert [(each.pod, each.attempt, each.node, each.place, each.state) for each in found] == [
        ("w0", 1, "n0", "slot 0", "running"),
        ("w1", 1, "n1", "slot 0", "gone"),
        ("w2", 3, "n9", "slot 0", "on a node that is not known"),
    ]
    assert found[1].message == "exit code 137; killed; its daemon is silent for 40 s" and found[0].at == NOW
