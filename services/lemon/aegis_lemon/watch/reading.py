"""From the stream EVENTS into the collector: one reader per replica, which goes on where its files end. Reads; writes nothing but dead letters."""

from __future__ import annotations

import asyncio
import logging

from aegis_bus.connection import Bus, Stored
from aegis_bus.errors import BusError, Unreadable
from aegis_bus.jobstore import decode_head, decode_shard
from aegis_bus.metrics import DEAD_LETTERS
from aegis_bus.ordered import Gap, OrderedReader
from aegis_proto import shards, subjects
from aegis_proto.api import DeadLetter
from aegis_proto.hostlist import fold
from aegis_proto.lemon import SERVICE
from aegis_proto.messages import BadMessage, JobEvent, Verdict, decode, encode
from aegis_proto.metrics import Anomaly

from aegis_lemon import metrics

from .collector import Collector

log = logging.getLogger(__name__)

STREAM = "EVENTS"
HEARD = (
    subjects.job_event("*"),
    subjects.node_event("*", "anomaly"),
    subjects.verdict("lognexus", "job", "*"),
    subjects.verdict(SERVICE, "node", "*"),
)
AT_ONCE = 500
MAX_LETTER = 8192
MOST_LOOKS = 64
"""Jobs whose heads are read in one round."""
LATE = 600.0
"""Seconds after which the event of an end that is not there will not come."""


class Reading:
    """`run` until cancelled. `seq`: the last message taken; `ready` once all that was there has been read, `at_end` while nothing is to come."""

    def __init__(self, bus: Bus, collector: Collector, seq: int) -> None:
        self._bus, self.collector = bus, collector
        self.seq, self.ready, self.at_end = seq, False, False
        self._turn = 0
        self.news = asyncio.Event()

    async def run(self) -> None:
        end = await self._end()
        if self.seq > end:
            log.warning("EVENTS begins anew at %d, %d was due", end, self.seq)
            self.seq = 0
        self.ready = self.seq >= end
        async with OrderedReader(self._bus, STREAM, list(HEARD), start=self.seq + 1) as reader:
            while True:
                for item in await reader.read_along(AT_ONCE, 0.02, self._caught_up):
                    self._one(item)
                self._caught_up(reader.at_end)
                self.news.set()
                await asyncio.sleep(0)

    def _caught_up(self, at_end: bool) -> None:
        self.at_end = at_end
        self.ready = self.ready or at_end

    async def _end(self) -> int:
        while True:
            try:
                info = await self._bus.js_api(f"STREAM.INFO.{STREAM}")
                return int(info["state"]["last_seq"])
            except BusError as error:
                log.info("EVENTS cannot be read yet: %s", error)
                await asyncio.sleep(1.0)

    def _one(self, item: Stored | Gap) -> None:
        if isinstance(item, Gap):
            if item.first_seq > item.wanted:
                metrics.LOST.inc(item.first_seq - item.wanted)
            self.seq = item.first_seq - 1
            return
        self.seq = item.seq
        try:
            self._hear(item)
        except BadMessage as error:
            self._refuse(item, str(error))
        except Exception as error:  # a defect of ours must not keep the rest from being read
            log.exception("%s", item.subject)
            self._refuse(item, f"{type(error).__name__}: {error}")
        else:
            metrics.HEARD.inc()

    def _hear(self, item: Stored) -> None:
        stored = item.time_ms / 1000
        kind = subjects.token(item.subject, 1)
        if kind == "job":
            self.collector.hear_event(decode(JobEvent, item.data), stored)
        elif kind == "node":
            self.collector.hear_anomaly(subjects.token(item.subject, 2), decode(Anomaly, item.data).code, stored)
        elif subjects.token(item.subject, 2) == SERVICE:
            self.collector.hear_own(decode(Verdict, item.data))
        else:
            self.collector.hear_verdict(decode(Verdict, item.data))

    def _refuse(self, item: Stored, reason: str) -> None:
        metrics.REFUSED.inc()
        DEAD_LETTERS.labels(SERVICE).inc()
        letter = DeadLetter(STREAM, item.seq, item.subject, reason[:300], item.data[:MAX_LETTER], item.time_ms)
        self._bus.core(subjects.dlq(SERVICE, STREAM, "other"), encode(letter))

    async def look(self, now: float) -> None:
        """Where runs are whose event did not say it (an owner that died between the commit and the event), and whether the jobs of runs still go on.

        A bounded number each time, in turn. BusError.
        """
        jobs = list(self.collector.memory.open)
        self._turn = self._turn % len(jobs) if jobs else 0
        turn = jobs[self._turn : self._turn + MOST_LOOKS]
        self._turn += len(turn)
        for job in dict.fromkeys([*self.collector.unplaced[:MOST_LOOKS], *turn]):
            await self._look(job, now)

    async def _look(self, job: str, now: float) -> None:
        stored = await self._bus.get("CTL", subjects.job_state(job))
        run = self.collector.memory.open.get(job)
        if run is None:
            return
        if stored is None or stored.marker:
            if self.at_end and now - run.start > LATE:
                self.collector.lose(job, stored.time_ms / 1000 if stored is not None else now)
            return
        try:
            head = decode_head(job, stored.data)
            if head.phase.terminal:
                if self.at_end and now - stored.time_ms / 1000 > LATE:
                    self.collector.lose(job, stored.time_ms / 1000)
            elif not run.nodes:
                nodes: set[str] = set()
                for k in range(shards.count(head.workerNum)):
                    pods = decode_shard(head, k, await self._bus.get("CTL", subjects.job_pods(job, k)))
                    nodes |= {pod.node for pod in pods if pod.node}
                if nodes:
                    self.collector.place(job, fold(nodes))
        except Unreadable as error:
            log.warning("%s", error)
