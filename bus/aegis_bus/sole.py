"""One of several replicas does a thing: `aegis.lease.<name>` in LEASES, held by compare-and-set and a TTL, renewed every third of it.

At most one holds it, as long as no clock runs away: the holder lets go by its own clock before the server forgets the record, and takes or renews
only the record it last saw. What must not be done twice at any price needs a fence of its own; this is for work that would only be wasted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time

from aegis_proto import messages, subjects
from aegis_proto.messages import LeaseData

from aegis_bus import errors
from aegis_bus.connection import Bus
from aegis_bus.lease import DEFAULT_TTL, STREAM

log = logging.getLogger(__name__)


class SoleLease:
    """`run` until cancelled: takes the lease whenever it is free. `held` says whether the work may be done now; `holder` who does it."""

    def __init__(self, bus: Bus, name: str, replica: str, ttl: float = DEFAULT_TTL) -> None:
        self._bus, self._subject, self._ttl = bus, subjects.lease(name), ttl
        self._data = messages.encode(LeaseData(replica, name, host=socket.gethostname(), pid=os.getpid()))
        self._replica, self._seq, self._until = replica, 0, 0.0
        self.holder = ""

    @property
    def held(self) -> bool:
        return time.monotonic() < self._until

    async def run(self) -> None:
        """Take, renew, or wait."""
        while True:
            try:
                await self.step()
            except errors.BusError as error:
                log.info("lease of %s: %s", self._subject, error)
            await asyncio.sleep(self._ttl / 3)

    async def step(self) -> None:
        """One try. BusError when the bus is away: what is held then runs out by itself."""
        was = self.held
        if not was:
            stored = await self._bus.get(STREAM, self._subject)
            self._seq = stored.seq if stored is not None else 0
            if stored is not None and not stored.marker and stored.data:
                self.holder = messages.decode(LeaseData, stored.data).replica
                if self.holder != self._replica:
                    return
        asked = time.monotonic()
        try:
            ack = await self._bus.publish(self._subject, self._data, expect=self._seq, ttl=self._ttl, timeout=self._ttl / 3)
        except errors.WrongLastSequence:
            self._until = 0.0
            if was:
                log.warning("lease of %s: somebody else has it", self._subject)
            return
        self._seq, self._until, self.holder = ack.seq, asked + 0.8 * self._ttl, self._replica
        if not was:
            log.info("lease of %s: mine", self._subject)

    async def stop(self) -> None:
        """Give it up, so that another need not wait for its end. Never raises for the bus being away."""
        if not self.held:
            return
        self._until = 0.0
        try:
            await self._bus.publish(self._subject, b"", expect=self._seq, ttl=1.0, timeout=2.0)
        except errors.BusError as error:
            log.info("lease of %s runs out by itself: %s", self._subject, error)
