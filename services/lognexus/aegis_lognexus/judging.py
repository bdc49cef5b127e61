"""A verdict for each counted failure: hear of it (EVENTS), let the last lines come, gather what is there, decide, tell.

Only the replica that keeps the job's lines judges. The verdict of an incarnation has one name: it is told once, whoever tells it and however often.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aegis_bus.connection import Bus, Stored
from aegis_bus.errors import BusError, Unreadable
from aegis_bus.ordered import Gap, OrderedReader
from aegis_parsers.causes import Line, classify_lines
from aegis_proto import subjects
from aegis_proto.logs import SERVICE
from aegis_proto.messages import BadMessage, CheckResult, Era, Fact, JobEvent, Verdict, decode, encode
from aegis_proto.phases import FactKind

from aegis_lognexus import metrics
from aegis_lognexus.dumps import flight_report
from aegis_lognexus.evidence import Check, Failure, Log, Loss, Worker
from aegis_lognexus.firstlayer import node_events, snapshots
from aegis_lognexus.flight import Report
from aegis_lognexus.intake import Intake, Reading
from aegis_lognexus.links import bad_links
from aegis_lognexus.share import Shares
from aegis_lognexus.store import Asked, ask
from aegis_lognexus.store.matching import Question
from aegis_lognexus.verdict import decide, verdict_id
from aegis_lognexus.where import Places, local_ranks, places

log = logging.getLogger(__name__)

STREAM = "EVENTS"
ALL = "aegis.job.*.event"
MAX_LINES = 100_000
"""Lines of an incarnation that are read for its verdict, the last ones."""
PER_LOG = 400
"""Findings of one rank that are weighed: the first ones."""
OLD = 3600.0
"""Seconds: a failure that is older when it is first heard of is not judged any more."""
PATIENCE = 60.0
"""Seconds for which the failure of another replica's job is watched until somebody has judged it."""
CATCH_UP = 20.0
CHECK = re.compile(r"(w\d+) failed ([\w-]{1,64}): (.*)", re.S)
"""How the master's note of a failed check reads."""


@dataclass(eq=False)
class Due:
    """A failure that waits for its verdict: `at` when it is looked at next, `until` how long another replica's is watched (loop time)."""

    seq: int
    event: JobEvent
    at: float
    until: float


class Judging:
    """`run` until cancelled. `done` is told the sequence of EVENTS up to which everything is judged."""

    def __init__(
        self,
        bus: Bus,
        jobs: Path,
        intake: Intake,
        shares: Shares,
        *,
        settle: float,
        start: int,
        done: Callable[[int], None],
        era: Callable[[], Era],
    ) -> None:
        self._bus, self._jobs, self._intake, self._shares, self._settle, self._done = bus, jobs, intake, shares, settle, done
        self._era = era
        self._start = start
        self._waiting: list[Due] = []

    async def run(self) -> None:
        async with OrderedReader(self._bus, STREAM, [ALL], start=self._start + 1) as reader:
            reading = Reading(reader)
            heard = self._start
            try:
                while True:
                    for item in await reading.items(0.5):
                        if isinstance(item, Gap):
                            if item.first_seq < item.wanted:  # another, younger stream
                                self._waiting.clear()
                                heard = 0
                            continue
                        heard = item.seq
                        self._hear(item)
                    await self._judge_due()
                    self._done(min([heard, *(due.seq - 1 for due in self._waiting)]))
            finally:
                reading.close()

    def _hear(self, item: Stored) -> None:
        try:
            event = decode(JobEvent, item.data)
        except BadMessage as error:
            log.warning("%s: %s", item.subject, error)
            return
        if event.counted and event.type == "counted" and time.time() - item.time_ms / 1000 < OLD:
            now = time.monotonic()
            self._waiting.append(Due(item.seq, event, now + self._settle, now + self._settle + PATIENCE))

    async def _judge_due(self) -> None:
        """Those whose lines had time to come. Another replica's are watched until they are judged: it may be gone."""
        for due in [due for due in self._waiting if due.at <= time.monotonic()]:
            what = f"{due.event.job} incarnation {due.event.incarnation}"
            try:
                if await self._told(due.event):
                    self._waiting.remove(due)
                elif self._shares.mine(due.event.job):
                    await self._judge(due.event)
                    self._waiting.remove(due)
                elif due.until < time.monotonic():
                    log.warning("nobody told a verdict of %s", what)
                    self._waiting.remove(due)
                else:
                    due.at = time.monotonic() + 2.0
            except BusError as error:
                log.warning("verdict of %s not told yet: %s", what, error)
                due.at = time.monotonic() + 2.0
            except Exception:
                log.exception("no verdict of %s", what)
                self._waiting.remove(due)

    async def _told(self, event: JobEvent) -> bool:
        return await self._bus.get(STREAM, subjects.verdict(SERVICE, "job", verdict_id(event.job, event.incarnation))) is not None

    async def _judge(self, event: JobEvent) -> None:
        behind = not await self._intake.caught_up(CATCH_UP)
        try:
            there = await places(self._bus, event.job)
        except Unreadable as error:
            log.warning("%s", error)
            there = None
        events = await self._events(event.job)
        logs = await asyncio.to_thread(read_logs, self._jobs / event.job, event.incarnation)
        flight = await flight_report(self._bus, event.job, event.incarnation)
        failure = gather(event, events, there, logs, behind=behind, flight=flight)
        failure = replace(failure, links=await bad_links(self._bus, event.job) or ())
        seen = await snapshots(self._bus, event.job, there.nodes if there is not None else ())
        failure = replace(failure, events=node_events(seen, event.incarnation))
        verdict = decide(failure).message(int(time.time() * 1000))
        if there is not None and not there.head.phase.terminal:
            await self._tell_master(verdict, there)
        subject = subjects.verdict(SERVICE, "job", verdict.id)
        await self._bus.publish(subject, encode(verdict), msg_id=self._era().dedup_id(f"verdict|{verdict.id}"))
        metrics.VERDICTS.labels(SERVICE, verdict.cause).inc()
        log.info("verdict of %s incarnation %d: %s", event.job, event.incarnation, verdict.sentence)

    async def _tell_master(self, verdict: Verdict, there: Places) -> None:
        """As a fact, before the verdict itself: who tells it again after a crash is a double for the stream."""
        settings = {"id": verdict.id, "cause": verdict.cause, "incarnation": str(verdict.incarnation), "zh": verdict.sentenceZh[:500]}
        fact = Fact(FactKind.VERDICT, there.head.uid, at=verdict.at, message=verdict.sentence[:500], who=SERVICE, settings=settings)
        await self._bus.publish(subjects.fact(verdict.job, "job"), encode(fact), msg_id=self._era().dedup_id(f"verdict fact|{verdict.id}"))

    async def _events(self, job: str) -> list[JobEvent]:
        """What is stored about the job, in order."""
        found: list[JobEvent] = []
        async with OrderedReader(self._bus, STREAM, [subjects.job_event(job)]) as reader:
            reading = Reading(reader)
            try:
                while items := await reading.items(2.0):
                    for item in items:
                        if isinstance(item, Stored):
                            try:
                                found.append(decode(JobEvent, item.data))
                            except BadMessage:
                                continue
                    if not reader.pending:
                        break
            finally:
                reading.close()
        return found


