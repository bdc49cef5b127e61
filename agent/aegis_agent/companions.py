"""What lives beside a managed worker: each is told what the worker does, and none of them decides anything for it.

A companion is one class and one line in `COMPANIONS`. An error in one is logged and ends there: nothing of it reaches the training.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from aegis_proto.phases import OrderPhase

if TYPE_CHECKING:
    from aegis_agent.runner import Run
    from aegis_agent.worker import Worker

log = logging.getLogger(__name__)


LAST = 3.0
"""Seconds that a worker which leaves waits for evidence that is on its way."""


class Companion:
    """Override what is needed. Everything is called on the worker's loop and must not block; `work` is a task of its own for the worker's life."""

    async def work(self) -> None:
        """Begun when the worker has opened, cancelled when it leaves."""

    async def close(self) -> None:
        """The worker leaves: what is nearly done may be finished, within `LAST` seconds."""

    def run_started(self, run: Run) -> None:
        """A run of the command has been started (managed)."""

    def run_ended(self, run: Run) -> None:
        """It has ended, by itself or told to."""

    def ordered(self, phase: OrderPhase) -> None:
        """A new order is obeyed from now on."""

    def look(self, now: float) -> None:
        """At every heartbeat of a managed worker; `now` is monotonic seconds."""


def _evidence(worker: Worker) -> Companion:
    from aegis_agent.evidence import Evidence

    return Evidence(worker)


def _checkpoints(worker: Worker) -> Companion:
    from aegis_agent.ckpt.watch import CheckpointWatch

    return CheckpointWatch(worker)


def _flight(worker: Worker) -> Companion:
    from aegis_agent.flight import Flight

    return Flight(worker)


def _monitor(worker: Worker) -> Companion:
    from aegis_agent.monitors.companion import Monitor

    return Monitor(worker)


def _saver(worker: Worker) -> Companion:
    from aegis_agent.subservice import SaverService

    return SaverService(worker)


def _first_layer(worker: Worker) -> Companion:
    from aegis_agent.firstlayer import FirstLayer

    return FirstLayer(worker)


COMPANIONS: tuple[Callable[[Worker], Companion], ...] = (_evidence, _checkpoints, _flight, _monitor, _saver, _first_layer)
"""Made in this order, once per worker. Imported when made: a bare command needs none of them."""


class Companions:
    """All of them, as one."""

    def __init__(self, worker: Worker) -> None:
        self.all: list[Companion] = []
        self._tasks: list[asyncio.Task[None]] = []
        for make in COMPANIONS:
            try:
                self.all.append(make(worker))
            except Exception:
                log.exception("going on without %s", getattr(make, "__name__", make))

    def open(self) -> None:
        self._tasks = [asyncio.create_task(self._work(one), name=type(one).__name__) for one in self.all if type(one).work is not Companion.work]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(LAST):
                await asyncio.gather(*(one.close() for one in self.all), return_exceptions=True)
        except TimeoutError:
            log.info("what was nearly done is left")

    async def _work(self, one: Companion) -> None:
        try:
            await one.work()
        except Exception:
            log.exception("%s ended", type(one).__name__)

    def _tell(self, what: Callable[[Companion], None]) -> None:
        for one in self.all:
            try:
                what(one)
            except Exception:
                log.exception("%s", type(one).__name__)

    def run_started(self, run: Run) -> None:
        self._tell(lambda one: one.run_started(run))

    def run_ended(self, run: Run) -> None:
        self._tell(lambda one: one.run_ended(run))

    def ordered(self, phase: OrderPhase) -> None:
        self._tell(lambda one: one.ordered(phase))

    def look(self, now: float) -> None:
        self._tell(lambda one: one.look(now))
