"""Model, machine and simulation say what must hold in the same words, and none of these rules is empty: each refuses what is made against it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from aegis_master import events as ev
from aegis_master import machine
from aegis_master.draft import counts_of, tally_of
from aegis_master.invariants import KEPT_STATE, KEPT_STEP, STATE, STEP, broken, broken_step, places
from aegis_proto.phases import FailedReason, LostReason, Mode, OrderPhase, Phase
from aegis_proto.state import JobSpec, JobState, Tally
from msgspec.structs import replace
from simulation import check

SPEC = Path(__file__).resolve().parents[3] / "spec"
sys.path.insert(0, str(SPEC))

import tla  # noqa: E402

NOW = 1000


def step(state: JobState, event: ev.Event) -> JobState:
    return machine.step(state, event, NOW)[0]


def new(max_retry: int = 1, actions: str = "act") -> JobState:
    spec = JobSpec("rules", workers=2, maxRetry=max_retry, maxUncounted=3, actions=actions)
    return machine.create("rules-1", spec, "uid", "era", NOW)


def filled(state: JobState) -> JobState:
    for i in range(2):
        state = step(state, ev.PodReady(i, 1, f"b{i}"))
    return state


def answer(state: JobState, i: int) -> tuple[int, int, str, int, int]:
    """What a report of this place carries, when it answers the present round."""
    return (i, state.pod(i).attempt, state.pod(i).boot, state.head.incarnation, state.head.seqNum)


def passed(state: JobState) -> JobState:
    for i in range(2):
        state = step(state, ev.Finished(*answer(state, i)))
    return state


PENDING = new()
CHECKING = filled(PENDING)
RUNNING = passed(CHECKING)
SLOW = step(RUNNING, ev.Marked(*answer(RUNNING, 0)[:4], kind="slow"))
TAKEN = ev.Errored(*answer(RUNNING, 0), reason=LostReason.PREEMPTED, at=NOW)
NOTICED = step(RUNNING, TAKEN)
DONE = step(RUNNING, ev.Finished(*answer(RUNNING, 0)))
COUNTED = step(RUNNING, ev.Errored(*answer(RUNNING, 0), at=NOW))
LOST = step(RUNNING, ev.PodLost(0, 1, at=NOW))
ADOPTING = step(RUNNING, ev.EraChanged("era2"))
SUSPENDED = step(RUNNING, ev.SuspendAsked())
FAILED = step(RUNNING, ev.StopAsked())
PLAIN = step(PENDING, ev.PlainFact(0, 1))
ADVISED = filled(new(actions="advise"))
ONCE = passed(filled(new(max_retry=0)))


def changed(state: JobState, w0: dict[str, Any] | None = None, w1: dict[str, Any] | None = None, **head: Any) -> JobState:
    """The state with fields of its head and of its pods as no machine would leave them; its sums follow, unless they are given."""
    pods = tuple(replace(pod, **fields) for pod, fields in zip(state.pods(), (w0 or {}, w1 or {}), strict=True))
    sums = {"tally": tally_of((pods,)), "counts": counts_of((pods,))}
    return JobState(replace(state.head, **(sums | head)), (pods,), state.spec)


STATES: list[tuple[str, JobState, JobState]] = [
    ("ValidPhase", RUNNING, changed(RUNNING, phase="Running")),
    ("ValidInnerPhase", RUNNING, changed(RUNNING, counts={}, tally=Tally()).with_pod(1, replace(RUNNING.pod(1), innerPhase="Running"))),
    ("RecoverCountBound", COUNTED, changed(COUNTED, recoverCount=3)),
    ("RetriesBound", COUNTED, changed(COUNTED, {"retries": 3})),
    ("PhaseConsistency", RUNNING, changed(RUNNING, {"innerPhase": Phase.BOOT_CHECKING})),
    ("CountExact", COUNTED, changed(COUNTED, {"retries": 0})),
    ("RecoverIsMax", COUNTED, changed(COUNTED, recoverCount=0)),
    ("FailedIsSpent", COUNTED, changed(COUNTED, recoverCount=2)),
    ("FailedIsSpent", FAILED, changed(FAILED, failedReason=FailedReason.BUDGET)),
    ("FailedIsSpent", FAILED, changed(FAILED, failedReason=FailedReason.BUDGET, recoverCount=2)),
    ("SpentNeverRuns", RUNNING, changed(RUNNING, failures=2)),
    ("BootedBeforeRun", RUNNING, changed(RUNNING, booted=False)),
    ("QuitOnlyIfFailed", RUNNING, changed(RUNNING, shouldQuit=True)),
    ("QuitOnlyIfFailed", FAILED, changed(FAILED, failedReason=None)),
    ("RoundsAreFull", CHECKING, changed(CHECKING, {"boot": ""})),
    ("RoundsAreFull", RUNNING, changed(RUNNING, {"boot": ""})),
    ("NobodyLeavesInRun", RUNNING, changed(RUNNING, {"toQuit": True})),
    ("UncountedBound", LOST, changed(LOST, {"uncounted": 3})),
    ("SuspendedWaits", RUNNING, changed(RUNNING, suspended=True)),
    ("PlainIsPlain", PLAIN, changed(PLAIN, {"mark": "slow"})),
    ("MarksOnlyInRun", COUNTED, changed(COUNTED, {"mark": "slow"})),
    ("ExactlyOneHolds", COUNTED, changed(COUNTED, w1={"retries": 1})),
    ("CountHasAHolder", COUNTED, changed(COUNTED, countedPod="w1")),
    ("CountedHasRun", RUNNING, changed(RUNNING, countedIncarnation=1)),
    ("OrderIsHead", RUNNING, changed(RUNNING, seqNum=99)),
    ("OrderNamesEveryPlace", RUNNING, changed(RUNNING, order=replace(RUNNING.head.order, attempts=((1, 1),)))),
    ("TerminalQuits", RUNNING, changed(RUNNING, order=replace(RUNNING.head.order, phase=OrderPhase.QUIT))),
    ("RoundsEnd", LOST, changed(LOST, deadline=None)),
    ("DoneIsOver", DONE, changed(DONE, w1={"finished": True})),
    ("GoneIsNotPresent", RUNNING, changed(RUNNING, {"gone": True})),
    ("TallyExact", RUNNING, changed(RUNNING, tally=Tally())),
    ("CountsExact", RUNNING, changed(RUNNING, counts={})),
]
"""Rule, a state of the machine, and what it would be without the rule."""

FOREIGN = (0, 7, "x", 0, 1)
"""What a report of no present pod carries."""
STEPS: list[tuple[str, JobState, ev.Event, JobState]] = [
    ("NoStaleDone", CHECKING, ev.Finished(*answer(CHECKING, 0)), changed(RUNNING, {"finished": True})),
    ("DoneWins", DONE, ev.PodLost(0, 1, at=NOW), changed(LOST, seqNum=DONE.head.seqNum + 1)),
    ("DoneWins", DONE, ev.SuspendAsked(), changed(LOST, seqNum=DONE.head.seqNum + 1)),
    ("SucceedIsTrue", DONE, ev.Finished(*answer(DONE, 1)), changed(DONE, phase=Phase.SUCCEED)),
    ("SucceedIsTrue", CHECKING, ev.Finished(*answer(CHECKING, 1)), changed(CHECKING, {"finished": True}, {"finished": True}, phase=Phase.SUCCEED)),
    ("TerminalStays", FAILED, ev.PodReady(0, 1, "c"), RUNNING),
    ("MarkOnlyMarks", RUNNING, ev.Marked(*answer(RUNNING, 0)[:4]), changed(RUNNING, {"mark": "hang", "toQuit": True})),
    ("SafePoint", SLOW, ev.DeadlinePassed("hang", SLOW.head.seqNum, 0), COUNTED),
    ("SafePoint", RUNNING, ev.Marked(*answer(RUNNING, 0)[:4], kind="slow"), changed(COUNTED, {"toQuit": True, "reason": "slow"})),
    ("CountOncePerIncarnation", COUNTED, ev.Errored(*answer(COUNTED, 1)), changed(COUNTED, {"retries": 2}, failures=2)),
    ("CountOncePerIncarnation", RUNNING, ev.Errored(*answer(RUNNING, 1)), changed(COUNTED, {"retries": 2}, failures=2)),
    ("FailsExactly", ONCE, ev.Errored(*answer(ONCE, 0)), changed(ONCE, failures=1)),
    ("FailsExactly", RUNNING, ev.Errored(*answer(RUNNING, 0)), changed(FAILED, failures=1, failedReason=FailedReason.BUDGET)),
    ("FailsExactly", COUNTED, ev.PodLost(1, 1), changed(FAILED, failures=1, failedReason=FailedReason.BUDGET)),
    ("CountOnlyInRun", CHECKING, ev.PodLost(0, 1), changed(LOST, failures=1)),
    ("KeepRetries", COUNTED, ev.PodLost(0, 1), changed(LOST, {"retries": 0})),
    ("AdoptedUntouched", ADOPTING, ev.PodReady(1, 1, "c"), changed(RUNNING, recoverCount=1)),
    ("AdoptedUntouched", changed(ADOPTING, countedIncarnation=0), ev.PodReady(1, 1, "c"), RUNNING),
    ("BootedFirst", PENDING, ev.PodReady(1, 1, "c"), RUNNING),
    ("PlainOnlyAtFirst", RUNNING, ev.PlainFact(0, 1), changed(RUNNING, mode=Mode.PLAIN)),
    ("SuspendedIsPatient", SUSPENDED, ev.DeadlinePassed("placing", 1, 0), changed(FAILED, failedReason=FailedReason.PLACING)),
    ("PreemptionIsFree", COUNTED, ev.PodLost(1, 1, LostReason.PREEMPTED), changed(COUNTED, w1={"uncounted": 1})),
    ("PreemptionIsFree", COUNTED, ev.PodGone(1, 1, preempted=True), changed(COUNTED, w1={"uncounted": 1})),
    ("PreemptionIsFree", NOTICED, ev.PodLost(0, 1), changed(step(NOTICED, ev.PodLost(0, 1)), {"uncounted": 1})),
    ("PreemptionIsFree", RUNNING, TAKEN, COUNTED),
    ("MovesOnce", changed(COUNTED, countMoved=True), ev.PodLost(1, 1), changed(COUNTED, countMoved=True, countedPod="w1")),
    ("TakenBackOnce", COUNTED, ev.Healthy(), changed(COUNTED, {"retries": 0}, failures=0)),
    ("TakenBackOnce", COUNTED, ev.Healthy(), changed(COUNTED, {"retries": 0, "uncounted": 1}, failures=0, countedPod="")),
    ("FailedChecksLeave", CHECKING, ev.Errored(*answer(CHECKING, 1)), changed(CHECKING, {"errored": True}, phase=Phase.RESTARTING)),
    ("SuspectOnlyMarks", RUNNING, ev.SuspectChanged(0, 1, True), changed(RUNNING, {"suspect": True}, phase=Phase.RESTARTING)),
    ("SuspectOnlyMarks", RUNNING, ev.SuspectChanged(0, 1, True), changed(RUNNING, {"suspect": True, "boot": ""})),
    ("AdviceOnly", changed(ADVISED, {"failed": "gpu"}), ev.Finished(*answer(ADVISED, 1)), changed(ADVISED, {"toQuit": True})),
    ("AdviceOnly", passed(ADVISED), ev.Checkpointed(0, 1), changed(passed(ADVISED), {"toQuit": True})),
    ("MasterSeqNumMonotonic", RUNNING, ev.GapFound(), changed(RUNNING, seqNum=0)),
    ("MasterSeqNumMonotonic", RUNNING, ev.GapFound(), changed(RUNNING, order=replace(RUNNING.head.order, phase=OrderPhase.STOP))),
    ("StaleFinishRejected", CHECKING, ev.Finished(*FOREIGN), changed(CHECKING, {"finished": True})),
    ("StaleErrorOnlyMovesACount", RUNNING, ev.Errored(*FOREIGN), COUNTED),
    ("IncarnationMonotonic", RUNNING, ev.GapFound(), changed(RUNNING, incarnation=-1)),
    ("AttemptsMonotonic", RUNNING, ev.GapFound(), changed(RUNNING, {"attempt": 0})),
    ("SettingEndsNothing", RUNNING, ev.SettingChanged(0), FAILED),
    ("HeardDecidesNothing", RUNNING, ev.Acked(0, 1, "b0", 1), COUNTED),
    ("HeardDecidesNothing", RUNNING, ev.PodRunning(0, 1), COUNTED),
]
"""Rule, a state, an event, and what the machine would make of them without the rule."""


def ids(cases: list[Any]) -> list[str]:
    return [case[0] for case in cases]


@pytest.mark.parametrize(("name", "state", "wrong"), STATES, ids=ids(STATES))
def test_a_rule_of_states_holds_and_can_fail(name: str, state: JobState, wrong: JobState) -> None:
    holds = (STATE | KEPT_STATE)[name]
    assert broken(state) == []
    assert not holds(wrong.head, places(wrong.shards), wrong.spec)


@pytest.mark.parametrize(("name", "before", "event", "wrong"), STEPS, ids=ids(STEPS))
def test_a_rule_of_steps_holds_and_can_fail(name: str, before: JobState, event: ev.Event, wrong: JobState) -> None:
    assert broken_step(before, event, step(before, event), NOW) == []
    assert name in broken_step(before, event, wrong, NOW)


def test_the_ledger_is_held_to_the_age_of_the_job() -> None:
    assert broken_step(RUNNING, ev.GapFound(), RUNNING, NOW + 5) == []
    lost = changed(RUNNING, ledger=replace(RUNNING.head.ledger, since=NOW + 3))
    assert broken_step(RUNNING, ev.GapFound(), lost, NOW + 5) == ["LedgerExact: 2 of 5 ms"]


def test_every_rule_is_seen_to_fail() -> None:
    assert set(ids(STATES)) == set(STATE) | set(KEPT_STATE)
    assert set(ids(STEPS)) == set(STEP) | set(KEPT_STEP)


def properties() -> dict[str, dict[str, tuple[str, ...]]]:
    return {name: tla.properties_of(text) for name, text in tla.modules().items()}


def test_the_rules_of_the_code_are_those_of_the_model_by_their_names() -> None:
    model = properties()
    phase, messages = model["AegisPhase"], model["AegisMessages"]
    assert list(STATE) == list(phase["INVARIANTS"])
    also = [name for name in (*messages["INVARIANTS"], *messages["ACTIONS"]) if name in STEP and name not in phase["ACTIONS"]]
    assert set(STEP) == {*phase["ACTIONS"], *also} and set(also) == {"MasterSeqNumMonotonic", "StaleFinishRejected"}
    said = {name for sections in model.values() for names in sections.values() for name in names}
    assert said & (set(KEPT_STATE) | set(KEPT_STEP)) == set()


def test_a_simulated_world_is_held_to_rules_by_the_names_of_the_models() -> None:
    """What it says is wrong begins with a name, and `check.RULES` says of which model that is."""
    model = properties()
    for module, names in check.RULES.items():
        known = {name for section in model[module].values() for name in section} if module else set(KEPT_STEP) | set(check.OWN)
        assert set(names) <= known, module
    said = set(re.findall(r"""problem\(\s*f?"(\w+)[":]""", Path(check.__file__).read_text()))
    assert said == {name for names in check.RULES.values() for name in names}
