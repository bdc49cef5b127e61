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
from aegis_bus.connection import Bus

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
        """Take the lease (errors of `Bus.publish`), then keep it in the background."""
        await self._renew()
        self._task = asyncio.create_task(self._keep(), name=f"lease {self.replica}")

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


async def live_replicas(bus: Bus, service: str = "") -> dict[str, LeaseData]:
    """Replicas with a lease now, by name; of one service when given."""
    live: dict[str, LeaseData] = {}
    for item in await bus.get_many(STREAM, [subjects.lease("*")]):
        if item.marker or not item.data:
            continue
        try:
            lease = messages.decode(LeaseData, item.data)
        except messages.BadMessage as error:
            log.warning("%s: %s", item.subject, error)
            continue
        if not service or lease.service == service:
            live[lease.replica] = lease
    return live
