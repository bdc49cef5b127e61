"""What always holds of a job, by the names of the models: of one state, and of one step. Pure; used by tests and by simulation.

`broken(state)` and `broken_step(before, event, after, now)` return the names of what does not hold; empty = all hold. STATE and STEP are the
invariants and the action properties of `spec/AegisPhase.tla`, every one, said of the code; STEP has two more of `spec/AegisMessages.tla`. What the
models leave out - orders, sums, the ledger, attempts - is held by KEPT_STATE and KEPT_STEP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from aegis_proto.phases import FailedReason, LostReason, Mode, OrderPhase, Phase
from aegis_proto.state import Head, JobSpec, JobState, Pod
from msgspec.structs import astuple

from aegis_master.counting import spent
from aegis_master.draft import counts_of, tally_of
from aegis_master.events import Acked, DeadlinePassed, Errored, Event, Finished, Marked, PodGone, PodLost, PodReady, PodRunning, SettingChanged
from aegis_master.ledger import total
from aegis_master.rounds import FINDINGS, Finding


class Step(NamedTuple):
    """One step that changed something."""

    before: Head
    event: Event
    after: Head
    pods: list[tuple[Pod, Pod]]
    """Before and after, of the places that the step changed."""
    state: JobState
    """Before."""


class Places(NamedTuple):
    """Of all places, in pod order."""

    innerPhase: tuple[Phase, ...]
    boot: tuple[str, ...]
    finished: tuple[bool, ...]
    retries: tuple[int, ...]
    uncounted: tuple[int, ...]
    toQuit: tuple[bool, ...]
    mark: tuple[str, ...]
    gone: tuple[bool, ...]
    whole: tuple[tuple[Pod, ...], ...]


COLUMNS = [Pod.__struct_fields__.index(name) for name in Places._fields[:-1]]
StateRule = Callable[[Head, Places, JobSpec], bool]
StepRule = Callable[[Step], bool]
CHECKS = (Phase.BOOT_CHECKING, Phase.TROUBLESHOOTING)


def places(shards: tuple[tuple[Pod, ...], ...]) -> Places:
    """Column by column: the rules walk over all places many times."""
    columns = list(zip(*[astuple(pod) for shard in shards for pod in shard], strict=True))
    return Places._make([*[columns[i] for i in COLUMNS], shards])


def counted(head: Head) -> bool:
    """The present incarnation has its count."""
    return head.countedIncarnation == head.incarnation


def held(head: Head) -> bool:
    """The count of the present incarnation is held by a place: it is counted, and was not taken back."""
    return head.countedIncarnation == head.incarnation and head.countedPod != ""


def moved(head: Head) -> bool:
    """The count of the present incarnation went to another place, or to nobody."""
    return head.countMoved and counted(head)


def _consistent(head: Head, at: Places, _: JobSpec) -> bool:
    """Exemption: in Restarting the survivors keep the phase they were in."""
    if head.phase is Phase.RESTARTING:
        return True
    return all(done or inner is head.phase for done, inner in zip(at.finished, at.innerPhase, strict=True))


def _full(head: Head, at: Places, _: JobSpec) -> bool:
    """No round of checks while a place is empty; in RunCommand only a place whose Finish is in may be."""
    if "" not in at.boot or head.phase not in (*CHECKS, Phase.RUN_COMMAND):
        return True
    if head.phase is not Phase.RUN_COMMAND:
        return False
    return head.mode is Mode.PLAIN or all(boot or done for boot, done in zip(at.boot, at.finished, strict=True))


def _uncounted(head: Head, at: Places, spec: JobSpec) -> bool:
    most, bound = max(at.uncounted), max(1, spec.maxUncounted)
    return most < bound or (most == bound and head.failedReason is FailedReason.BOOT)


STATE: dict[str, StateRule] = {
    # the five of the seed
    "ValidPhase": lambda h, _, __: isinstance(h.phase, Phase),
    "ValidInnerPhase": lambda _, at, __: set(map(type, at.innerPhase)) == {Phase},
    "RecoverCountBound": lambda h, _, __: 0 <= h.recoverCount <= h.maxRetry + 1,
    "RetriesBound": lambda h, at, _: min(at.retries) >= 0 and max(at.retries) <= h.maxRetry + 1,
    "PhaseConsistency": _consistent,
    # every counted failure is one incarnation: the highest retries is their number
    "CountExact": lambda h, at, _: max(at.retries) == h.failures,
    "RecoverIsMax": lambda h, at, _: h.phase is Phase.FAILED or h.recoverCount == min(max(at.retries), h.maxRetry),
    # Failed(budget) is what has recoverCount = maxRetry + 1, and as many failures
    "FailedIsSpent": lambda h, _, __: (
        (h.failedReason is FailedReason.BUDGET) == (h.recoverCount == h.maxRetry + 1)
        and (h.failedReason is not FailedReason.BUDGET or h.failures == h.maxRetry + 1)
    ),
    "SpentNeverRuns": lambda h, _, __: h.mode is Mode.PLAIN or not spent(h) or h.failedReason is FailedReason.BUDGET,
    "BootedBeforeRun": lambda h, _, __: h.phase is not Phase.RUN_COMMAND or (h.started and (h.booted or h.mode is Mode.PLAIN)),
    "QuitOnlyIfFailed": lambda h, _, __: h.shouldQuit == (h.phase is Phase.FAILED) == (h.failedReason is not None),
    "RoundsAreFull": _full,
    # a marked pod is told to leave only when the run stops: never beside a running command
    "NobodyLeavesInRun": lambda h, at, _: h.phase is not Phase.RUN_COMMAND or True not in at.toQuit,
    "UncountedBound": _uncounted,
    "SuspendedWaits": lambda h, _, __: not h.suspended or h.phase is Phase.PENDING,
    "PlainIsPlain": lambda h, at, _: (
        h.mode is Mode.MANAGED or ((h.phase is Phase.RUN_COMMAND or h.phase.terminal) and not any(at.mark) and True not in at.toQuit)
    ),
    "MarksOnlyInRun": lambda h, at, _: h.phase is Phase.RUN_COMMAND or not any(at.mark),
    "ExactlyOneHolds": lambda h, at, _: not held(h) or at.retries.count(max(at.retries)) == 1,
    "CountHasAHolder": lambda h, at, _: not held(h) or at.retries[int(h.countedPod[1:])] == max(at.retries),
}
"""Name -> holds of (head, places, specification)."""

KEPT_STATE: dict[str, StateRule] = {
    "CountedHasRun": lambda h, _, __: h.countedIncarnation <= h.incarnation,
    "OrderIsHead": lambda h, _, __: (h.order.seqNum, h.order.incarnation) == (h.seqNum, h.incarnation),
    "OrderNamesEveryPlace": lambda h, _, __: sum([n for _, n in h.order.attempts]) == h.workerNum,
    "TerminalQuits": lambda h, _, __: (h.order.phase is OrderPhase.QUIT) == h.phase.terminal,
    "RoundsEnd": lambda h, _, __: h.deadline is not None or h.phase not in (*CHECKS, Phase.RESTARTING),
    "DoneIsOver": lambda h, _, __: h.phase is not Phase.RUN_COMMAND or h.tally.finished < h.workerNum,
    "GoneIsNotPresent": lambda _, at, __: True not in at.gone or not any(gone and boot for gone, boot in zip(at.gone, at.boot, strict=True)),
    "TallyExact": lambda h, at, _: h.tally == tally_of(at.whole),
    "CountsExact": lambda h, at, _: h.counts == counts_of(at.whole),
}
"""The same, of what the model leaves out."""


def _fresh_round(s: Step) -> bool:
    """Somebody finished the round he was asked in, not an earlier one; the end of a plain worker makes the job plain and is its Finish."""
    entered = s.after.phase is not s.before.phase or s.after.roundSeqNum != s.before.roundSeqNum
    return not (entered and s.after.phase.is_round and s.after.mode is s.before.mode) or s.after.tally.answered == 0


def _done_wins(s: Step) -> bool:
    """Once a worker's Finish is in, neither its end nor its mark ends the run: only a new era does, which asks everybody."""
    if s.before.phase is not Phase.RUN_COMMAND or s.before.mode is Mode.PLAIN or s.after.phase is Phase.RUN_COMMAND:
        return True
    if s.after.phase is Phase.RESTARTING and s.after.adopting:
        return True
    event = s.event
    loses = isinstance(event, PodLost | PodGone | PodReady) and s.state.pod(event.index).finished
    return not loses and not any(x.finished and x.present and not y.present for x, y in s.pods)


