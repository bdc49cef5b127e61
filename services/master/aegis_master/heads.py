"""The heads of all jobs, as this replica last saw them: what it may have to take over, and what it answers to `query.jobs`.

Reads CTL once (all heads), then lives from `aegis.view.job.*.state` (only accepted commits, in order); `seq` is the highest sequence that this
picture contains. Also keeps the last progress of each job. Writes nothing, decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import structlog
from aegis_bus.connection import Bus, Msg
from aegis_bus.errors import Unreadable
from aegis_bus.jetstream import time_ms
from aegis_bus.jobstore import decode_head
from aegis_proto import subjects
from aegis_proto.api import Progress
from aegis_proto.messages import BadMessage, decode
from aegis_proto.state import Head

from aegis_master.clock import ServerClock

log = structlog.get_logger("aegis.master.heads")


class Heads:
    """All heads. `start` once, `load` again after every reconnect (views may have been missed)."""

    def __init__(self, bus: Bus, clock: ServerClock) -> None:
        self._bus = bus
        self._clock = clock
        self.changed: Callable[[str], None] = lambda job: None
        """Told the id of each job whose head changed."""
        self._raw: dict[str, tuple[int, bytes]] = {}
        self._decoded: dict[str, tuple[int, Head | None]] = {}
        self.progress: dict[str, Progress] = {}
        self.seq = 0

    async def start(self) -> None:
        """Listen first, then read what was there before."""
        await self._bus.subscribe("aegis.view.job.*.state", self._on_head)
        await self._bus.subscribe("aegis.view.job.*.progress", self._on_progress)
        await self.load()

    async def load(self, anew: bool = False) -> None:
        """Read all heads from the store; jobs that are no longer there are forgotten.

        `anew`: it is another store. What is known of the one before, whose sequences may have been higher, counts for nothing.
        """
        items = await self._bus.get_many("CTL", ["aegis.job.*.state"], timeout=30.0)
        if anew:
            self.seq = 0
            for job in list(self._raw):
                self._forget(job)
        found = set()
        for item in items:
            if item.marker or not item.data:
                continue
            job = subjects.token(item.subject, 2)
            found.add(job)
            self._put(job, item.seq, item.data)
        newest = max((item.seq for item in items), default=0)
        for job in [job for job, (seq, _) in self._raw.items() if job not in found and seq <= newest]:
            self._forget(job)

    def _put(self, job: str, seq: int, data: bytes) -> None:
        known = self._raw.get(job)
        if known is None or seq > known[0]:
            self._raw[job] = (seq, data)
            self.seq = max(self.seq, seq)
            self.changed(job)

    def _forget(self, job: str) -> None:
        self._raw.pop(job, None)
        self._decoded.pop(job, None)
        self.progress.pop(job, None)

    def _on_head(self, msg: Msg) -> None:
        job = subjects.token(msg.subject, 3)
        seq = int(msg.headers.get("Nats-Sequence", "0"))
        if not msg.data:
            self._forget(job)
            return
        if stamp := msg.headers.get("Nats-Time-Stamp"):
            self._clock.saw(time_ms(stamp))
        self._put(job, seq, msg.data)

    def _on_progress(self, msg: Msg) -> None:
        try:
            self.progress[subjects.token(msg.subject, 3)] = decode(Progress, msg.data)
        except BadMessage as error:
            log.debug("progress not readable", subject=msg.subject, error=str(error))

    def __len__(self) -> int:
        return len(self._raw)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._raw))

    def get(self, job: str) -> tuple[int, Head | None]:
        """(sequence, head); head None when this replica cannot read it, sequence 0 when there is no such job."""
        raw = self._raw.get(job)
        if raw is None:
            return 0, None
        known = self._decoded.get(job)
        if known is not None and known[0] == raw[0]:
            return known
        head: Head | None = None
        try:
            head = decode_head(job, raw[1])
        except Unreadable as error:
            log.warning("head not readable here", job=job, error=str(error))
        self._decoded[job] = (raw[0], head)
        return raw[0], head

    def readable(self) -> Iterator[tuple[str, int, Head]]:
        """(job, sequence, head) of every job that this replica can read."""
        for job in self:
            seq, head = self.get(job)
            if head is not None:
                yield job, seq, head
