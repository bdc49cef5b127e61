"""One lease per replica: `aegis.lease.<replica>` in LEASES, with a TTL, renewed every third of it. Says who is alive and what versions it reads.

It decides nothing, and being late with it never harms: what a replica may write is decided by the head of each job (`jobstore`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable

from aegis_proto import messages, subjects
from aegis_proto.messages import LeaseData

from aegis_bus import errors
from aegis_bus.connection import Bus, Stored

log = logging.getLogger(__name__)

STREAM = "LEASES"
DEFAULT_TTL = 6.0


class Lease:
    """Kept alive from `start` to `stop`. `lost` is set while it could not be renewed for a whole TTL, so that others may think this replica dead."""

    def __init__(self, bus: Bus, replica: str, service: str = "master", ttl: float = DEFAULT_TTL) -> None:
        """`ttl` in seconds; the server counts in whole ones and not below 2."""
        self.replica = replica
        self.ttl = ttl
        self.lost = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None
        """Told whenever `lost` was set or cleared."""
        self._bus = bus
        self._subject = subjects.lease(replica)
        self._data = messages.encode(LeaseData(replica, service, host=socket.gethostname(), pid=os.getpid()))
        self._task: asyncio.Task[None] | None = None
        self._renewed = 0.0

    async def start(self) -> None:
        """Take the lease (errors of `Bus.publish`), then keep it in the background. `NameTaken` when another process of this name lives.

        Two masters of one name would each take the jobs of the other for their own, for ever. A predecessor that died on this machine is not
        waited for; one elsewhere until its lease ends, or is renewed.
        """
        await self._alone()
        await self._renew()
        self._task = asyncio.create_task(self._keep(), name=f"lease {self.replica}")

    async def _alone(self) -> None:
        began, seen = time.monotonic(), 0
        while time.monotonic() - began <= 2 * self.ttl:
            stored = await self._bus.get(STREAM, self._subject)
            other = None if stored is None or stored.marker else _lease_of(stored)
            if stored is None or other is None or _ended(other):
                return
            if seen and stored.seq != seen:
                raise errors.NameTaken(
                    f'E130 service.replica "{self.replica}": another {other.service} of this name runs (pid {other.pid} on {other.host}). '
                    "Each replica needs its own name; left out, it gets one"
                )
            seen = stored.seq
            await asyncio.sleep(self.ttl / 12)

    async def _renew(self) -> None:
        asked = time.monotonic()
        await self._bus.publish(self._subject, self._data, ttl=self.ttl, timeout=self.ttl / 3)
        self._renewed = asked
        if self.lost.is_set():
            log.info("lease of %s: renewed again", self.replica)
            self.lost.clear()
            self.on_change()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(max(0.05, self._renewed + self.ttl / 3 - time.monotonic()) if not self.lost.is_set() else self.ttl / 6)
            try:
                await self._renew()
            except errors.BusError as error:
                log.warning("lease of %s not renewed: %s", self.replica, error)
                await asyncio.sleep(self.ttl / 12)
            if time.monotonic() - self._renewed > self.ttl and not self.lost.is_set():
                log.error("lease of %s lost: not renewed for %.0f s", self.replica, self.ttl)
                self.lost.set()
                self.on_change()

    async def stop(self) -> None:
        """Give the lease up, so that others need not wait for its end. Never raises for the bus being away."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        try:
            await self._bus.publish(self._subject, b"", ttl=1.0, timeout=2.0)  # an empty lease is nobody's
        except errors.BusError as error:
            log.info("lease of %s runs out by itself: %s", self.replica, error)


def _ended(other: LeaseData) -> bool:
    """It is this process, or one of this machine that has ended."""
    if other.host != socket.gethostname():
        return False
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return other.pid == os.getpid()


def _lease_of(stored: Stored) -> LeaseData | None:
    """None for one that was given up, or is none."""
    if not stored.data:
        return None
    try:
        return messages.decode(LeaseData, stored.data)
    except messages.BadMessage as error:
        log.warning("%s: %s", stored.subject, error)
        return None


async def live_replicas(bus: Bus, service: str = "") -> dict[str, LeaseData]:
    """Replicas with a lease now, by name; of one service when given."""
    live: dict[str, LeaseData] = {}
    for item in await bus.get_many(STREAM, [subjects.lease("*")]):
        lease = None if item.marker else _lease_of(item)
        if lease is not None and (not service or lease.service == service):
            live[lease.replica] = lease
    return live