def _succeed_is_true(s: Step) -> bool:
    """All have finished, and nobody in the step that starts the run: every Finish is an answer to it."""
    if s.after.phase is not Phase.SUCCEED:
        return True
    return s.after.tally.finished == s.after.workerNum and (s.before.phase is Phase.RUN_COMMAND or s.before.mode is not s.after.mode)


def _mark_only_marks(s: Step) -> bool:
    if not (s.before.phase is s.after.phase is Phase.RUN_COMMAND) or all(x.mark == y.mark for x, y in s.pods):
        return True
    return all((x.retries, x.toQuit, x.innerPhase) == (y.retries, y.toQuit, y.innerPhase) for x, y in s.pods)


def _safe_point(s: Step) -> bool:
    """A mark evicts nobody. Time alone never takes a slow pod: the hang deadline is of a run that hangs."""
    if isinstance(s.event, Marked) and (s.before.phase is not s.after.phase or any(y.toQuit and not x.toQuit for x, y in s.pods)):
        return False
    hung = s.before.phase is Phase.RUN_COMMAND and s.before.tally.hung > 0
    return hung or not (isinstance(s.event, DeadlinePassed) and s.event.kind == "hang")


def _fails_exactly(s: Step) -> bool:
    """A managed job fails for its budget in the step that counts failure number maxRetry + 1, and in no other."""
    before, after = s.before, s.after
    if after.mode is Mode.PLAIN:
        return True
    fails = after.failedReason is FailedReason.BUDGET and after.phase is Phase.FAILED
    if after.failures > before.failures:
        return fails == (after.failures == after.maxRetry + 1)
    return not fails


