"""When a run of the job has failed, here or elsewhere: one snapshot of this machine for it, to the store (stream BLOBS). Nothing waits for it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aegis_bus.errors import BusError
from aegis_proto.phases import OrderPhase

from aegis_agent import blobs, own
from aegis_agent.companions import Companion
from aegis_agent.looking import output_of

if TYPE_CHECKING:
    from aegis_agent.runner import Run
    from aegis_agent.worker import Worker

log = logging.getLogger(__name__)

TAKE = 15.0
"""Seconds that a snapshot may take."""
MOST_BYTES = 256 << 10
NICE = 10
"""The command runs again meanwhile, and comes first: on few cores its imports take as much longer as there is something beside them."""
AFTER = frozenset({OrderPhase.STOP, OrderPhase.TROUBLESHOOT, OrderPhase.HANG})
"""Orders that follow a failure, or a suspicion of one."""


class FirstLayer(Companion):
    """At most one snapshot per run of the command."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._taken = -1
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def ordered(self, phase: OrderPhase) -> None:
        run = self.worker.exec.run
        if phase in AFTER and run is not None:
            self._once(run.plan.incarnation)

    def run_ended(self, run: Run) -> None:
        if not run.result.cancelled() and run.result.result().ending is not None:
            self._once(run.plan.incarnation)

    def _once(self, incarnation: int) -> None:
        if incarnation <= self._taken:
            return
        self._taken = incarnation
        task = asyncio.create_task(self._take(incarnation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, incarnation: int) -> None:
        worker = self.worker
        try:
            data = await output_of(worker.exec, [*own.python(), "-m", "aegis_agent.snapshot"], TAKE, MOST_BYTES, nice=NICE)
            if data:
                await blobs.send(worker, "snapshot", data, incarnation, name=worker.task.node)
        except (OSError, ValueError, BusError) as error:
            log.info("no snapshot: %s", error)
