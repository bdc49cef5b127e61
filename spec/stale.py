"""Events that are none of the present: of another attempt, boot, incarnation or round, or of a deadline that does not stand. All change nothing.

What `aegis_master` drops of these is all that ties its counts to the assumption of `AegisPhase`, that such events never get there: so each is tried
in every state, under the name of no process (`mapping.SILENT`). Reads `aegis_proto` and `aegis_master`; writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from aegis_master import events, places
from aegis_proto.phases import LostReason, Phase
from aegis_proto.state import Head, JobState, Pod

FOREIGN = "x"
"""A boot that no place has had."""
DEADLINES = ("placing", "round", "hang", "pending")
LATE = (LostReason.GPU_LOST, LostReason.PREEMPTED)
"""What an Error of a stopped run may say that moves its count, or takes it back."""


def stale(state: JobState) -> Iterator[events.Event]:
    """Every stale event that is worth trying here. No field of the model may follow from any of them."""
    head = state.head
    for i, pod in enumerate(state.pods()):
        who = (i, pod.attempt, pod.boot, head.incarnation)
        answers: list[Any] = [events.Finished(*who, head.seqNum)]
        answers += [events.Errored(*who, head.seqNum, reason=reason) for reason in (LostReason.ERROR, LostReason.PREEMPTED)]
        for event in answers:
            yield from _displaced(event, head, pod)
            yield from _misnumbered(event, head.incarnation, head.roundSeqNum - 1, head.seqNum + 1)
        if head.phase in (Phase.RESTARTING, Phase.TROUBLESHOOTING) and head.runSeqNum:
            yield from _late(head, i, pod)
        for event in (events.Marked(*who), events.Marked(*who, cleared=True), events.Stopped(*who), events.Stopped(*who, clean=False)):
            yield from _displaced(event, head, pod)
        for incarnation in (head.incarnation - 1, head.incarnation + 1):
            for event in (events.Marked(*who), events.Marked(*who, kind="slow"), events.Marked(*who, cleared=True), events.Stopped(*who)):
                yield replace(event, incarnation=incarnation)
        yield events.Stopped(*who)
        yield from _of_another_attempt(i, pod)
    yield from _of_the_job(head)


def _displaced(event: Any, head: Head, pod: Pod) -> Iterator[events.Event]:
    """The same words out of another attempt, or another process of the place."""
    before = pod.oldBoot or FOREIGN
    yield replace(event, attempt=pod.attempt - 1, boot=before)
    yield replace(event, attempt=pod.attempt - 1)
    yield replace(event, attempt=pod.attempt + 1)
    yield replace(event, boot=before)


def _misnumbered(event: Any, incarnation: int, before: int, after: int) -> Iterator[events.Event]:
    """The same words about another run, or another round: `before` and `after` are the numbers next to the legal ones."""
    yield replace(event, incarnation=incarnation - 1)
    yield replace(event, incarnation=incarnation + 1)
    yield replace(event, seq_num=before)
    yield replace(event, seq_num=after)


def _late(head: Head, i: int, pod: Pod) -> Iterator[events.Event]:
    """Errors of the run that was stopped last, which might move its count or take it back, but for one thing that is wrong."""
    for reason in LATE:
        run = events.Errored(i, pod.attempt, pod.boot, head.incarnation, head.runSeqNum, reason=reason, at=1)
        yield from _displaced(run, head, pod)
        for incarnation in (head.incarnation - 1, head.incarnation + 1):
            yield replace(run, incarnation=incarnation)
        yield replace(run, seq_num=head.runSeqNum - 1)
        yield replace(run, at=0)
        yield replace(run, at=head.stopOrderAt + 1)


def _of_another_attempt(i: int, pod: Pod) -> Iterator[events.Event]:
    """What the platform, people and agents say of an attempt before the present one, or after it. That the one before is gone is kept, no more."""
    for attempt in (pod.attempt - 1, pod.attempt + 1):
        yield events.PodLost(i, attempt, LostReason.KILLED, at=1, gone=attempt < pod.attempt, node="n", blame="notStarted")
        yield events.PodLost(i, attempt, LostReason.PREEMPTED, at=1)
        yield events.PodLost(i, attempt, LostReason.KILLED, exit_code=0)
        yield events.PodGone(i, attempt)
        yield events.PodGone(i, attempt, preempted=True)
        yield events.PodRunning(i, attempt)
        yield events.SuspectChanged(i, attempt, not pod.suspect)
        yield events.PlainFact(i, attempt)
        yield events.PlainExit(i, attempt, 0)
        yield events.PlainExit(i, attempt, 3)
    yield events.PodReady(i, pod.attempt - 1, FOREIGN)
    yield events.PodReady(i, pod.attempt + places.AHEAD + 1, FOREIGN)
    yield events.PodReady(i, pod.attempt, "")
    for boot in filter(None, (pod.boot, pod.oldBoot)):
        yield events.PodReady(i, pod.attempt, boot)


def _of_the_job(head: Head) -> Iterator[events.Event]:
    for incarnation in (head.incarnation - 1, head.incarnation + 1):
        yield events.Progressed(incarnation, 5)
        yield events.Checkpointed(incarnation, 1)
    stands = head.deadline
    for kind in DEADLINES:
        if stands is None or stands.kind != kind:
            yield events.DeadlinePassed(kind, head.seqNum, head.incarnation)
    if stands is not None:
        for by in (-1, 1):
            yield events.DeadlinePassed(stands.kind, stands.seqNum + by, stands.incarnation)
            yield events.DeadlinePassed(stands.kind, stands.seqNum, stands.incarnation + by)
    yield events.EraChanged(head.era)
    yield events.PodLost(head.workerNum, 1)
    yield events.Finished(-1, 1, FOREIGN, head.incarnation, head.seqNum)
