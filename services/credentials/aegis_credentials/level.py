"""The level loop: makes accounts and revocations equal to the state of the jobs, whatever was missed. Any replica runs it; several are safe.

Wakes on the republished heads; goes through all jobs every `interval` seconds and after each reconnect.
"""

from __future__ import annotations

import asyncio
import random
import time

import structlog
from aegis_bus.connection import Bus, Msg
from aegis_bus.errors import BusError, Unreadable
from aegis_bus.jobstore import decode_head
from aegis_proto import messages, subjects
from aegis_proto.state import Head
from prometheus_client import Counter, Gauge

from aegis_credentials.authority import Authority
from aegis_credentials.record import Refusal

log = structlog.get_logger()

DEBOUNCE = 0.1
"""Seconds: heads of a busy job come in bursts."""
AT_ONCE = 8

ROUNDS = Counter("aegis_credentials_rounds_total", "Rounds of the level loop", ["result"])
JOBS = Gauge("aegis_credentials_jobs", "Jobs that have not ended, at the last round")


class Level:
    """`grace`: seconds the account of an ended job stays."""

    def __init__(self, authority: Authority, bus: Bus, *, interval: float, grace: float) -> None:
        self._authority = authority
        self._bus = bus
        self._interval = interval
        self._grace = grace
        self._known: dict[str, tuple[object, ...]] = {}
        self._wanted: set[str] = set()
        self._wake = asyncio.Event()
        self._all = True
        self._heads: dict[str, Head] = {}

    def everything(self) -> None:
        """Go through all jobs soon: the connection was away, or something may have been missed."""
        self._authority.forget()
        self._all = True
        self._wake.set()

    async def start(self) -> None:
        await self._bus.subscribe("aegis.view.job.*.state", self._on_head)

    def _on_head(self, msg: Msg) -> None:
        job = subjects.token(msg.subject, 3)
        try:
            head = decode_head(job, msg.data)
        except Unreadable as error:
            log.warning("head not readable", job=job, error=str(error))
            return
        self._note(head)

    def _note(self, head: Head) -> None:
        key = (head.uid, head.phase, head.seqNum, head.order)
        if self._known.get(head.job) != key:
            self._known[head.job] = key
            self._heads[head.job] = head
            self._wanted.add(head.job)
            self._wake.set()

    async def run(self) -> None:
        """For ever."""
        due = 0.0
        while True:
            if self._all or time.monotonic() >= due:
                self._all = False
                due = time.monotonic() + self._interval * random.uniform(0.8, 1.2)
                if not await self._try(self._round()):
                    due = time.monotonic() + min(self._interval, 5.0) * random.uniform(0.5, 1.0)
            try:
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(DEBOUNCE)
            self._wake.clear()
            wanted, self._wanted = self._wanted, set()
            await self._sync([self._heads[job] for job in wanted if job in self._heads], verify=False)

    async def _try(self, work: object) -> bool:
        try:
            await work  # type: ignore[misc]
        except (BusError, TimeoutError, messages.BadMessage) as error:
            ROUNDS.labels("failed").inc()
            log.warning("round not finished", error=str(error))
            return False
        except Exception:
            # Whatever it is: without this loop nobody is cut off and no account is repaired.
            ROUNDS.labels("failed").inc()
            log.exception("round not finished")
            return False
        ROUNDS.labels("ok").inc()
        return True

    async def _round(self) -> None:
        now = time.time()
        open_heads: list[Head] = []
        ended: list[Head] = []
        for stored in await self._bus.get_many("CTL", ["aegis.job.*.state"], timeout=15.0):
            if stored.marker:
                continue
            try:
                head = decode_head(subjects.token(stored.subject, 2), stored.data)
            except Unreadable as error:
                log.warning("head not readable", error=str(error))
                continue
            if not head.phase.terminal:
                open_heads.append(head)
            elif now - stored.time_ms / 1000 >= self._grace:
                ended.append(head)
        JOBS.set(len(open_heads))
        present = {head.job for head in open_heads}
        self._known = {job: key for job, key in self._known.items() if job in present}
        self._heads = {head.job: head for head in open_heads}
        unreadable: messages.BadMessage | None = None
        try:
            await self._authority.ensure_site()
        except messages.BadMessage as error:
            unreadable = error
        await self._sync(open_heads, verify=True)
        listed = await self._authority.claims.listed() if ended else set()
        for head in ended:
            try:
                await self._authority.end_job(head, listed)
            except messages.BadMessage as error:
                log.error("job left alone", job=head.job, error=str(error))
        if unreadable is not None:
            raise unreadable

    async def _sync(self, heads: list[Head], *, verify: bool) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(head: Head) -> None:
            async with gate:
                try:
                    await self._authority.sync_job(head, verify=verify)
                except (Refusal, messages.BadMessage, Unreadable) as error:
                    log.info("job not synced", job=head.job, error=str(error))
                except (BusError, TimeoutError) as error:
                    log.warning("job not synced", job=head.job, error=str(error))
                    self._known.pop(head.job, None)  # its next head, or the next round, tries again
                except Exception:
                    log.exception("job not synced", job=head.job)

        await asyncio.gather(*(one(head) for head in heads))
