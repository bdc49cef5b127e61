"""What this service remembers, in the stream KEPT: read by every replica at its start, written now and then by the one that holds the lease.

All replicas hear the same polls and failures; only the holder sweeps. So a successor that was running already takes from it what the sweeps gave
(links, their counters and dips, events, sensors), and keeps its own of the rest. Owns `aegis.kept.netmon.>`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from aegis_bus.connection import Bus
from aegis_bus.errors import BusError, WrongLastSequence
from aegis_proto import subjects
from aegis_proto.messages import BadMessage, decode, encode
from aegis_proto.net import SERVICE, KeptHead

from aegis_netmon import kept
from aegis_netmon.incidents import Incidents
from aegis_netmon.intake import Intake
from aegis_netmon.kept import Damaged, Kept
from aegis_netmon.picture import Picture

log = logging.getLogger(__name__)

STREAM = "KEPT"
LOOK = 0.25
TRIES = 5
"""Readings of a generation that is being written over while it is read."""
HEAD = subjects.kept(SERVICE, "head")


class Memory:
    """`read` at the start; then `run` until cancelled, and `write` at the end. `mine`: this replica holds the lease and has read what there was."""

    def __init__(self, bus: Bus, replica: str, era: str, every: float, held: Callable[[], bool]) -> None:
        self._bus, self._replica, self._era, self._every, self._held = bus, replica, era, every, held
        self._head: KeptHead | None = None
        self._seq = 0
        self.mine = False

    async def read(self) -> Kept | None:
        """The last whole generation; None where there is none that is ours. BusError."""
        why = ""
        for _ in range(TRIES):
            stored = await self._bus.get(STREAM, HEAD)
            self._seq = stored.seq if stored is not None else 0
            if stored is None or stored.marker:
                return None
            try:
                self._head = decode(KeptHead, stored.data)
                found = [await self._bus.get(STREAM, subjects.kept(SERVICE, name)) for name in kept.names(self._head)]
                return await asyncio.to_thread(kept.unpack, self._head, [one.data for one in found if one is not None], self._era)
            except (BadMessage, Damaged) as error:
                why = str(error)
                await asyncio.sleep(LOOK)  # it is being written over, or this copy of the stream lags
        log.error("what was remembered cannot be read, begun anew: %s", why)
        return None

    async def run(self, picture: Picture, incidents: Incidents, intake: Intake) -> None:
        """Takes over whenever the lease came, and writes every so often while it stays."""
        due = 0.0
        while True:
            try:
                if not self._held():
                    self.mine = False
                elif not self.mine:
                    await self._take_over(picture, incidents)
                    self.mine, due = True, time.monotonic() + self._every
                elif time.monotonic() >= due:
                    due = time.monotonic() + self._every
                    await self.write(picture, incidents, intake)
            except BusError as error:
                log.warning("what is to be remembered: %s", error)
            except Exception:  # what cannot be written down must not end what watches and tells
                log.exception("what is to be remembered")
            await asyncio.sleep(LOOK)

    async def _take_over(self, picture: Picture, incidents: Incidents) -> None:
        """From the holder before, if that was another."""
        found = await self.read()
        if found is not None and self._head is not None and self._head.replica != self._replica:
            picture.adopt(found.watch)
            incidents.adopt(found.incidents)
            log.info("taken over from %s: %d links, %d incidents", self._head.replica, len(found.watch.links), len(found.incidents.incidents))

    async def write(self, picture: Picture, incidents: Incidents, intake: Intake) -> None:
        """One more generation. The one before stays whole until this one is. BusError."""
        if not (self.mine and self._held()):
            return
        packed = await asyncio.to_thread(kept.pack, kept.gather(picture.hosts, picture.watch, incidents.kept(), intake.seq, self._era))
        parts = kept.pieces(packed)
        generation = (self._head.generation if self._head is not None else 0) + 1
        head = KeptHead(self._era, self._replica, generation, len(parts), len(packed), kept.digest(packed), int(time.time() * 1000))
        for name, part in zip(kept.names(head), parts, strict=True):
            if not self._held():
                return  # the one that has the lease now may write the same pieces
            await self._bus.publish(subjects.kept(SERVICE, name), part)
        try:
            self._seq = (await self._bus.publish(HEAD, encode(head), expect=self._seq)).seq
            self._head = head
        except WrongLastSequence:
            self.mine = False  # somebody else wrote: what is there is read again, if the lease is still ours
        except BusError:
            self.mine = False  # it may be there all the same, and then its pieces must not be written over: likewise
            raise
