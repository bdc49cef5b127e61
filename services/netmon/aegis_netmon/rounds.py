"""Round after round: bring the picture up to date, and tell what changed. Only the replica that holds the lease tells.

Writes `aegis.verdict.netmon.{link,job}.<id>`, and as facts to the owners of jobs what their ports say of a failure, and bad links they use for sure.
What was told last is read from there when this replica begins to tell, and what the bus did not take is told in the next round. After a start a link
is not called well before its counters have been seen for a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.metrics import VERDICTS
from aegis_bus.settings import NetmonSettings
from aegis_proto import subjects
from aegis_proto.messages import BadMessage, Era, Fact, Verdict, decode, encode
from aegis_proto.net import SERVICE, LinkInfo

from aegis_netmon import metrics, transport, verdicts
from aegis_netmon.incidents import Incidents, of_part, part_id
from aegis_netmon.picture import Line, Picture
from aegis_netmon.verdicts import Told
from aegis_netmon.watch import ALARMS, ORDER

log = logging.getLogger(__name__)

SETTLE = 300.0
"""Seconds after a start in which no link is called well again: the window of its counters."""
FORGET_EVERY = 3600.0
SURE = 0.5
"""Confidence of a verdict on a job's network from which its owner is told: it uses the link, and not perhaps."""