def _keep_retries(s: Step) -> bool:
    """A lost pod keeps its retries; they change where a run ends or begins, or a count moves."""
    before, after = s.before, s.after
    if Phase.RUN_COMMAND in (before.phase, after.phase) or before.mode is not after.mode or moved(before) or moved(after):
        return True
    return all(x.retries == y.retries for x, y in s.pods)


def _adopted_untouched(s: Step) -> bool:
    """A run that is adopted was not touched: nothing was counted, and it is none that was counted as failed."""
    before, after = s.before, s.after
    if not before.adopting or after.phase is not Phase.RUN_COMMAND or after.mode is Mode.PLAIN:
        return True
    same = (before.failures, before.recoverCount) == (after.failures, after.recoverCount)
    return same and after.incarnation >= before.incarnation and after.incarnation != before.countedIncarnation


def _booted_first(s: Step) -> bool:
    """BootChecking is passed before the first run; only an adopted run had passed it elsewhere."""
    if s.before.phase is Phase.RUN_COMMAND or s.after.phase is not Phase.RUN_COMMAND or s.after.mode is Mode.PLAIN:
        return True
    return s.before.booted or s.before.phase is Phase.BOOT_CHECKING or s.before.adopting


def _suspended_is_patient(s: Step) -> bool:
    """A suspended job waits for ever; only a stop ends it."""
    ends = s.before.suspended and s.after.phase is Phase.FAILED
    return not ends or s.after.failedReason in (FailedReason.STOPPED, FailedReason.PROGRESS)


def _preemption_is_free(s: Step) -> bool:
    """The platform takes pods away for nothing, and who said that it is taken leaves for nothing, however its end is heard."""
    event = s.event
    if any(y.uncounted > x.uncounted for x, y in s.pods if x.toQuit and x.reason == LostReason.PREEMPTED):
        return False
    said = isinstance(event, Errored) and event.reason is LostReason.PREEMPTED  # said late, it takes a count back
    taken = (isinstance(event, PodLost) and event.reason is LostReason.PREEMPTED) or (isinstance(event, PodGone) and event.preempted)
    if not said and not taken:
        return True
    return s.after.failures in (s.before.failures, s.before.failures - said) and all(x.uncounted == y.uncounted for x, y in s.pods)


def _moves_once(s: Step) -> bool:
    return not (moved(s.before) and counted(s.after)) or s.after.countedPod in (s.before.countedPod, "")


def _taken_back_once(s: Step) -> bool:
    """Only a notice of preemption takes a count back, once, and does nothing else; a healthy run gives all of them back."""
    before, after = s.before, s.after
    if after.failures >= before.failures or before.phase is Phase.RUN_COMMAND:
        return True
    once = held(before) and counted(after) and not held(after) and after.failures == before.failures - 1
    return once and after.phase is before.phase and all(x.uncounted == y.uncounted for x, y in s.pods)


def _failed_checks_leave(s: Step) -> bool:
    """Whoever could not diagnose, or failed a check of its own, is ordered to leave: a round ends in Restarting for nothing else."""
    if s.before.phase not in CHECKS or s.after.phase is not Phase.RESTARTING or s.after.tally.quitting:
        return True
    return any((x.present, x.uncounted, x.retries) != (y.present, y.uncounted, y.retries) for x, y in s.pods)


def _suspect_only_marks(s: Step) -> bool:
    """Silence alone stops nothing."""
    if not any(y.suspect and not x.suspect for x, y in s.pods):
        return True
    return s.before.phase is s.after.phase and all((x.retries, x.present) == (y.retries, y.present) for x, y in s.pods)


def _advice_only(s: Step) -> bool:
    """Where nothing is done to nodes, nobody is ordered to leave for a mark, or for a failed check of its node."""
    if s.state.spec.actions == "act":
        return True
    ordered = [x for x, y in s.pods if y.toQuit and not x.toQuit and y.reason != LostReason.PREEMPTED]
    return not ordered or (s.before.phase is not Phase.RUN_COMMAND and not any(FINDINGS.get(x.failed) is Finding.HARDWARE for x in ordered))


