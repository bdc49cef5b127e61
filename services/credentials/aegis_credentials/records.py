"""The CAS records on the bus: read, change by a pure function, store, and settle what is unknown by reading.

A sequence says which record only within one store, and no connection lives through the change of a store for a copy (`aegis_bus.jobstore`): what is
remembered is of one connection, and a write goes only over the one over which its record was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError, UnknownResult, Unreachable, WrongLastSequence
from aegis_proto import messages, subjects
from aegis_proto.credapi import Issued

from aegis_credentials.record import CredRecord

log = structlog.get_logger()

STREAM = "CTL"
TRIES = 20
REMEMBERED = 2048
"""Records kept in memory (up to 64 KB each, mostly far less)."""
KEEP_ENDED = 3600.0
"""Seconds that the record of an ended job stays, so that a late agent is told "ended"."""

Change = Callable[[CredRecord], CredRecord]


class Contended(BusError):
    """Other replicas changed the record each time. Try again."""


class Records:
    """Records as this replica last saw them; the sequence of each is what the next write expects, so a stale view is refused, never stored."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._seen: dict[str, tuple[CredRecord, int]] = {}  # at most REMEMBERED
        self._of = bus.generation  # the connection over which they were read or written
        self._locks: dict[str, asyncio.Lock] = {}

    async def read(self, subject: str) -> CredRecord:
        """As stored, through the leader."""
        return (await self._load(subject))[0]

    async def read_job(self, job: str) -> dict[int, CredRecord]:
        """All records of a job, by shard."""
        found: dict[int, CredRecord] = {}
        over = self._present()
        for stored in await self._bus.get_many(STREAM, [f"aegis.cred.{job}.*"]):
            if not stored.marker:
                record = messages.decode(CredRecord, stored.data)
                self._remember(stored.subject, (record, stored.seq), over)
                found[int(subjects.token(stored.subject, 3))] = record
        return found

    async def read_nodes(self) -> list[CredRecord]:
        """The records of all node daemons."""
        stored = await self._bus.get_many(STREAM, ["aegis.cred._node.*"], timeout=15.0)
        return [messages.decode(CredRecord, item.data) for item in stored if not item.marker]

    async def read_issued(self) -> list[Issued]:
        """What was issued by request and has not expired. A record that cannot be read is left out, and logged."""
        found = []
        for stored in await self._bus.get_many(STREAM, [subjects.cred_issued("*")], timeout=15.0):
            try:
                if not stored.marker:
                    found.append(messages.decode(Issued, stored.data))
            except messages.BadMessage as error:
                log.warning("record left out", subject=stored.subject, error=str(error))
        return found

    async def _load(self, subject: str) -> tuple[CredRecord, int]:
        over = self._present()
        stored = await self._bus.get(STREAM, subject, leader=True)
        if stored is None:
            loaded = (CredRecord(), 0)
        elif stored.marker:
            loaded = (CredRecord(), stored.seq)
        else:
            loaded = (messages.decode(CredRecord, stored.data), stored.seq)
        self._remember(subject, loaded, over)
        return loaded

    def _present(self) -> int:
        """The connection of now; what was read over one before is forgotten."""
        if self._of != self._bus.generation:
            self._of = self._bus.generation
            self._seen.clear()
        return self._of

    def _remember(self, subject: str, loaded: tuple[CredRecord, int], over: int) -> None:
        if over != self._present():
            return
        self._seen.pop(subject, None)
        self._seen[subject] = loaded
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]

    async def change(self, subject: str, change: Change) -> CredRecord:
        """Store `change(record)`; nothing is written when it returns the same object. Raises what `change` raises, Contended, BusError."""
        async with self._locks.setdefault(subject, asyncio.Lock()):
            for _ in range(TRIES):
                over = self._present()
                known = self._seen.get(subject)
                old, seq = known or await self._load(subject)
                try:
                    new = change(old)
                except Exception:
                    if known is not None and (await self._load(subject))[1] != seq:
                        continue  # refused by what was remembered, not by what is stored
                    raise
                if new is old:
                    if known is not None and (await self._load(subject))[1] != seq:
                        continue  # nothing to write, by what was remembered
                    return old
                try:
                    ack = await self._bus.publish(subject, messages.encode(new), expect=seq, over=over)
                except (WrongLastSequence, UnknownResult):
                    if (await self._load(subject))[0] == new:
                        return new
                    continue
                except Unreachable:
                    if self._bus.connected and self._bus.generation != over:
                        continue  # not sent: it was read over the connection before
                    raise
                self._remember(subject, (new, ack.seq), over)
                return new
        raise Contended(f"{subject}: changed by others {TRIES} times in a row")

    async def end(self, subject: str) -> None:
        """The last word about an ended job; the record goes by itself after KEEP_ENDED, and everything before it goes now."""
        async with self._locks.setdefault(subject, asyncio.Lock()):
            over = self._present()
            record, seq = await self._load(subject)
            if record.ended or seq == 0:
                return
            ended = CredRecord(uid=record.uid, ended=True)
            try:
                await self._bus.batch([(subject, messages.encode(ended), seq)], ttl=KEEP_ENDED, rollup=True, over=over)
            except (WrongLastSequence, UnknownResult):
                pass  # another replica did it, or the next round does
            self._seen.pop(subject, None)
        self._locks.pop(subject, None)
