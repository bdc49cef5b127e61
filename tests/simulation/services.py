"""The services of a simulated world, each a process: the real master and the real job controller, on a bus of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aegis_bus.connection
from aegis_bus.errors import BusError
from aegis_bus.service import Service
from aegis_jobcontroller.service import Controller
from aegis_master.service import Master
from simulation import patches
from simulation.check import Watch
from simulation.loop import Process

if TYPE_CHECKING:
    from simulation.world import World

AGAIN = 1.0
"""Seconds until a service that could not start is started again."""


class Replica:
    """One master."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        self.world = world
        self.process = Process(name, skew)
        self.master: Master | None = None
        world.loop.spawn(self.process, self._main())

    async def _main(self) -> None:
        while True:
            try:
                bus = await aegis_bus.connection.Bus.connect(patches.new_identity(), ["sim"], name=f"master-{self.process.name}")  # type: ignore[arg-type]
                master = Master(bus, self.world.options.master, self.process.name)
                object.__setattr__(master.ownership.shared, "trace", Watch(self.world.check, self.process.name))
                await master.start()
            except BusError:
                await asyncio.sleep(AGAIN)
            else:
                break
        self.master = master
        try:
            await master.run()
        except Exception as error:
            self.world.check.problem(f"{self.process.name} ended by itself: {error!r} {getattr(error, 'exceptions', '')}")

    async def _stop(self) -> None:
        assert self.master is not None
        await self.master.stop(5.0)
        self.world.end_process(self.process)

    def stop(self) -> None:
        """SIGTERM: it gives its jobs away."""
        if self.master is not None and self.process.alive:
            self.world.loop.spawn(self.process, self._stop())


class JobController:
    """One job controller."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        self.world = world
        self.process = Process(name, skew)
        world.loop.spawn(self.process, self._main())

    async def _main(self) -> None:
        while True:
            try:
                bus = await aegis_bus.connection.Bus.connect(patches.new_identity(), ["sim"], name=f"jobcontroller-{self.process.name}")  # type: ignore[arg-type]
                controller = Controller(bus, "sim:1")
                service = Service("jobcontroller", None)  # type: ignore[arg-type]
                await controller.start(service)
            except BusError:
                await asyncio.sleep(AGAIN)
            else:
                break
        await service.stopping.wait()
        self.world.check.problem(f"{self.process.name} ended by itself: {service.failure!r}")
