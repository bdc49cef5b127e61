"""The services of a simulated world, each a process: the real master and the real job controller, on a bus of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aegis_bus.connection
from aegis_bus.connection import Msg
from aegis_bus.errors import BusError
from aegis_bus.service import Service
from aegis_jobcontroller.service import Controller
from aegis_master.service import Master
from aegis_proto import subjects
from aegis_proto.api import ErrorBody, ErrorReply
from aegis_proto.credapi import JoinReply, JoinRequest
from aegis_proto.ids import pod_index
from aegis_proto.messages import decode, encode
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


class Credentials:
    """Stands in for the credentials service: a join token for the present attempt of a place, for nobody else."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        self.world = world
        self.process = Process(name, skew)
        world.loop.spawn(self.process, self._main())

    async def _main(self) -> None:
        while True:
            try:
                bus = await aegis_bus.connection.Bus.connect(patches.new_identity(), ["sim"], name=f"credentials-{self.process.name}")  # type: ignore[arg-type]
                await bus.subscribe(subjects.rpc_do("credentials", "join", "*"), self._asked, queue="credentials")
                return
            except BusError:
                await asyncio.sleep(AGAIN)

    async def _asked(self, msg: Msg) -> None:
        request = decode(JoinRequest, msg.data)
        state = self.world.check.state
        if state is None or state.pod(pod_index(request.pod)).attempt != request.attempt:
            await msg.respond(encode(ErrorReply(ErrorBody("E105", "not the present attempt"))))
        else:
            await msg.respond(encode(JoinReply("token", state.head.uid)))
