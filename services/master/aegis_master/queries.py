"""What the master answers about jobs: renderings of heads, states and events. Reads CTL and EVENTS; writes nothing.

Every answer carries the sequence it knows, so that a watcher can subscribe first, ask second, and skip views up to it.
"""

from __future__ import annotations

import msgspec
import structlog
from aegis_bus.connection import Bus
from aegis_bus.errors import Unreadable
from aegis_bus.jobstore import JobStore
from aegis_bus.ordered import Gap, OrderedReader
from aegis_proto import VERSION, subjects
from aegis_proto.api import (
    Events,
    EventsRequest,
    JobDetail,
    JobRequest,
    Jobs,
    JobsRequest,
    JobSummary,
    Progress,
    Replica,
    RequestRefused,
    Status,
    StoredEvent,
    WorkerView,
)
from aegis_proto.ids import is_id, pod_name
from aegis_proto.messages import BadMessage, JobEvent, decode
from aegis_proto.phases import LedgerState, OrderPhase, Phase
from aegis_proto.state import Head, JobState, Pod

from aegis_master import story
from aegis_master.heads import Heads
from aegis_master.ownership import Ownership

log = structlog.get_logger("aegis.master.queries")
MAX_JOBS = 300
MAX_WORKERS = 500
MAX_EVENTS = 300
MAX_REPLY = 200_000
"""Bytes of one answer; the bus takes 256 KB."""


class Queries:
    """Answers from this replica's picture of all heads, or straight from the store where one job is asked for."""

    def __init__(self, bus: Bus, store: JobStore, heads: Heads, ownership: Ownership) -> None:
        self.bus = bus
        self.store = store
        self.heads = heads
        self.ownership = ownership

    async def jobs(self, namespace: str, request: JobsRequest) -> Jobs:
        """One page, by job id."""
        limit = max(1, min(request.limit, MAX_JOBS))
        items: list[JobSummary] = []
        seq = self.heads.seq
        for job in sorted(self.heads):
            if job <= request.after:
                continue
            _, head = self.heads.get(job)
            if head is None or (namespace and head.namespace != namespace) or (head.phase.terminal and not request.all):
                continue
            if (request.phase and head.phase.value != request.phase) or (request.user and head.user != request.user):
                continue
            if len(items) == limit:
                return Jobs(tuple(items), seq, more=True)
            items.append(summary(head, self.heads.progress.get(job), self.ownership.shared.clock.now_ms()))
        return Jobs(tuple(items), seq)

    async def job(self, namespace: str, request: JobRequest) -> JobDetail:
        """One job, read from the store now."""
        try:
            loaded = await self.store.load(request.job) if is_id(request.job) else None
        except Unreadable as error:
            raise RequestRefused("E108", f"E108 job {request.job} cannot be read here: {error}", "upgrade the master replicas") from None
        if loaded is None or (namespace and loaded.state.head.namespace != namespace):
            where = f' in namespace "{namespace}"' if namespace else ""
            raise RequestRefused("E104", f'E104 no job "{request.job[:60]}"{where}', "aegis job ls --all")
        state = loaded.state
        head = state.head
        first = max(0, request.firstWorker)
        last = min(head.workerNum, first + MAX_WORKERS)
        workers = tuple(worker(i, state.pod(i)) for i in range(first, last)) if request.workers else ()
        return JobDetail(
            summary=summary(head, self.heads.progress.get(head.job), self.ownership.shared.clock.now_ms()),
            command=state.spec.command,
            workers=workers,
            transitions=head.recent,
            errorNodes=head.errorNodes,
            retries=story.retries(state.shards),
            seqNum=head.seqNum,
            cursor=head.cursor,
            seq=loaded.seq,
            ledger=totals(head, self.ownership.shared.clock.now_ms()),
            waiting=waiting(state),
            moreWorkers=request.workers and last < head.workerNum,
        )

    async def events(self, namespace: str, request: EventsRequest) -> Events:
        """Events of one job after `afterSeq`, oldest first, at most a page; the newest page when it is 0 (`more`: there are older ones), the first
        page when it is -1."""
        found = await self.store.head(request.job) if is_id(request.job) else None
        if found is None or (namespace and found[0].namespace != namespace):
            raise RequestRefused("E104", f'E104 no job "{request.job[:60]}"', "aegis job ls --all")
        subject = subjects.job_event(request.job)
        last = await self.bus.get("EVENTS", subject)
        if last is None or last.seq <= request.afterSeq:
            return Events((), max(request.afterSeq, last.seq if last else 0))
        limit = max(1, min(request.limit, MAX_EVENTS))
        items: list[StoredEvent] = []
        size = 0
        older = False
        async with OrderedReader(self.bus, "EVENTS", [subject], start=max(1, request.afterSeq + 1)) as reader:
            async for item in reader:
                if isinstance(item, Gap):
                    continue
                try:
                    items.append(StoredEvent(item.seq, decode(JobEvent, item.data)))
                    size += len(item.data)
                except BadMessage as error:  # of a newer version: the others are shown
                    log.info("event not readable here", job=request.job, seq=item.seq, error=str(error))
                if request.afterSeq and (len(items) >= limit or size > MAX_REPLY):
                    return Events(tuple(items), items[-1].seq, more=items[-1].seq < last.seq)
                while len(items) > limit or size > MAX_REPLY:
                    size -= len(msgspec.json.encode(items.pop(0).event))
                    older = True
                if item.seq >= last.seq:
                    break
        return Events(tuple(items), last.seq, more=older)

    def status(self, namespace: str, used: float) -> Status:
        """The control plane as this replica sees it; jobs only of the namespace when one is given."""
        jobs: dict[str, int] = {}
        owned: dict[str, int] = {}
        for _, _, head in self.heads.readable():
            if namespace and head.namespace != namespace:
                continue
            jobs[head.phase.value] = jobs.get(head.phase.value, 0) + 1
            if not head.phase.terminal:
                owned[head.owner.replica] = owned.get(head.owner.replica, 0) + 1
        replicas = tuple(
            Replica(lease.replica, lease.service, lease.host, lease.pid, owned.get(lease.replica, 0))
            for lease in sorted(self.ownership.live.values(), key=lambda lease: lease.replica)
        )
        shared = self.ownership.shared
        return Status(VERSION, shared.era(), shared.replica, replicas, jobs, self.ownership.unowned, round(used, 4), self.heads.seq)


