"""Nodes a job does not use: evidence always excludes, pointers a tenth and at least one, all of it for a day; what a monitor notices is told."""

from __future__ import annotations

import pytest
from aegis_master import events as ev
from aegis_master import exclusion, intake, machine, rounds
from aegis_master.draft import Draft
from aegis_proto.messages import CheckResult, Message, encode, raw
from aegis_proto.phases import MessageType
from aegis_proto.state import ErrorNode, JobSpec, JobState
from msgspec.structs import replace

DAY = 86_400_000


def job(workers: int, *entries: ErrorNode) -> JobState:
    state = machine.create("j", JobSpec("j", ("x",), workers=workers), "u", "a", 0)
    return replace(state, head=replace(state.head, errorNodes=entries))


def blamed(state: JobState, now: int, *asked: tuple[str, str]) -> tuple[JobState, list[str]]:
    draft = Draft(state, now)
    for node, reason in asked:
        exclusion.blame(draft, 0, node, reason)
    return draft.state(), [effect.message for effect in draft.effects if isinstance(effect, ev.Note)]


@pytest.mark.parametrize(("workers", "most"), [(2, 1), (19, 1), (20, 2), (1000, 100)])
def test_what_only_points_at_nodes_excludes_a_tenth_and_at_least_one(workers: int, most: int) -> None:
    assert exclusion.most(job(workers).head) == most
    state, said = blamed(job(workers), 1000, *((f"n{i}", "slow") for i in range(min(most, 60) + 1)))
    names = [entry.name for entry in state.head.errorNodes]
    assert len(names) == state.head.errorNodesTotal == min(most, 61)
    assert said == [] if most > 60 else "at most" in said[0]
    state, said = blamed(state, 1000, ("n0", "hung"))  # the same node once more is no other
    assert not said and len(state.head.errorNodes) == len(names)
    _, said = blamed(state, 1000, ("n1", "hung"), ("n99", "slow"), ("n98", "persistent"))
    assert len(said) == (0 if most > 60 else 2 + (most == 1))


def test_the_same_node_once_more_is_counted_once_and_lasts_from_then_on() -> None:
    state, _ = blamed(job(4), 1000, ("n1", "slow"))
    state, said = blamed(state, 5000, ("n1", "hung"))
    [entry] = state.head.errorNodes
    assert (entry.reason, entry.until, state.head.errorNodesTotal, said) == ("hung", 5000 + DAY, 1, [])
    state, said = blamed(job(4, entry, ErrorNode("n2", "slow", 0, "w0", until=DAY)), 9000, ("n2", "slow"))  # from when the cap was higher
    assert (said, [node.until for node in state.head.errorNodes]) == ([], [5000 + DAY, 9000 + DAY])


def test_evidence_is_not_capped_and_does_not_use_the_cap_up() -> None:
    state, said = blamed(job(4), 1000, *((f"n{i}", "gpu") for i in range(3)), ("n7", "unclean"), ("n8", "persistent"))
    assert [entry.reason for entry in state.head.errorNodes] == ["gpu", "gpu", "gpu", "unclean", "persistent"] and not said


def test_an_exclusion_ends_after_a_day_and_makes_room() -> None:
    state, _ = blamed(job(2), 1000, ("n1", "hung"))
    [entry] = state.head.errorNodes
    assert (entry.until, entry.avoided(entry.until - 1), entry.avoided(entry.until)) == (1000 + DAY, True, False)
    assert blamed(state, DAY, ("n2", "hung"))[1], "the cap is used"
    later, said = blamed(state, 1000 + DAY, ("n2", "hung"))
    assert [entry.name for entry in later.head.errorNodes] == ["n2"] and not said and later.head.errorNodesTotal == 2


def running() -> JobState:
    state = job(2)
    for i in range(2):
        state, _ = machine.step(state, ev.PodReady(i, 1, f"b{i}", node=f"n{i}"), 1000)
    for i in range(2):
        state, _ = machine.step(state, ev.Finished(i, 1, f"b{i}", 0, state.head.seqNum), 2000)
    assert state.head.phase == "RunCommand"
    return state


