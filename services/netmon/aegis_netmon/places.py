"""Where jobs run: followed by their heads (`aegis.view.job.*.state`), read whole when one changed, and all of them again now and then.

Reads CTL; writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from aegis_bus.connection import Bus, Msg
from aegis_bus.errors import BusError, Unreadable
from aegis_bus.jobstore import JobStore
from aegis_proto import subjects
from aegis_proto.state import JobState

from aegis_netmon.picture import JobUse

log = logging.getLogger(__name__)

LOOK = 1.0
AGAIN = 300.0


class Places:
    """`run` until cancelled; `tell` is given all jobs that run, whenever something changed. `of`: namespace of each."""

    def __init__(self, bus: Bus, tell: Callable[[Iterable[JobUse]], None]) -> None:
        self._bus, self._tell = bus, tell
        self._store = JobStore(bus)
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
                    heads = await self._store.list_jobs()
                    alive = {head.job for head in heads if not head.phase.terminal}
                    self._changed |= alive | self.jobs.keys()
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
                loaded = await self._store.load(job)
            except Unreadable as error:
                log.warning("%s", error)
                continue
            except BusError:
                self._changed |= changed
                raise
            if loaded is None or loaded.state.head.phase.terminal:
                self.jobs.pop(job, None)
            else:
                self.jobs[job] = use(loaded.state)
        if self.jobs != before:
            self._tell(self.jobs.values())


def use(state: JobState) -> JobUse:
    """Nodes of a job's workers that are not known to be gone, and its settings of NCCL alone."""
    nodes = {pod.node for pod in state.pods() if pod.node and not pod.gone}
    env = {name: value for name, value in state.spec.env.items() if name.startswith("NCCL_")}
    return JobUse(state.head.job, state.head.namespace, tuple(sorted(nodes)), env)