class Rounds:
    """`run` until cancelled. `ready`: whether this replica may tell now."""

    def __init__(self, bus: Bus, picture: Picture, incidents: Incidents, settings: NetmonSettings, era: Era) -> None:
        self._bus, self._picture, self.incidents, self._settings, self._era = bus, picture, incidents, settings, era
        self.ready: Callable[[], bool] = lambda: False
        self._told: dict[str, Told] = {}
        self._told_jobs: dict[str, Told] = {}
        self._read = False
        self._begun = time.time()
        self._forgot = time.monotonic()
        self._wake = asyncio.Event()
        self.common = ""
        """What incidents have in common, in a sentence."""

    def wake(self) -> None:
        """After a sweep: the next round is now."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            now = time.time()
            with metrics.ROUND.time():
                self._picture.round(now)
            self._measure(now)
            if not self.ready():
                self._read = False  # another may tell meanwhile
            else:
                try:
                    await self._tell(now)
                    await self._tell_incidents(now)
                    await self._tell_common(now)
                except BusError as error:
                    log.warning("verdicts not told yet: %s", error)
            if time.monotonic() - self._forgot > FORGET_EVERY:
                self._forgot = time.monotonic()
                self._picture.hosts.forget_old(now, self._settings.forget)
            self._wake.clear()
            try:
                async with asyncio.timeout(self._settings.round):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _measure(self, now: float) -> None:
        picture = self._picture
        states = Counter(line.state for line in picture.lines.values())
        for state in ORDER:
            metrics.LINKS.labels(state).set(states.get(state, 0))
        silent = len(picture.hosts.silent_nodes(now))
        metrics.NODES.labels("silent").set(silent)
        metrics.NODES.labels("telling").set(len(picture.hosts.of_node) - silent)
        metrics.COLLECTOR.set(self.ready())

    async def _tell(self, now: float) -> None:
        if not self._read:
            self._told, self._told_jobs = await self._read_told("link"), await self._read_told("job")
            self._read = True
            self._begun = now if self._told or self._told_jobs else 0.0
        picture = self._picture
        bad: list[LinkInfo] = []
        for key, line in picture.lines.items():
            told = self._told.get(key)
            if line.state not in ALARMS and (told is None or told.state not in ALARMS or self._settling(line, now)):
                continue
            info = picture.info(line, now)
            if line.state in ALARMS:
                bad.append(info)
            if (new := verdicts.news(told, info)) is not None:
                await self._publish(subjects.verdict(SERVICE, "link", key), verdicts.of_link(info, int(now * 1000)))
                self._told[key] = new
        for key in verdicts.closed(self._told, picture.lines) if now - self._begun >= SETTLE else ():
            gone = verdicts.of_gone(key, int(now * 1000))
            await self._publish(subjects.verdict(SERVICE, "link", key), gone)
            self._told[key] = Told.of(gone)
        await self._tell_jobs(bad, now)

    def _settling(self, line: Line, now: float) -> bool:
        """It has not been seen long enough since this replica began to tell."""
        return now - self._begun < SETTLE

    async def _tell_jobs(self, bad: list[LinkInfo], now: float) -> None:
        hit = verdicts.of_jobs(bad)
        certain = sum(any(one.certain for info in infos for one in info.jobs if one.job == job) for job, infos in hit.items())
        metrics.JOBS_HIT.labels("yes").set(certain)
        metrics.JOBS_HIT.labels("no").set(len(hit) - certain)
        for job in [*hit, *(job for job, told in self._told_jobs.items() if told.codes and job not in hit and job in self._picture.jobs)]:
            infos = hit.get(job, [])
            if not infos and now - self._begun < SETTLE:
                continue
            if verdicts.job_news(self._told_jobs.get(job), infos):
                verdict = verdicts.of_job(job, infos, int(now * 1000))
                await self._publish(subjects.verdict(SERVICE, "job", job), verdict)
                self._told_jobs[job] = Told.of(verdict)
                use = self._picture.jobs.get(job)
                if use is not None and use.uid and verdict.state == "bad" and verdict.confidence >= SURE:
                    await self._fact(
                        job, verdicts.fact(use.uid, verdict.sentence, verdict.sentenceZh, cause=verdict.cause, at=verdict.at), verdict.id
                    )
        self._told_jobs = {job: told for job, told in self._told_jobs.items() if job in self._picture.jobs or job in hit}

    async def _tell_incidents(self, now: float) -> None:
        """What the ports of a job say of its failure. Where no port saw anything it is said only of what lognexus calls network."""
        for incident in self.incidents.settled(now):
            verdict = transport.of_incident(incident, self.incidents.events, self._picture)
            use = self._picture.jobs.get(incident.job)
            if use is not None and use.uid and (verdict.network or incident.word == "network"):
                cause = "network" if verdict.network else "unknown"
                zh = f"网络端口证据:{verdict.reason}" if verdict.network else "失败前后没有任何端口事件,不能归因于网络"
                told = verdicts.fact(
                    use.uid, f"{verdict.cause}: {verdict.reason}", zh, cause=cause, at=int(now * 1000), incarnation=incident.incarnation
                )
                await self._fact(incident.job, told, incident.id)
            self.incidents.said(incident, f"{verdict.cause}: {verdict.reason}")

    async def _fact(self, job: str, fact: Fact, key: str) -> None:
        """Told again after a crash it is a double for the stream."""
        await self._bus.publish(subjects.fact(job, "job"), encode(fact), msg_id=self._era.dedup_id(f"netmon fact|{key}"))

    async def _tell_common(self, now: float) -> None:
        """The part that the incidents so far have in common, when a new one says so."""
        question = self.incidents.question(now, self._picture)
        if question is None:
            return
        found = await asyncio.to_thread(question)
        verdict = of_part(found, {**self._picture.watch.names, **self._picture.names()}, int(now * 1000))
        if verdict is None or found.suspect is None:
            self.common = ""
            return
        self.common = "; ".join((verdict.sentence, *verdict.evidence[-2:]))
        key = part_id(found.suspect)
        if self._told.get(key) != Told.of(verdict):
            await self._publish(subjects.verdict(SERVICE, "link", key), verdict)
            self._told[key] = Told.of(verdict)

    async def _publish(self, subject: str, verdict: Verdict) -> None:
        await self._bus.publish(subject, encode(verdict), msg_id="auto")
        VERDICTS.labels(SERVICE, verdict.cause).inc()
        log.info("%s", verdict.sentence)

    async def _read_told(self, what: str) -> dict[str, Told]:
        found = {}
        for stored in await self._bus.get_many("EVENTS", [subjects.verdict(SERVICE, what, "*")], timeout=15.0):
            try:
                found[subjects.token(stored.subject, 4)] = Told.of(decode(Verdict, stored.data))
            except BadMessage as error:
                log.warning("%s: %s", stored.subject, error)
        return found
