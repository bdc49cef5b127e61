"""The counts of a job: retries per place, recoverCount, uncounted. When they rise, when one moves, when they are aligned.

Owns the rules only; changes the draft it is given. Rules (why: docs/decisions/0002-phase-machine.md):
  at most one count per incarnation; the first event counts, whatever repeats, comes late or crosses a takeover
  max(retries) = failures = number of counted failed incarnations; recoverCount is that, capped at maxRetry, and maxRetry + 1 once Failed(budget)
  decide on failures, never on the capped recoverCount
  until alignment the count may move once (old -1, new +1) to the pod that better evidence of the same incarnation names,
    dated no later than the stop order
  preemption is not counted: a notice dated no later than the stop order takes the count back, once; nothing of that incarnation counts again
"""

from __future__ import annotations

from aegis_proto.phases import LostReason
from aegis_proto.state import Head, Pod
from msgspec.structs import replace

from aegis_master.draft import Draft

EVIDENCE: dict[LostReason, int] = {
    LostReason.KILLED: 4,
    LostReason.NODE_LOST: 4,
    LostReason.GPU_LOST: 4,
    LostReason.RESTARTED: 4,
    LostReason.SIGNAL: 3,
    LostReason.ERROR: 2,
    LostReason.PORT: 2,
    LostReason.HUNG: 2,
    LostReason.SLOW: 2,
    LostReason.COLLATERAL: 1,
}
"""How well a reason names the first cause: pod or GPU lost > killed by signal > own error > collateral."""

EVIDENCE_ERROR = EVIDENCE[LostReason.ERROR]
EVIDENCE_SIGNAL = EVIDENCE[LostReason.SIGNAL]

MAX_REASON = 32
"""Characters of `lastFailedReason`, so that a shard of 256 pods stays <= 48 KB."""


def spent(head: Head) -> bool:
    """Some retries > maxRetry."""
    return head.failures > head.maxRetry


def count(draft: Draft, index: int, reason: LostReason) -> bool:
    """One failure of the present incarnation, held by this place. False when this incarnation is counted already."""
    head = draft.head
    if head.countedIncarnation == head.incarnation:
        return False
    draft.change(index, retries=draft.pod(index).retries + 1, reason=reason.value[:MAX_REASON])
    draft.set(
        failures=head.failures + 1,
        fruitless=head.fruitless + 1,
        recoverCount=min(head.recoverCount + 1, head.maxRetry),
        countedIncarnation=head.incarnation,
        countedPod=f"w{index}",
        countedEvidence=EVIDENCE.get(reason, 0),
        countMoved=False,
    )
    return True


def may_move(head: Head, incarnation: int, index: int, reason: LostReason, at: int) -> bool:
    """True when this evidence names a better first cause of the incarnation that was counted last, and that is not aligned yet."""
    return (
        incarnation == head.countedIncarnation == head.incarnation
        and not head.countMoved
        and head.countedPod != f"w{index}"
        and EVIDENCE.get(reason, 0) > head.countedEvidence
        and 0 < at <= head.stopOrderAt
    )


def move(draft: Draft, index: int, reason: LostReason) -> None:
    """The count goes from who holds it to this place; failures and recoverCount stay."""
    holder = int(draft.head.countedPod[1:])
    draft.put(holder, replace(draft.pod(holder), retries=draft.pod(holder).retries - 1))
    pod = draft.pod(index)
    why = pod.reason if pod.toQuit else reason.value[:MAX_REASON]  # who is leaving keeps the reason it leaves for: preemption feeds nothing
    draft.change(index, retries=pod.retries + 1, reason=why)
    draft.set(countedPod=f"w{index}", countedEvidence=EVIDENCE[reason], countMoved=True)


def may_take_back(head: Head, incarnation: int, at: int) -> bool:
    """True when a notice of preemption of this date names a cause of the stop that was counted last: its peers' errors were heard first."""
    return incarnation == head.countedIncarnation == head.incarnation and head.countedPod != "" and 0 < at <= head.stopOrderAt


def take_back(draft: Draft) -> None:
    """Nobody holds a count of this incarnation, and nobody will. A spent budget is not given back: that job has ended."""
    head = draft.head
    holder = int(head.countedPod[1:])
    draft.put(holder, replace(draft.pod(holder), retries=draft.pod(holder).retries - 1))
    failures = head.failures - 1
    draft.set(fruitless=max(0, head.fruitless - 1))
    draft.set(failures=failures, recoverCount=min(failures, head.maxRetry), countedPod="", countedEvidence=0, countMoved=True)


def feed(draft: Draft, index: int) -> bool:
    """One uncounted loss of this place. True when its bound is reached: the job cannot start there."""
    uncounted = draft.pod(index).uncounted + 1
    draft.change(index, uncounted=uncounted)
    return uncounted >= max(1, draft.spec.maxUncounted)


def aligned(pod: Pod, recover_count: int) -> Pod:
    """This pod on an edge into RunCommand: the only place where counts are aligned."""
    if pod.retries == recover_count and pod.uncounted == 0:
        return pod
    return replace(pod, retries=recover_count, uncounted=0)


def give_back(draft: Draft) -> None:
    """The budget is whole again (retryResetAfter)."""
    draft.each(lambda pod: replace(pod, retries=0) if pod.retries else pod)
    draft.set(failures=0, recoverCount=0, fruitless=0)


def spend(draft: Draft) -> None:
    """Failed(budget): the only edge that takes recoverCount beyond its cap."""
    draft.set(recoverCount=draft.head.maxRetry + 1)
