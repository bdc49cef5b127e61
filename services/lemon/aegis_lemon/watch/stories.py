"""The ledgers of all jobs, followed in the stream STORY: what every measured ETTR is a sum of. Reads; writes nothing; bounded."""

from __future__ import annotations

import asyncio
import logging

from aegis_bus.connection import Bus
from aegis_bus.errors import Unreadable
from aegis_bus.jobstore import decode_head
from aegis_bus.ordered import Gap, OrderedReader
from aegis_proto import subjects

from aegis_lemon.ettr.heads import Story

log = logging.getLogger(__name__)

MOST_JOBS = 5_000
AT_ONCE = 200


class Stories:
    """`run` until cancelled. `jobs`: those heard of last, oldest first."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.jobs: dict[str, Story] = {}

    async def run(self) -> None:
        async with OrderedReader(self._bus, "STORY", [subjects.job_state("*")], start=1) as reader:
            while True:
                for item in await reader.read(AT_ONCE, 0.05):
                    if isinstance(item, Gap):
                        if item.first_seq < item.wanted:
                            self.jobs.clear()  # another store
                    elif not item.marker and item.data:
                        self._hear(subjects.token(item.subject, 2), item.data)
                await asyncio.sleep(0)

    def _hear(self, job: str, data: bytes) -> None:
        try:
            head = decode_head(job, data)
        except Unreadable as error:
            log.warning("%s", error)
            return
        story = self.jobs.pop(job, None) or Story(job)
        story.add(head)
        self.jobs[job] = story
        while len(self.jobs) > MOST_JOBS:
            self.jobs.pop(next(iter(self.jobs)))