def read_logs(folder: Path, incarnation: int) -> tuple[tuple[Log, ...], bool]:
    """(the classified lines of every rank in this incarnation, were there more than were read)."""
    lines: dict[tuple[str, int], list[str]] = defaultdict(list)
    question = Question(incarnation=incarnation, kinds=("out", "err"))
    page = ask(folder, Asked(question, tail=MAX_LINES, budget=20.0, max_bytes=64 << 20, most=MAX_LINES))
    for line in page.lines:
        lines[line.worker, line.rank].append(line.message)
    return tuple(Log(pod, rank, first(classify_lines(texts)), len(texts)) for (pod, rank), texts in sorted(lines.items())), page.more


def first(found: Sequence[Line]) -> tuple[Line, ...]:
    """The first findings; of symptoms, which repeat by the thousand, fewer."""
    strong = [line for line in found if line.strength != "symptom"][:PER_LOG]
    symptoms = [line for line in found if line.strength == "symptom"][:PER_LOG]
    return tuple(sorted([*strong, *symptoms], key=lambda line: line.n))


def gather(
    event: JobEvent,
    events: Sequence[JobEvent],
    there: Places | None,
    logs: tuple[tuple[Log, ...], bool],
    *,
    behind: bool = False,
    flight: Report | None = None,
) -> Failure:
    """All evidence about one counted failure. `events`: of the job, in order. `behind`: lines are still on their way."""
    mine = [each for each in events if each.incarnation == event.incarnation]
    checks = [
        Check(found[1], each.node, CheckResult(found[2], False, found[3][:300]))
        for each in mine
        if each.type == "check" and (found := CHECK.fullmatch(each.message)) is not None
    ]
    losses = [
        Loss(each.pod, each.node, each.cause, each.message, platform=each.cause == "nodeLost")
        for each in mine
        if each.pod and each.cause and each.type != "check"
    ]
    missing = ["node events: no daemon tells them in this release"]
    workers: tuple[Worker, ...] = ()
    lines, more = logs
    if there is None:
        missing.append("the job's state is gone: which rank was where is not known")
    else:
        each_node = local_ranks((each.pod, each.rank) for each in lines)
        nodes = {loss.pod: loss.node for loss in losses if loss.node}
        workers = tuple(
            Worker(f"w{i}", nodes.get(f"w{i}") or node, tuple(range(i * each_node, (i + 1) * each_node))) for i, node in enumerate(there.nodes)
        )
    if behind:
        missing.append("lines that had not been read when it was judged")
    if more:
        missing.append(f"lines before the last {MAX_LINES} of the incarnation")
    return Failure(event.job, event.incarnation, 0, workers, lines, (), tuple(checks), tuple(losses), flight, tuple(missing))
