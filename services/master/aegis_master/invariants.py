"""What always holds of a job, by the names of the model: of one state, and of one step. Pure; used by tests and by simulation.

`broken(state)` and `broken_step(before, event, after)` return the names of what does not hold, with a word on it; empty = all hold.
The first five state invariants are the seed's; the others close what these let pass: a spent job that trains on, a Succeed of a command nobody ran.
"""

from __future__ import annotations

from collections.abc import Callable

from aegis_proto.phases import FailedReason, LostReason, Mode, OrderPhase, Phase
from aegis_proto.state import Head, JobState, Pod

from aegis_master.counting import spent
from aegis_master.draft import counts_of, tally_of
from aegis_master.events import Acked, Errored, Event, Finished, PodGone, PodLost, PodReady, PodRunning, SettingChanged, SuspectChanged
from aegis_master.ledger import total

StateRule = Callable[[Head, list[Pod]], bool]
StepRule = Callable[[JobState, JobState], bool]


def top(pods: list[Pod]) -> int:
    """max(retries)"""
    return max(pod.retries for pod in pods)


def _expected_counted(head: Head) -> bool:
    return head.recoverCount == head.maxRetry + 1


STATE: dict[str, StateRule] = {
    "ValidPhase": lambda h, _: isinstance(h.phase, Phase),
    "ValidInnerPhase": lambda _, pods: all(isinstance(p.innerPhase, Phase) for p in pods),
    "RecoverCountBound": lambda h, _: 0 <= h.recoverCount <= h.maxRetry + 1,
    "RetriesBound": lambda h, pods: all(0 <= p.retries <= h.maxRetry + 1 for p in pods),
    # exemption: in Restarting the survivors keep the phase they were in
    "PhaseConsistency": lambda h, pods: all(p.finished or p.innerPhase is h.phase or h.phase is Phase.RESTARTING for p in pods),
    # every counted failure is one incarnation: the highest retries is their number
    "CountExact": lambda h, pods: top(pods) == h.failures,
    "RecoverIsMax": lambda h, pods: h.phase is Phase.FAILED or h.recoverCount == min(top(pods), h.maxRetry),
    "FailedIsSpent": lambda h, _: (h.failedReason is FailedReason.BUDGET) == (h.phase is Phase.FAILED and _expected_counted(h)),
    "SpentNeverRuns": lambda h, _: h.mode is Mode.PLAIN or h.phase.terminal or not spent(h),
    "BootedBeforeRun": lambda h, _: h.phase is not Phase.RUN_COMMAND or h.booted or h.mode is Mode.PLAIN,
    "QuitOnlyIfFailed": lambda h, _: h.shouldQuit == (h.phase is Phase.FAILED) == (h.failedReason is not None),
    # a round runs on filled places only: no order round starts, or goes on, over an empty place (a finished worker may leave a run)
    "RoundNeedsAll": lambda h, pods: h.phase not in (Phase.BOOT_CHECKING, Phase.TROUBLESHOOTING) or all(p.present for p in pods),
    "OneCountPerIncarnation": lambda h, _: h.countedIncarnation <= h.incarnation,
    "OrderIsHead": lambda h, _: (h.order.seqNum, h.order.incarnation) == (h.seqNum, h.incarnation),
    "OrderNamesEveryPlace": lambda h, _: sum(n for _, n in h.order.attempts) == h.workerNum,
    "TerminalQuits": lambda h, _: (h.order.phase is OrderPhase.QUIT) == h.phase.terminal,
    "RoundsEnd": lambda h, _: h.phase not in (Phase.BOOT_CHECKING, Phase.TROUBLESHOOTING, Phase.RESTARTING) or h.deadline is not None,
    "GoneIsNotPresent": lambda _, pods: not any(p.gone and p.present for p in pods),
}
"""Name -> holds of (head, pods)."""


def _unchanged_count(before: JobState, after: JobState) -> bool:
    """At most one count per step, and never a second one of an incarnation that is counted."""
    added = after.head.failures - before.head.failures
    return added <= 0 or (added == 1 and before.head.countedIncarnation != before.head.incarnation)


def _holder(state: JobState) -> str:
    """Who holds the count of the incarnation that was counted last."""
    return state.head.countedPod


def _fresh_round(before: JobState, after: JobState) -> bool:
    entered = after.head.phase.is_round and after.head.roundSeqNum != before.head.roundSeqNum
    if before.head.mode is not after.head.mode:
        return True  # an exit makes the job plain and is taken in the same step
    return not entered or not after.head.tally.finished


def _succeed_is_true(before: JobState, after: JobState) -> bool:
    """Nobody succeeds in the step that starts the run: every Finish is an answer to it."""
    return after.head.phase is not Phase.SUCCEED or before.head.phase in (Phase.RUN_COMMAND, Phase.SUCCEED) or before.head.mode is not after.head.mode


