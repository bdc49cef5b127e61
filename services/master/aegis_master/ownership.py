"""Which jobs this replica owns: takes those whose owner's lease is gone, keeps one `JobOwner` task for each, gives all away at the end.

Reads leases and heads (`heads`), writes heads (take over, release) through the JobStore. Leases and clocks decide only who tries; who may write is
decided by the CAS of the head. Order of trying: rendezvous hash over the live replicas, each place further down waits a little longer.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterable

import structlog
from aegis_bus.crashpoint import crashpoint
from aegis_bus.errors import BusError, Unreadable, WrongLastSequence
from aegis_bus.jobstore import Loaded
from aegis_bus.lease import live_replicas
from aegis_proto import WIRE_VERSION
from aegis_proto.messages import LeaseData
from aegis_proto.phases import Phase
from aegis_proto.state import Head

from aegis_master import metrics
from aegis_master.heads import Heads
from aegis_master.owner import JobOwner, Shared
from aegis_master.settings import MasterSettings

log = structlog.get_logger("aegis.master.ownership")
HEAL_WITHIN = 24 * 3600 * 1000
"""ms: an ended job whose last events its dead owner may not have published is looked at for so long."""
SIDE_BY_SIDE = 16
"""Takeovers at once."""


def rank(job: str, me: str, live: Iterable[str]) -> int:
    """Place of `me` among the live replicas for this job: 0 takes it at once."""

    def weight(replica: str) -> bytes:
        return hashlib.blake2b(f"{job}|{replica}".encode(), digest_size=8).digest()

    mine = weight(me)
    return sum(1 for replica in live if replica != me and weight(replica) > mine)


class Ownership:
    """All owners of this replica."""

    def __init__(self, shared: Shared, heads: Heads, settings: MasterSettings) -> None:
        self.shared = shared
        self.heads = heads
        self.settings = settings
        self.owners: dict[str, JobOwner] = {}
        self.live: dict[str, LeaseData] = {}
        self.unowned = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._orphaned: dict[str, tuple[str, float]] = {}
        """job -> (its dead owner, since when it is seen so)"""
        self._taking: set[str] = set()
        self._limit = asyncio.Semaphore(SIDE_BY_SIDE)
        self._healed: set[str] = set()
        self._unreadable: dict[str, int] = {}
        """job -> CTL sequence of the head whose parts this replica cannot read: not tried again until it changes"""
        self._wake = asyncio.Event()
        self._stopping = False
        self._background: set[asyncio.Task[None]] = set()

    def job_changed(self, job: str) -> None:
        """A head changed. One without an owner is looked at now, not at the next scan."""
        _, head = self.heads.get(job)
        if head is not None and not head.owner.replica and not head.phase.terminal:
            self._wake.set()

    async def watch(self) -> None:
        """Scan until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self.settings.scan):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                self.live = await live_replicas(self.shared.bus, "master")
            except BusError as error:
                log.debug("leases not readable now", error=str(error))
                continue
            if self.shared.replica in self.live and not self._stopping:
                self._scan(time.monotonic())

    def _scan(self, now: float) -> None:
        unowned = 0
        soonest = float("inf")
        known_jobs = set()
        for job, seq, head in self.heads.readable():
            known_jobs.add(job)
            if self._unreadable.get(job, seq) != seq:
                del self._unreadable[job]
            if head.phase.terminal:
                self._heal_ended(head)
                continue
            owner = head.owner.replica
            if job in self.owners or (owner in self.live and owner != self.shared.replica):
                self._orphaned.pop(job, None)
                continue
            unowned += 1
            known, since = self._orphaned.get(job, ("", 0.0))
            if known != owner or not since:
                since = now
                self._orphaned[job] = (owner, since)
            wait = rank(job, self.shared.replica, self.live) * self.settings.takeover_delay
            if job in self._unreadable:
                continue
            if now - since >= wait and job not in self._taking:
                self._spawn(self._take(job))
            elif wait:
                soonest = min(soonest, since + wait - now)
        self._healed &= known_jobs
        for gone in [job for job in (*self._orphaned, *self._unreadable) if job not in known_jobs]:
            self._orphaned.pop(gone, None)
            self._unreadable.pop(gone, None)
        self.unowned = unowned
        metrics.JOBS_UNOWNED.set(unowned)
        if 0 < soonest < self.settings.scan:
            asyncio.get_running_loop().call_later(soonest, self._wake.set)

    async def _take(self, job: str) -> None:
        self._taking.add(job)
        try:
            async with self._limit:
                loaded = await self.shared.store.load(job)
                if loaded is None or loaded.state.head.phase.terminal or job in self.owners:
                    return
                owner = loaded.state.head.owner.replica
                if owner in self.live and owner != self.shared.replica:
                    return
                crashpoint("master.takeover-before-cas")
                taken = await self.shared.store.take_over(loaded, self.shared.replica)
                crashpoint("master.takeover-after-cas")
            log.info("job taken over", job=job, from_owner=owner or "nobody", term=taken.state.head.owner.term, phase=taken.state.head.phase.value)
            metrics.OWNER_CHANGES.labels("taken").inc()
            self.own(taken)
        except WrongLastSequence:
            log.debug("another replica was faster", job=job)
        except Unreadable as error:
            log.warning("job not readable here: left alone", job=job, error=str(error), reads=WIRE_VERSION)
            self._unreadable[job] = self.heads.get(job)[0]
        except BusError as error:
            log.info("job not taken now", job=job, error=str(error))
        finally:
            self._taking.discard(job)

    def own(self, loaded: Loaded) -> None:
        """Start the owner of a job whose head names this replica."""
        job = loaded.state.head.job
        if job in self.owners or self._stopping:
            return
        owner = JobOwner(self.shared, loaded)
        self.owners[job] = owner
        self._orphaned.pop(job, None)
        self._tasks[job] = asyncio.create_task(self._run(owner), name=f"owner {job}")

    async def _run(self, owner: JobOwner) -> None:
        why = "crashed"
        try:
            why = await owner.run()
        except Exception:
            # A bug in one job must not take the others along; the job is taken up again by the next scan, after a pause.
            log.exception("owner failed", job=owner.job)
            await asyncio.sleep(1.0)
        finally:
            self.owners.pop(owner.job, None)
            self._tasks.pop(owner.job, None)
            if why in ("lost", "released"):
                metrics.OWNER_CHANGES.labels(why).inc()
            log.info("job let go", job=owner.job, why=why)

    def _heal_ended(self, head: Head) -> None:
        """An ended job has no owner any more. If its last one died between the end and telling it, somebody else tells it."""
        if head.job in self._healed or head.owner.replica in self.live:
            return
        self._healed.add(head.job)
        if head.recent and self.shared.clock.now_ms() - head.recent[-1].timeStamp < HEAL_WITHIN:
            self._spawn(self.shared.effects.heal(head))

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def quiet(self) -> None:
        for owner in self.owners.values():
            owner.quiet()

    def poke(self) -> None:
        for owner in self.owners.values():
            owner.poke()

    def phases(self) -> dict[str, int]:
        """Jobs of this replica per phase."""
        counts = {phase.value: 0 for phase in Phase}
        for owner in self.owners.values():
            counts[owner.state.head.phase.value] += 1
        return counts

    async def stop(self, grace: float) -> None:
        """Give every job away, at most `grace` seconds; what is not given away then waits for the end of the lease."""
        self._stopping = True
        for owner in self.owners.values():
            owner.stop()
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