def test_what_a_monitor_notices_is_a_record_and_a_line_once_and_excludes_nobody() -> None:
    state = running()
    found = ev.Noticed(1, 1, "b1", 0, "gpuIdle", "GPUs do nothing")
    after, effects = machine.step(state, found, 5000)
    [entry] = after.head.errorNodes
    assert (entry.podName, entry.name, entry.reason, entry.timeStamp, entry.noted) == ("w1", "n1", "gpuIdle", 5000, True)
    assert not entry.avoided(5000) and after.head.errorNodesTotal == 0 and after.head.phase == "RunCommand"
    [note] = [effect for effect in effects if isinstance(effect, ev.Note)]
    assert (note.kind, note.index, note.details["node"], note.details["cause"]) == ("anomaly", 1, "n1", "gpuIdle")
    assert machine.step(after, found, 6000)[0] is after, "once per worker, code and run"
    assert machine.step(after, replace_incarnation(found), 6000)[0] is after, "nothing of another run"
    for attempt, boot in ((1, "b9"), (2, "b1")):
        other = ev.Noticed(1, attempt, boot, 0, "gpuSilent")
        assert machine.step(after, other, 6000)[0] is after, "nothing of another process"
    excluded, _ = blamed(after, 7000, ("n1", "gpu"))
    assert [(entry.reason, entry.noted) for entry in excluded.head.errorNodes] == [("gpu", False), ("gpuIdle", True)]
    told = 0
    for code in [*range(40), *range(40)]:
        after, effects = machine.step(after, ev.Noticed(0, 1, "b0", 0, f"c{code}", "x"), 8000)
        told += len([effect for effect in effects if isinstance(effect, ev.Note)])
    assert len(after.head.errorNodes) == exclusion.NOTED == told + 1


def test_what_is_noticed_never_lifts_an_exclusion() -> None:
    state, _ = blamed(running(), 2500, *((f"bad{i}", "gpu") for i in range(exclusion.ERROR_NODES)))
    assert machine.step(state, ev.Noticed(1, 1, "b1", 0, "gpuIdle", "GPUs do nothing"), 5000)[0] is state, "there is no room"
    state, _ = blamed(running(), 2500, *((f"bad{i}", "gpu") for i in range(exclusion.ERROR_NODES - 1)))
    state, _ = machine.step(state, ev.Noticed(1, 1, "b1", 0, "gpuIdle", "GPUs do nothing"), 5000)
    state, _ = blamed(state, 6000, ("one more", "gpu"))
    assert not any(entry.noted for entry in state.head.errorNodes) and len(state.head.errorNodes) == exclusion.ERROR_NODES


@pytest.mark.parametrize("mode", ["act", "advise"])
def test_of_two_marked_workers_both_leave_or_both_are_told(mode: str) -> None:
    draft = Draft(machine.create("j", JobSpec("j", ("x",), workers=4, actions=mode), "u", "a", 0), 1000)
    for i in (1, 2):
        draft.change(i, mark="slow", node=f"n{i}")
    rounds.leave_marked(draft, False)
    told = [effect.details["node"] for effect in draft.effects if isinstance(effect, ev.Note) and effect.kind == "advice"]
    leaving = [i for i, pod in enumerate(draft.state().pods()) if pod.toQuit]
    assert (leaving, told) == (([1, 2], ["n2"]) if mode == "act" else ([], ["n1", "n2"]))


def replace_incarnation(event: ev.Noticed) -> ev.Noticed:
    return ev.Noticed(event.index, event.attempt, event.boot, 3, event.code)


@pytest.mark.parametrize(("kind", "code", "taken"), [("monitor", "gpuSilent", True), ("monitor", "made up", False), ("gpu", "gpuIdle", False)])
def test_only_a_monitor_s_own_codes_are_taken(kind: str, code: str, taken: bool) -> None:
    state = running()
    result = CheckResult(kind, False, "the driver\x1b[2J does not answer", 5000, code=code)
    message = Message("j", "default", "w1", MessageType.ACK, "check", raw(result), 5000, uid="u", era="a", attempt=1, boot="b1", seqNum=1)
    got = intake.take(state, "aegis.job.j.worker.w1.check", encode(message), 5000)
    assert [type(event).__name__ for event in got.events] == (["Noticed"] if taken else [])
    assert got.beside is None, "nothing of this job stands still"
    if taken:
        assert "\x1b" not in got.events[0].message  # type: ignore[union-attr]
    marked, _ = machine.step(state, ev.Marked(0, 1, "b0", 0), 5000)
    beside = intake.take(marked, "aegis.job.j.worker.w1.check", encode(message), 5000).beside
    assert (beside is None) is (kind == "monitor")
    assert beside is None or ("\x1b" not in beside.result.Result and beside.at == 5000)
