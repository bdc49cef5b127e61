"""From the stream LOGS into the store: one ordered reader over all jobs, of which this replica keeps its own.

When another replica goes, its jobs become somebody's: what the stream still holds of them is read again from its beginning, and what is kept
already is known by its numbers. So a change of owner loses nothing that the stream has, and may leave lines in the files of two replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable

from aegis_bus.connection import Bus, Stored
from aegis_bus.errors import BusError
from aegis_bus.lease import live_replicas
from aegis_bus.metrics import DEAD_LETTERS
from aegis_bus.ordered import Gap, OrderedReader
from aegis_proto import subjects
from aegis_proto.api import DeadLetter
from aegis_proto.ids import is_id
from aegis_proto.logs import SERVICE, LogBatch
from aegis_proto.messages import BadMessage, decode, encode

from aegis_lognexus import metrics
from aegis_lognexus.share import Shares
from aegis_lognexus.store import LogStore

log = logging.getLogger(__name__)

STREAM = "LOGS"
ALL = "aegis.job.*.log.*"
COMMIT_EVERY = 1.0
RETAIN_EVERY = 60.0
LOOK_EVERY = 1.0
UNFINISHED = 20_000
LONG = 60.0
"""Messages, or seconds, after which the rest of an unfinished line is no longer waited for."""
MAX_LETTER = 8192
MAX_FILTERS = 200
AGAIN = 5.0
DISK_AGAIN = 2.0


class Reading:
    """What a reader has, or nothing when nothing comes in time. A read that is begun is never cut off: what it has taken would be lost."""

    def __init__(self, reader: OrderedReader) -> None:
        self._reader = reader
        self._task: asyncio.Task[list[Stored | Gap]] | None = None

    async def items(self, patience: float) -> list[Stored | Gap]:
        if self._task is None:
            self._task = asyncio.create_task(self._reader.read(1_000, 0.02))
        try:
            await asyncio.wait({self._task}, timeout=patience)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if not self._task.done():
            return []
        task, self._task = self._task, None
        return task.result()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Intake:
    """One replica's reading. `run` until cancelled; `stop` commits."""

    def __init__(self, bus: Bus, store: LogStore, shares: Shares, era: Callable[[], str]) -> None:
        self._bus, self._store, self._shares, self._era = bus, store, shares, era
        self._committed = self._retained = self._looked = time.monotonic()
        self._commits: deque[tuple[float, int]] = deque()
        self.ready = False
        self._awaited: list[tuple[int, asyncio.Event]] = []
        self._written = 0  # everything up to here is in the files

    async def caught_up(self, timeout: float) -> bool:
        """Wait until all that is in the stream now is in the files. False when that takes longer."""
        info = await self._bus.js_api(f"STREAM.INFO.{STREAM}")
        event = asyncio.Event()
        entry = int(info["state"]["last_seq"]), event
        if entry[0] <= self._written:
            return True
        self._awaited.append(entry)
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            if entry in self._awaited:
                self._awaited.remove(entry)
        return True

    async def run(self) -> None:
        while True:
            start = self._store.begin(self._era())
            self._written = 0
            await self._look(first=True)
            async with OrderedReader(self._bus, STREAM, [ALL], start=start) as reader:
                era, reading = self._era(), Reading(reader)
                try:
                    while self._era() == era:
                        self.ready = True
                        items = await reading.items(COMMIT_EVERY / 2)
                        for item in items:
                            if isinstance(item, Gap):
                                self._gap(item)
                            else:
                                await self._take(item)
                        metrics.BEHIND.set(reader.pending)
                        await self._settle(bool(items))
                        self._tell(idle=not items and not reader.pending)
                        await self._look()
                finally:
                    reading.close()

    def _gap(self, gap: Gap) -> None:
        if gap.first_seq < gap.wanted:
            log.warning("LOGS begins anew at %d, %d was due", gap.first_seq, gap.wanted)
            self._store.restart(gap.first_seq)
            return
        log.warning("messages %d to %d of LOGS were gone before they were read", gap.wanted, gap.first_seq - 1)
        metrics.LOST.inc(gap.first_seq - gap.wanted)

    async def _take(self, item: Stored, only: Callable[[str], bool] | None = None) -> None:
        """A disk that refuses (the files of a job that is new, or was closed for another) is asked again, as in `_settle`."""
        while True:
            try:
                return self._keep(item, only)
            except OSError as error:
                metrics.DISK_ERRORS.inc()
                log.error("the files of a job cannot be opened (%s): tried again, reading waits", error)
                await asyncio.sleep(DISK_AGAIN)

    def _keep(self, item: Stored, only: Callable[[str], bool] | None = None) -> None:
        job, pod = subjects.token(item.subject, 2), subjects.token(item.subject, 4)
        if not (only or self._shares.mine)(job):
            self._store.skip(item.seq)
            return
        try:
            if not is_id(job) or not is_id(pod):
                raise BadMessage(f"{item.subject}: names no job and worker")
            batch = decode(LogBatch, item.data)
            if batch.first < 1 or batch.first > 1 << 60 or not is_id(batch.boot):
                raise BadMessage(f"first {batch.first}, boot {batch.boot[:80]!r}: no numbered batch of a start")
        except BadMessage as error:
            self._refuse(job, item, str(error))
            self._store.skip(item.seq)
            return
        metrics.LINES.inc(len(self._store.append(job, pod, batch, item.seq)))
        metrics.BYTES.inc(len(item.data))

    def _refuse(self, job: str, item: Stored, reason: str) -> None:
        """Kept in the dead-letter stream if that takes it; a tenant who floods it evicts only its own letters."""
        metrics.REFUSED.inc()
        DEAD_LETTERS.labels(SERVICE).inc()
        letter = DeadLetter(STREAM, item.seq, item.subject, reason[:300], item.data[:MAX_LETTER], item.time_ms)
        self._bus.core(subjects.dlq(SERVICE, STREAM, job if is_id(job) else "other"), encode(letter))

    def _tell(self, idle: bool) -> None:
        self._written = self._store.seq
        for entry in [entry for entry in self._awaited if idle or entry[0] <= self._store.seq]:
            self._awaited.remove(entry)
            entry[1].set()

    async def _settle(self, new: bool = True) -> None:
        """Write what came; durable every COMMIT_EVERY seconds. A disk that refuses is asked again: the cursor stays, and the stream has the lines."""
        now = time.monotonic()
        if now - self._committed < COMMIT_EVERY:
            if new:
                with contextlib.suppress(OSError):  # the next commit tries again, and tells
                    self._store.flush()
            return
        self._committed = now
        while True:
            try:
                with metrics.COMMITS.time():
                    await asyncio.to_thread(self._store.commit, self._stale(now))
                    if now - self._retained >= RETAIN_EVERY:
                        self._retained = now
                        await asyncio.to_thread(self._store.retain)
                return
            except OSError as error:
                metrics.DISK_ERRORS.inc()
                log.error("the lines cannot be written (%s): tried again, reading waits", error)
                await asyncio.sleep(DISK_AGAIN)

    def _stale(self, now: float) -> int:
        """Unfinished lines that began before this message are no longer waited for."""
        self._commits.append((now, self._store.seq))
        long_ago = max((seq for at, seq in self._commits if at < now - LONG), default=0)
        while self._commits[0][0] < now - 2 * LONG:
            self._commits.popleft()
        return max(long_ago, self._store.seq - UNFINISHED, 0)

    # --- who keeps which job -----------------------------------------------------------------------------------------------------

    async def _look(self, first: bool = False) -> None:
        """Who lives now; read again what became mine, before anything newer of it is taken: also when that was begun before the last start."""
        now = time.monotonic()
        if not first and now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        while True:
            try:
                before = self._shares.update(await live_replicas(self._bus, SERVICE))
                break
            except BusError as error:
                log.info("replicas not known now: %s", error)
                if not first:
                    return
                await asyncio.sleep(LOOK_EVERY)
        if first:
            before = frozenset(self._store.live) or None
        if before is not None:
            log.info("replicas: %s", ", ".join(sorted(self._shares.live)))
            era = self._era()
            while self._era() == era and not await self._read_again(before):
                await asyncio.sleep(LOOK_EVERY)
        self._store.live, self._store.me = tuple(sorted(self._shares.live)), self._shares.me

    async def _read_again(self, before: frozenset[str]) -> bool:
        """What the stream still has of the jobs that became mine. False: not all of it could be read."""
        end = self._store.seq
        try:
            info = await self._bus.js_api(f"STREAM.INFO.{STREAM}", {"subjects_filter": ALL})
        except BusError as error:
            log.info("what became mine is not read yet: %s", error)
            return False
        found = info["state"].get("subjects") or {}
        mine = sorted({job for subject in found if self._shares.gained(job := subjects.token(subject, 2), before, self._store.me)})
        if not mine or not end:
            return True
        log.info("%d jobs became mine: read again up to message %d", len(mine), end)
        chosen = set(mine)
        filters = [subjects.job_log(job, "*") for job in mine] if len(mine) <= MAX_FILTERS else [ALL]
        async with OrderedReader(self._bus, STREAM, filters) as reader:
            reading = Reading(reader)
            try:
                while items := await reading.items(AGAIN):
                    for item in items:
                        if isinstance(item, Stored):
                            if item.seq > end:
                                return True
                            await self._take(item, chosen.__contains__)
                    await self._settle()
                    if not reader.pending:
                        return True
                if reader.at_end:
                    return True
            finally:
                reading.close()
        log.warning("the stream gave nothing for %.0f s: what became mine is read once more", AGAIN)
        return False

    async def stop(self) -> None:
        await asyncio.to_thread(self._store.close)
