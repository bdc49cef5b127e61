"""What follows a commit: job events, dead letters, progress. Effects only: nothing here decides.

Writes EVENTS `aegis.job.<j>.event` and `.progress`, DLQ, and one structured log line per transition.
An event is a rendering of a transition, and the head carries the last 16: so what a dead owner did not publish is published by the next one
(`heal`), and its id is derived from the transition, so that a repeat is a duplicate for the server and for every reader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime

import msgspec
import structlog
from aegis_bus.connection import Bus, Stored
from aegis_bus.crashpoint import crashpoint
from aegis_bus.errors import BusError
from aegis_bus.metrics import DEAD_LETTERS
from aegis_proto import subjects
from aegis_proto.api import DeadLetter, Progress
from aegis_proto.hostlist import fold
from aegis_proto.ids import pod_index
from aegis_proto.messages import AegisLog, BadMessage, JobEvent, decode, encode
from aegis_proto.phases import Phase
from aegis_proto.runs import RunInfo
from aegis_proto.state import Head, JobState, Transition
from aegis_proto.times import rfc3339

from aegis_master import metrics
from aegis_master.events import Note

log = structlog.get_logger("aegis.master")
MAX_DEAD_LETTER = 8192
MOST_EXCLUDED = 64
LONGEST_LIST = 32_768
"""Characters of a folded list of nodes: names without any order fold badly, and an event has its limit."""
"""Nodes that a job asked not to run on, as its events name them."""
UNORDERED = 10_000
"""Milliseconds by which a report taken after a deadline may be dated before it: a report has the date at which it was stored."""


def event_id(job: str, transition: Transition) -> str:
    """The same for the same transition, whoever renders it and however often."""
    return f"{job}-{hashlib.sha256(msgspec.json.encode(transition)).hexdigest()[:20]}"


def event_type(transition: Transition) -> str:
    """Stable code for tools: `counted`, `phase`, or the cause where the phase stays."""
    if transition.counted:
        return "counted"
    return "phase" if transition.phaseFrom is not transition.phaseTo else (transition.cause or "note")


def begins(transition: Transition) -> bool:
    """A run of the command begins."""
    return transition.phaseTo is Phase.RUN_COMMAND and transition.phaseFrom is not Phase.RUN_COMMAND


def run_info(state: JobState) -> RunInfo:
    """Where the run is and whose: what a history of nodes is made of."""
    spec = state.spec
    nodes = fold(pod.node for pod in state.pods() if pod.node)
    nodes = nodes if len(nodes) <= LONGEST_LIST else ""
    return RunInfo(nodes, spec.user or state.head.user, spec.family, spec.priority, spec.nprocPerNode, spec.cluster, spec.exclude[:MOST_EXCLUDED])


def job_event(head: Head, transition: Transition, run: RunInfo | None = None) -> JobEvent:
    """One transition as people and tools read it. `run`: of the run that it begins."""
    return JobEvent(
        eventId=event_id(head.job, transition),
        job=head.job,
        namespace=head.namespace,
        type=event_type(transition),
        time=rfc3339(transition.timeStamp),
        incarnation=transition.incarnation,
        seqNum=transition.seqNum,
        phase=transition.phaseTo.value,
        cause=transition.cause,
        pod=transition.podName,
        node=transition.nodeName,
        recoverCount=transition.recoverCount,
        retries=transition.retries,
        message=transition.message,
        messageZh=transition.messageZh,
        counted=transition.counted,
        run=run if begins(transition) else None,
    )


def note_event(head: Head, note: Note, n: int) -> JobEvent:
    """A note of the machine that is no transition (a mark, a moved count, plain)."""
    key = f"{head.job}|{head.incarnation}|{head.seqNum}|{head.cursor}|{n}|{note.kind}|{note.message}"
    pod = "" if note.index is None else f"w{note.index}"
    return JobEvent(
        eventId=f"{head.job}-n{hashlib.sha256(key.encode()).hexdigest()[:19]}",
        job=head.job,
        namespace=head.namespace,
        type=note.kind,
        time=rfc3339(note.at),
        incarnation=int(note.details.get("incarnation", head.incarnation)),
        seqNum=head.seqNum,
        phase=head.phase.value,
        cause=note.details.get("cause", note.kind),
        pod=pod,
        node=note.details.get("node", ""),
        recoverCount=head.recoverCount,
        message=note.message,
        messageZh=note.details.get("zh", ""),
        counted=note.counted,
    )


class Publisher:
    """The effects of commits, for all jobs of this replica."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus

    async def transitions(self, head: Head, transitions: Iterable[Transition], run: RunInfo | None = None, *, healed: bool = False) -> None:
        """Publish transitions, oldest first. BusError when one cannot be stored: the caller tries again, or the next owner heals."""
        for transition in transitions:
            await self._store(head, job_event(head, transition, run), healed)
            crashpoint("master.mid-event")

    async def notes(self, head: Head, notes: Iterable[Note]) -> None:
        """Publish notes that are no transition."""
        for n, note in enumerate(notes):
            await self._store(head, note_event(head, note, n), healed=False)

    async def _store(self, head: Head, event: JobEvent, healed: bool) -> None:
        await self.bus.publish(subjects.job_event(head.job), encode(event), msg_id=event.eventId, timeout=5.0)
        metrics.EVENTS.labels("yes" if healed else "no").inc()

    async def heal(self, head: Head) -> int:
        """Publish what the last owner committed and did not publish; how many events that were."""
        recent = head.recent
        if not recent:
            return 0
        last = await self.bus.get("EVENTS", subjects.job_event(head.job))
        start = 0
        if last is not None:
            try:
                known = decode(JobEvent, last.data)
            except BadMessage:
                known = None
            if known is not None:
                ids = [event_id(head.job, transition) for transition in recent]
                if known.eventId in ids:
                    start = ids.index(known.eventId) + 1
                else:  # a note was last: everything not clearly older than it; doubles carry the same id
                    noted = datetime.fromisoformat(known.time).timestamp() * 1000 - UNORDERED
                    start = next((i for i, t in enumerate(recent) if t.timeStamp >= noted), len(recent))
        missing = recent[start:]
        await self.transitions(head, missing, healed=True)
        return len(missing)

    def log_note(self, head: Head, note: Note) -> None:
        log.info("note", job=head.job, kind=note.kind, pod="" if note.index is None else f"w{note.index}", message=note.message, **note.details)

    def log(self, state: JobState, transition: Transition) -> None:
        """The structured line of the seed (AegisLog), beside what a person searches for."""
        ip = ""
        if transition.podName:
            try:
                ip = state.pod(pod_index(transition.podName)).ip
            except (ValueError, IndexError):
                ip = ""
        line = AegisLog(
            PodName=transition.podName or "master",
            PodIP=ip,
            NodeName=transition.nodeName,
            TimeStamp=transition.timeStamp,
            Phase=transition.phaseTo.value,
            Message=transition.message,
        )
        log.info(
            "transition",
            job=state.head.job,
            namespace=state.head.namespace,
            **msgspec.to_builtins(line),
            phase_from=transition.phaseFrom.value,
            seq_num=transition.seqNum,
            incarnation=transition.incarnation,
            recover_count=transition.recoverCount,
            retries=transition.retries,
            cause=transition.cause,
            counted=transition.counted,
        )

    async def dead_letter(self, job: str, item: Stored, reason: str) -> None:
        """Keep what did not decode, once. A dead-letter stream that is full, refuses or does not answer costs the letter, never the job's turn."""
        crashpoint("master.dlq-before")
        letter = DeadLetter("REPORTS", item.seq, item.subject, reason[:300], item.data[:MAX_DEAD_LETTER], item.time_ms)
        log.warning("message refused", job=job, subject=item.subject, seq=item.seq, reason=reason[:300])
        DEAD_LETTERS.labels("master").inc()
        try:
            await self.bus.publish(subjects.dlq("master", "REPORTS", job), encode(letter), msg_id=f"dlq-REPORTS-{item.seq}", timeout=5.0)
        except BusError as error:
            log.error("dead letter not stored", job=job, seq=item.seq, error=str(error))
        crashpoint("master.dlq-after")

    async def progress(self, progress: Progress) -> None:
        """At most every 5 s and only when it changed (the owner sees to that). A lost one does not matter."""
        try:
            await self.bus.publish(subjects.job_progress(progress.job), encode(progress), timeout=2.0)
        except BusError as error:
            log.debug("progress not stored", job=progress.job, error=str(error))