def _safe_point(before: JobState, after: JobState) -> bool:
    """A marked pod is told to leave only when the run stops: never beside a running command."""
    if after.head.phase is not Phase.RUN_COMMAND:
        return True
    return not any(pod.toQuit for pod in after.pods())


STEP: dict[str, StepRule] = {
    "TerminalStays": lambda b, a: not b.head.phase.terminal or a is b,
    "MasterSeqNumMonotonic": lambda b, a: a.head.seqNum >= b.head.seqNum and (a.head.order is b.head.order or a.head.seqNum > b.head.seqNum),
    "NoStaleDone": _fresh_round,
    "SucceedIsTrue": _succeed_is_true,
    "CountOncePerIncarnation": _unchanged_count,
    "CountMovesOnce": lambda b, a: _holder(a) in ("", _holder(b)) or b.head.countedIncarnation != a.head.countedIncarnation or not b.head.countMoved,
    "TakenBackOnce": lambda b, a: (
        a.head.failures != b.head.failures - 1 or b.head.phase is Phase.RUN_COMMAND or (_holder(b) != "" and _holder(a) == "")
    ),
    "SafePoint": _safe_point,
    "IncarnationMonotonic": lambda b, a: a.head.incarnation >= b.head.incarnation,
    "AttemptsMonotonic": lambda b, a: all(x.attempt <= y.attempt for x, y in zip(b.pods(), a.pods(), strict=True)),
    "DoneWins": lambda b, a: not (b.head.phase is Phase.RUN_COMMAND and b.head.tally.finished == b.head.workerNum) or a.head.phase is Phase.SUCCEED,
    "BudgetOnlyAtItsEnd": lambda b, a: a.head.failedReason is not FailedReason.BUDGET or a is b or a.head.failures == a.head.maxRetry + 1,
}
"""Name -> holds of (before, after)."""


def _stale(before: JobState, event: Finished | Errored) -> bool:
    """Of another attempt, boot, incarnation or round than the present ones."""
    head = before.head
    if not 0 <= event.index < head.workerNum or not head.phase.is_round:
        return True
    pod = before.pod(event.index)
    present = (event.attempt, event.boot, event.incarnation) == (pod.attempt, pod.boot, head.incarnation) and pod.present
    return not (present and head.roundSeqNum <= event.seq_num <= head.seqNum)


def _broken_by(before: JobState, event: Event, after: JobState) -> list[str]:
    """What must hold of one step, given its event."""
    head = before.head
    names = []
    if isinstance(event, Finished) and after is not before and _stale(before, event):
        names.append("StaleFinishRejected")
    if isinstance(event, Errored) and after is not before and _stale(before, event):
        taken_back = event.reason is LostReason.PREEMPTED and after.head.failures == head.failures - 1
        if not taken_back and (head.countMoved or not after.head.countMoved):
            names.append("StaleErrorOnlyMovesACount")
    if isinstance(event, PodLost | PodGone | PodReady) and head.phase is Phase.RUN_COMMAND and 0 <= event.index < head.workerNum:
        done = before.pod(event.index).finished
        if done and after.head.phase not in (Phase.RUN_COMMAND, Phase.SUCCEED, Phase.FAILED if head.mode is Mode.PLAIN else Phase.SUCCEED):
            names.append("LossAfterFinishIsNoFailure")
    if isinstance(event, SettingChanged) and after.head.phase is not head.phase:
        names.append("SettingEndsNothing")
    if isinstance(event, SuspectChanged | Acked | PodRunning) and (after.head.phase, after.head.failures) != (head.phase, head.failures):
        names.append("SilenceIsNotDeath")
    return names


def broken(state: JobState) -> list[str]:
    """Names of the state invariants that do not hold."""
    pods = state.pods()
    names = [name for name, holds in STATE.items() if not holds(state.head, pods)]
    if state.head.tally != tally_of(state.shards):
        names.append(f"TallyExact: {state.head.tally} is {tally_of(state.shards)}")
    if state.head.counts != counts_of(state.shards):
        names.append(f"CountsExact: {state.head.counts} is {counts_of(state.shards)}")
    if any(p.uncounted >= max(1, state.spec.maxUncounted) for p in pods) and state.head.phase is not Phase.FAILED:
        names.append("UncountedBound")
    return names


def broken_step(before: JobState, event: Event, after: JobState, now: int) -> list[str]:
    """Names of the step and state invariants that do not hold; `now` of the step, not before any earlier one.

    A state that has not changed was judged when it was made.
    """
    names = [name for name, holds in STEP.items() if not holds(before, after)]
    names += _broken_by(before, event, after)
    if not after.head.phase.terminal and total(after.head.ledger, now) != now - after.head.createdAt:
        names.append(f"LedgerExact: {total(after.head.ledger, now)} of {now - after.head.createdAt} ms")
    return names if after is before else names + broken(after)
