"""Which order a worker obeys. Pure: (last obeyed, head) -> what to do (docs/decisions/0002-phase-machine.md, D14).

Orders are ordered by (era, incarnation, seqNum). Eras are ULIDs and rise with time; a new era of the store is always obeyed. An order that does
not name this attempt is not for us; one that names a higher attempt of our place is the word that we are superseded. A round that began before this
boot started is not acted in, whatever number it is repeated under: the others are in the middle of it, and the master does not know of us yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from aegis_proto.ids import pod_index
from aegis_proto.phases import OrderPhase
from aegis_proto.state import Head, HeadView, Order


class Verdict(StrEnum):
    OBEY = "obey"  # a new order for us
    REPEAT = "repeat"  # the one we obeyed last: acknowledge again
    OLD = "old"  # lower than what we obeyed: nothing
    BEFORE = "before"  # of a round that began before we started: say that we are here, wait for the next one
    NOT_FOR_US = "notForUs"  # our attempt is not (yet) named
    SUPERSEDED = "superseded"  # a higher attempt has our place
    OTHER_JOB = "otherJob"  # another submission under our subject


@dataclass(frozen=True, order=True, slots=True)
class Rank:
    """The order key."""

    era: str = ""
    incarnation: int = -1
    seq_num: int = -1


ROUNDS = frozenset({OrderPhase.BOOTCHECK, OrderPhase.COMMAND, OrderPhase.TROUBLESHOOT})
"""Orders that begin, or repeat, a round."""


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    rank: Rank = Rank()
    phase: OrderPhase = OrderPhase.WAIT
    new_era: bool = False
    """The store was restored or made anew: report PENDING again, with what runs."""


def named_attempt(order: Order, index: int) -> int:
    """The attempt that `order` names for place `index`; 0 when it names none."""
    at = index
    for attempt, count in order.attempts:
        if at < count:
            return attempt
        at -= count
    return 0


def judge(last: Rank, head: Head | HeadView, *, uid: str, pod: str, attempt: int, born: Rank | None = Rank()) -> Decision:
    """What `head` means for (uid, pod, attempt) that obeyed `last` last. `Rank()` = it obeyed nothing yet.

    `born`: the highest order that stood when this boot said that it is here; None = it has not yet, and acts in no round.
    """
    if head.uid != uid:
        return Decision(Verdict.OTHER_JOB)
    order = head.order
    rank = Rank(head.era, order.incarnation, order.seqNum)
    new_era = last.era not in ("", head.era)
    named = named_attempt(order, pod_index(pod))
    phase = order.exceptions.get(pod, order.phase)
    if named > attempt:
        return Decision(Verdict.SUPERSEDED, rank, phase)
    if named != attempt:
        return Decision(Verdict.NOT_FOR_US, rank, phase, new_era)
    if rank == last:
        return Decision(Verdict.REPEAT, rank, phase)
    if rank < last and not new_era:
        return Decision(Verdict.OLD, rank, phase)
    began = head.roundSeqNum or order.seqNum
    if phase in ROUNDS and (born is None or (born.era == head.era and began <= born.seq_num)):
        return Decision(Verdict.BEFORE, rank, phase, new_era)
    return Decision(Verdict.OBEY, rank, phase, new_era)