def totals(head: Head, now: int) -> dict[str, int]:
    """Milliseconds per state of the ledger, up to `now` while the job goes on."""
    found = dict(head.ledger.totals)
    if head.ledger.since and not head.phase.terminal:
        state = head.ledger.state.value
        found[state] = found.get(state, 0) + max(0, now - head.ledger.since)
    return found


def ettr(head: Head, now: int) -> float:
    """Productive share of all time so far, the queue included; -1 before the command ran first."""
    spent = totals(head, now)
    whole = sum(spent.values())
    return round(spent.get(LedgerState.PRODUCTIVE.value, 0) / whole, 4) if head.started and whole else -1.0


def summary(head: Head, progress: Progress | None, now: int) -> JobSummary:
    """One line of `aegis job ls`. `now` in ms since 1970."""
    last = head.recent[-1] if head.recent else None
    counted = next((t for t in reversed(head.recent) if t.counted), None)
    step = progress.step if progress is not None and progress.incarnation == head.incarnation else head.step
    return JobSummary(
        job=head.job,
        name=head.name,
        namespace=head.namespace,
        phase=head.phase.value,
        workers=head.workerNum,
        present=head.tally.filled,
        recoverCount=head.recoverCount,
        maxRetry=head.maxRetry,
        incarnation=head.incarnation,
        step=step,
        lastReason=counted.cause if counted else "",
        mode=head.mode.value,
        failedReason=head.failedReason.value if head.failedReason else "",
        suspended=head.suspended,
        owner=head.owner.replica,
        user=head.user,
        gpuType=head.gpuType,
        createdAt=head.createdAt,
        phaseSince=last.timeStamp if last else head.createdAt,
        exitCode=head.exitCode,
        errorNodes=head.errorNodesTotal,
        uid=head.uid,
        ettr=ettr(head, now),
        checkpointAt=head.checkpointAt,
    )


def worker(index: int, pod: Pod) -> WorkerView:
    """One line of `aegis job show --workers`."""
    state = pod.innerPhase.value
    if not pod.present:
        state = "empty"
    elif pod.toQuit:
        state = "leaving"
    elif pod.suspect:
        state = "suspect"
    return WorkerView(
        pod=pod_name(index),
        node=pod.node,
        ip=pod.ip,
        state=state,
        finished=pod.finished,
        retries=pod.retries,
        attempt=pod.attempt,
        reason=pod.reason,
        mark=pod.mark,
        exitCode=pod.exitCode,
        ts=pod.ts,
    )


def waiting(state: JobState) -> str:
    """Why the command is not running, in one sentence; "" when it is, or when the job has ended."""
    head = state.head
    if head.phase.terminal or head.phase is Phase.RUN_COMMAND:
        return ""
    if head.suspended:
        return f"suspended; aegis job resume {head.job}"
    missing = [pod_name(i) for i, pod in enumerate(state.pods()) if not pod.present]
    if missing:
        names = " ".join(missing[:8]) + (" ..." if len(missing) > 8 else "")
        return f"{len(missing)} of {head.workerNum} workers are not there yet: {names}"
    if head.order.phase in (OrderPhase.BOOTCHECK, OrderPhase.TROUBLESHOOT):
        open_ = [pod_name(i) for i, pod in enumerate(state.pods()) if not pod.finished]
        names = " ".join(open_[:8]) + (" ..." if len(open_) > 8 else "")
        return f"checks are running on {len(open_)} of {head.workerNum} workers: {names}"
    leaving = [pod_name(i) for i, pod in enumerate(state.pods()) if pod.toQuit]
    return f"waiting for {' '.join(leaving[:8])} to leave" if leaving else ""