def _stale(s: Step, event: Finished | Errored) -> bool:
    """Of another attempt, boot, incarnation or round than the present ones."""
    head = s.before
    if not head.phase.is_round:
        return True
    pod = s.state.pod(event.index)
    present = (event.attempt, event.boot, event.incarnation) == (pod.attempt, pod.boot, head.incarnation) and pod.present
    return not (present and head.roundSeqNum <= event.seq_num <= head.seqNum)


STEP: dict[str, StepRule] = {
    "NoStaleDone": _fresh_round,
    "DoneWins": _done_wins,
    "SucceedIsTrue": _succeed_is_true,
    "TerminalStays": lambda s: not s.before.phase.terminal,
    "MarkOnlyMarks": _mark_only_marks,
    "SafePoint": _safe_point,
    "CountOncePerIncarnation": lambda s: (
        s.after.failures <= s.before.failures or (s.after.failures == s.before.failures + 1 and not counted(s.before))
    ),
    "FailsExactly": _fails_exactly,
    "CountOnlyInRun": lambda s: s.after.failures <= s.before.failures or s.before.phase is Phase.RUN_COMMAND or s.after.mode is Mode.PLAIN,
    "KeepRetries": _keep_retries,
    "AdoptedUntouched": _adopted_untouched,
    "BootedFirst": _booted_first,
    "PlainOnlyAtFirst": lambda s: s.before.mode is s.after.mode or not s.before.started,
    "SuspendedIsPatient": _suspended_is_patient,
    "PreemptionIsFree": _preemption_is_free,
    "MovesOnce": _moves_once,
    "TakenBackOnce": _taken_back_once,
    "FailedChecksLeave": _failed_checks_leave,
    "SuspectOnlyMarks": _suspect_only_marks,
    "AdviceOnly": _advice_only,
    # of AegisMessages
    "MasterSeqNumMonotonic": lambda s: s.after.seqNum >= s.before.seqNum and (s.after.order is s.before.order or s.after.seqNum > s.before.seqNum),
    "StaleFinishRejected": lambda s: not (isinstance(s.event, Finished) and _stale(s, s.event)),
}
"""Name -> holds of a step that changed something."""


def _stale_error(s: Step) -> bool:
    """An Error that is no answer to the present round may name a better first cause of the run just counted, or take its count back; no more."""
    if not (isinstance(s.event, Errored) and _stale(s, s.event)):
        return True
    taken_back = s.event.reason is LostReason.PREEMPTED and s.after.failures == s.before.failures - 1
    return taken_back or (s.after.countMoved and not s.before.countMoved)


KEPT_STEP: dict[str, StepRule] = {
    "StaleErrorOnlyMovesACount": _stale_error,
    "IncarnationMonotonic": lambda s: s.after.incarnation >= s.before.incarnation,
    "AttemptsMonotonic": lambda s: all(x.attempt <= y.attempt for x, y in s.pods),
    "SettingEndsNothing": lambda s: not isinstance(s.event, SettingChanged) or s.after.phase is s.before.phase,
    "HeardDecidesNothing": lambda s: (
        not isinstance(s.event, Acked | PodRunning) or (s.after.phase, s.after.failures) == (s.before.phase, s.before.failures)
    ),
}
"""The same, of what the model leaves out."""


ALL_STATE = (*STATE.items(), *KEPT_STATE.items())
ALL_STEP = (*STEP.items(), *KEPT_STEP.items())


def broken(state: JobState) -> list[str]:
    """Names of the state invariants that do not hold."""
    head, at, spec = state.head, places(state.shards), state.spec
    return [name for name, holds in ALL_STATE if not holds(head, at, spec)]


def broken_step(before: JobState, event: Event, after: JobState, now: int) -> list[str]:
    """Names of the step and state invariants that do not hold; `now` of the step, not before any earlier one.

    A state that has not changed was judged when it was made, and a step that changes nothing breaks nothing.
    """
    names = []
    head = after.head
    if after is not before:
        shards = [(x, y) for x, y in zip(before.shards, after.shards, strict=True) if x is not y]
        pods = [(x, y) for old, new in shards for x, y in zip(old, new, strict=True) if x is not y]
        step = Step(before.head, event, head, pods, before)
        names = [name for name, holds in ALL_STEP if not holds(step)] + broken(after)
    if not head.phase.terminal and total(head.ledger, now) != now - head.createdAt:
        names.append(f"LedgerExact: {total(head.ledger, now)} of {now - head.createdAt} ms")
    return names
