"""Where jobs run: followed by their heads (`aegis.view.job.*.state`), read when one changed, and all of them again now and then.

Reads heads and pods in CTL, by subject; never a specification, which holds what a user put into the environment. Writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from aegis_bus.connection import Bus, Msg
from aegis_bus.errors import BusError, Unreadable
from aegis_bus.jobstore import STREAM, decode_head, decode_shard
from aegis_proto import shards, subjects

from aegis_netmon.picture import JobUse

log = logging.getLogger(__name__)

LOOK = 1.0
AGAIN = 300.0


class Places:
    """`run` until cancelled; `tell` is given all jobs that run, whenever something changed."""

    def __init__(self, bus: Bus, tell: Callable[[Iterable[JobUse]], None]) -> None:
        self._bus, self._tell = bus, tell
        self._changed: set[str] = set()
        self.jobs: dict[str, JobUse] = {}

    async def _on_head(self, msg: Msg) -> None:
        self._changed.add(subjects.token(msg.subject, 3))

    async def run(self) -> None:
        await self._bus.subscribe(subjects.view_job_state("*"), self._on_head, timeout=30.0)
        loop = asyncio.get_running_loop()
        generation, due = -1, 0.0
        while True:
            try:
                if self._bus.generation != generation or loop.time() >= due:
                    generation, due = self._bus.generation, loop.time() + AGAIN
                    info = await self._bus.js_api(f"STREAM.INFO.{STREAM}", {"subjects_filter": subjects.job_state("*")})
                    self._changed |= {subjects.token(subject, 2) for subject in info["state"].get("subjects") or {}} | self.jobs.keys()
                if self._changed:
                    await self._read()
            except BusError as error:
                log.info("places of jobs not known now: %s", error)
                generation = -1
            await asyncio.sleep(LOOK)

    async def _read(self) -> None:
        changed, self._changed = self._changed, set()
        before = dict(self.jobs)
        for job in sorted(changed):
            try:
                use = await self._use(job)
            except Unreadable as error:
                log.warning("%s", error)
                continue
            except BusError:
                self._changed |= changed
                raise
            if use is None:
                self.jobs.pop(job, None)
            else:
                self.jobs[job] = use
        if self.jobs != before:
            self._tell(self.jobs.values())

    async def _use(self, job: str) -> JobUse | None:
        """None for a job that has ended or is not there. Nodes of workers that are not known to be gone."""
        item = await self._bus.get(STREAM, subjects.job_state(job))
        head = decode_head(job, item.data) if item is not None and not item.marker else None
        if head is None or head.phase.terminal:
            return None
        nodes = set()
        for k in range(shards.count(head.workerNum)):
            stored = await self._bus.get(STREAM, subjects.job_pods(job, k))
            nodes |= {pod.node for pod in decode_shard(head, k, stored) if pod.node and not pod.gone}
        return JobUse(job, head.namespace, tuple(sorted(nodes)), head.uid)
