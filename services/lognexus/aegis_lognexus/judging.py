"""A verdict for each counted failure, and one at the mark of a run that hangs: hear of it (EVENTS), let the last lines and dumps come, gather what is
there, decide, tell.

Only the replica that keeps the job's lines judges. The verdict of an incarnation has one name: it is told once, whoever tells it and however often.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aegis_bus.connection import Bus, Stored
from aegis_bus.errors import BusError
from aegis_bus.metrics import VERDICTS
from aegis_bus.ordered import Gap, OrderedReader
from aegis_proto import subjects
from aegis_proto.logs import SERVICE
from aegis_proto.messages import BadMessage, Era, Fact, JobEvent, Verdict, decode, encode
from aegis_proto.phases import FactKind

from aegis_lognexus.across import compare
from aegis_lognexus.gathering import STREAM, gathered, labels_of, verdicts_of
from aegis_lognexus.intake import Intake, Reading
from aegis_lognexus.share import Shares
from aegis_lognexus.verdict import decide, harmless, verdict_id
from aegis_lognexus.where import Places

log = logging.getLogger(__name__)

ALL = "aegis.job.*.event"
OLD = 3600.0
"""Seconds: a failure that is older when it is first heard of is not judged any more."""
PATIENCE = 60.0
"""Seconds for which the failure of another replica's job is watched until somebody has judged it."""
CATCH_UP = 20.0


@dataclass(eq=False)
class Due:
    """A failure, or a mark, that waits for its verdict: `at` when it is looked at next, `until` how long another replica's is watched (loop time);
    `time_ms` when it was stored."""

    seq: int
    event: JobEvent
    time_ms: int
    at: float
    until: float
    hang: bool = False

    @property
    def id(self) -> str:
        return verdict_id(self.event.job, self.event.incarnation, hang=self.hang)


class Judging:
    """`run` until cancelled. `done` is told the sequence of EVENTS up to which everything is judged. `hang_settle`: from a mark to its verdict, s."""

    def __init__(
        self,
        bus: Bus,
        jobs: Path,
        intake: Intake,
        shares: Shares,
        *,
        settle: float,
        hang_settle: float,
        start: int,
        done: Callable[[int], None],
        era: Callable[[], Era],
    ) -> None:
        self._bus, self._jobs, self._intake, self._shares, self._done = bus, jobs, intake, shares, done
        self._settle, self._hang_settle = settle, hang_settle
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
        hang = event.type == "mark" and event.cause == "hang"
        if not (hang or (event.counted and event.type == "counted")) or time.time() - item.time_ms / 1000 >= OLD:
            return
        at = time.monotonic() + (self._hang_settle if hang else self._settle)
        due = Due(item.seq, event, item.time_ms, at, at + PATIENCE, hang)
        if all(due.id != other.id for other in self._waiting):  # the first mark of a run dates its verdict
            self._waiting.append(due)

    async def _judge_due(self) -> None:
        """Those whose lines had time to come. Another replica's are watched until they are judged: it may be gone."""
        for due in [due for due in self._waiting if due.at <= time.monotonic()]:
            try:
                if await self._bus.get(STREAM, subjects.verdict(SERVICE, "job", due.id)) is not None:
                    self._waiting.remove(due)
                elif self._shares.mine(due.event.job):
                    await self._judge(due)
                    self._waiting.remove(due)
                elif due.until < time.monotonic():
                    log.warning("nobody told the verdict %s", due.id)
                    self._waiting.remove(due)
                else:
                    due.at = time.monotonic() + 2.0
            except BusError as error:
                log.warning("verdict %s not told yet: %s", due.id, error)
                due.at = time.monotonic() + 2.0
            except Exception:
                log.exception("no verdict %s", due.id)
                self._waiting.remove(due)

    async def _judge(self, due: Due) -> None:
        event = due.event
        behind = not await self._intake.caught_up(CATCH_UP)
        failure, there = await gathered(self._bus, self._jobs, event, due.time_ms, behind=behind, hang=due.hang)
        if due.hang and (there is None or there.head.incarnation != event.incarnation or not there.head.tally.hung):
            return  # it goes on, or has been counted: that has a verdict of its own
        finding = await asyncio.to_thread(decide, failure)
        verdict = await self._with_history(finding.message(int(time.time() * 1000)), there)
        if there is not None and not there.head.phase.terminal:
            await self._tell_master(verdict, there)
        subject = subjects.verdict(SERVICE, "job", verdict.id)
        await self._bus.publish(subject, encode(verdict), msg_id=self._era().dedup_id(f"verdict|{verdict.id}"))
        VERDICTS.labels(SERVICE, verdict.cause).inc()
        log.info("verdict %s: %s", verdict.id, verdict.sentence)

    async def _with_history(self, verdict: Verdict, there: Places | None) -> Verdict:
        """With what it shares with earlier failures of its job."""
        earlier = await verdicts_of(self._bus, verdict.job, verdict.incarnation - 1)
        if not earlier:
            return verdict
        suspects = [node for each in (*earlier, verdict) for node in each.nodes]
        labels = await labels_of(self._bus, [*suspects, *(there.nodes if there is not None else ())]) if len(suspects) > 1 else {}
        history = tuple(harmless(text) for text in compare(verdict, earlier, labels))
        return msgspec.structs.replace(verdict, history=history)

    async def _tell_master(self, verdict: Verdict, there: Places) -> None:
        """As a fact, before the verdict itself: who tells it again after a crash is a double for the stream."""
        settings = {"id": verdict.id, "cause": verdict.cause, "incarnation": str(verdict.incarnation), "zh": verdict.sentenceZh[:500]}
        fact = Fact(FactKind.VERDICT, there.head.uid, at=verdict.at, message=verdict.sentence[:500], who=SERVICE, settings=settings)
        await self._bus.publish(subjects.fact(verdict.job, "job"), encode(fact), msg_id=self._era().dedup_id(f"verdict fact|{verdict.id}"))
