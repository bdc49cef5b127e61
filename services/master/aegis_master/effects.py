"""Effects of commits, beside the loop of the owner: a slow event stream must not hold up a decision. In order per job, bounded, healable.

What does not fit or cannot be stored is not lost: `heal` renders it again from the head (the last 16 transitions).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from dataclasses import replace

import structlog
from aegis_bus.crashpoint import crashpoint
from aegis_bus.errors import BusError
from aegis_proto.runs import RunInfo
from aegis_proto.state import Head, JobState, Transition

from aegis_master.events import Note
from aegis_master.publish import Publisher, begins, run_info

log = structlog.get_logger("aegis.master.effects")
MAX_WAITING = 256
ALIKE = 4
Work = tuple[Head, tuple[Transition, ...], tuple[Note, ...], RunInfo | None]


def merged(notes: tuple[Note, ...]) -> tuple[Note, ...]:
    """Notes of one commit, more than a few alike as one: 1,536 workers that come are one line, not 1,536 events."""
    kinds = Counter(note.kind for note in notes)
    told: set[str] = set()
    result: list[Note] = []
    for note in notes:
        alike = kinds[note.kind]
        if alike <= ALIKE:
            result.append(note)
        elif note.kind not in told:
            told.add(note.kind)
            result.append(replace(note, message=f"{note.message}, and {alike - 1} more alike", details={**note.details, "alike": str(alike)}))
    return tuple(result)


class Effects:
    """One line of work per job."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self._waiting: dict[str, deque[Work]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, state: JobState, transitions: tuple[Transition, ...], notes: tuple[Note, ...]) -> None:
        """To be published soon, after what was added before for this job."""
        job = state.head.job
        for transition in transitions:
            self.publisher.log(state, transition)
        notes = merged(notes)
        for note in notes:
            self.publisher.log_note(state.head, note)
        queue = self._waiting.setdefault(job, deque(maxlen=MAX_WAITING))
        queue.append((state.head, transitions, notes, run_info(state) if any(map(begins, transitions)) else None))
        task = self._tasks.get(job)
        if task is None or task.done():
            self._tasks[job] = asyncio.create_task(self._work(job), name=f"effects {job}")

    async def _work(self, job: str) -> None:
        queue = self._waiting[job]
        failures = 0
        while queue:
            head, transitions, notes, run = queue[0]
            try:
                crashpoint("master.before-event")
                await self.publisher.transitions(head, transitions, run)
                await self.publisher.notes(head, notes)
                crashpoint("master.after-event")
            except BusError as error:
                failures += 1
                log.warning("events not stored yet", job=job, error=str(error), waiting=len(queue))
                await asyncio.sleep(min(5.0, 0.2 * 2**failures) * random.uniform(0.5, 1.0))
                continue
            failures = 0
            if queue and queue[0][0] is head:
                queue.popleft()
        self._waiting.pop(job, None)

    async def drain(self, job: str, timeout: float = 5.0) -> None:
        """Wait until everything added for this job is published, at most `timeout` seconds."""
        task = self._tasks.get(job)
        if task is not None:
            await asyncio.wait({task}, timeout=timeout)
            if task.done():
                self._tasks.pop(job, None)

    async def heal(self, head: Head) -> None:
        """Publish what the owner before did not. Not possible now: said, and left to the next owner or the end of the job."""
        await self.drain(head.job)
        try:
            healed = await self.publisher.heal(head)
        except BusError as error:
            log.warning("story not healed", job=head.job, error=str(error))
            return
        if healed:
            log.info("events published for the owner before", job=head.job, events=healed)

    async def close(self) -> None:
        """Stop; what is not published is healed by the next owner."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
