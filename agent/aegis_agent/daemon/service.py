"""The node daemon: one per machine (or several, virtual). Its slots say what shall run here; it makes it so and tells what is.

Owns the processes of its slots (`keeper`), `<state>/lock`, `aegis.node.<n>.{spec,status,held.<i>,hb}`,
`aegis.net.<n>.counter` (`ports`), and the deep tests it is asked for (`deeptests`). Reads `aegis.node.<n>.slot.<i>`: a
core subscription wakes it, Direct Get is the truth, read again at every connect and every 30 s. A bus that is away changes nothing that runs.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog
from aegis_bus.connection import Bus, Msg, Stored
from aegis_bus.crashpoint import crashpoint
from aegis_bus.errors import BusError
from aegis_bus.identity import Identity
from aegis_proto import VERSION, subjects
from aegis_proto.api_nodes import NodeBeat
from aegis_proto.messages import BadMessage, NodeSpec, NodeStatus, Slot, decode, encode

from aegis_agent import own
from aegis_agent.daemon import processes
from aegis_agent.daemon.deeptests import DeepTests
from aegis_agent.daemon.keeper import Launch, SlotKeeper, agent_environment
from aegis_agent.daemon.ports import PortSettings, Telling, nccl
from aegis_agent.daemon.slotdir import SlotDir, Stage
from aegis_agent.handover import now_ms
from aegis_agent.monitors.node import NodeMonitor, pause

log = structlog.get_logger()

BEAT = 5.0
QUICK_BEAT, QUICK_BEATS = 1.0, 15
"""After a connect the first beats come faster, so that a job controller that has just started knows its nodes at once."""
REPEAT = 30.0
"""Seconds after which slots are read and the status is told again, whatever happened."""
HOPE = 5.0
"""How long what a wake-up showed is looked for: longer than a batch may take."""
ECHO = 0.2


class NodeInUse(RuntimeError):
    """Another daemon holds this state directory."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a daemon is told at its start (see `cli`)."""

    node: str
    state: Path
    servers: tuple[str, ...]
    creds: Path
    tls_ca: str = ""
    credentials_ca: str = ""
    slots: int = 1
    host: str = ""
    addr: str = ""
    gpus: int = 0
    gpu_type: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    virtual: bool = False
    echo: bool = False
    stop_workers: bool = False
    worker_command: tuple[str, ...] = ()
    ports: PortSettings = field(default_factory=lambda: PortSettings(every=0.0))


def take_lock(state: Path, node: str) -> int:
    """Hold `<state>/lock` until this process ends. NodeInUse names who holds it. Agents do not inherit it: the lock is the daemon's life."""
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(handle, 100, 0).decode(errors="replace").strip()
        os.close(handle)
        raise NodeInUse(
            f'E118 node "{node}" is kept by another daemon ({holder or "pid unknown"}, {state}/lock). Stop it first, or use --node'
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"pid {os.getpid()} node {node}\n".encode(), 0)
    return handle


class Daemon:
    """`run` returns when SIGTERM or SIGINT came: agents go on, unless `stop_workers`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.boot = processes.boot_id()
        self._n = now_ms()
        self._bus: Bus | None = None
        self._dirty = asyncio.Event()
        self._read = asyncio.Event()
        self._unregistered = asyncio.Event()
        self._hoped: dict[str, tuple[bytes, float]] = {}  # slot -> content a wake-up showed, and when
        self._beat = asyncio.Event()
        self._asked = asyncio.Event()
        self._stop = asyncio.Event()
        self._quick = 0
        self._told = 0
        launch = Launch(
            settings.worker_command or (*own.python(), "-m", "aegis_agent", "worker"),
            agent_environment(dict(os.environ)),
            settings.node,
            settings.addr,
            settings.credentials_ca,
            self._echo if settings.echo else None,
            str(settings.state / "deep" / "rounds.json"),
        )
        self.keepers = {
            str(i): SlotKeeper(SlotDir(settings.state, str(i)), launch, self.boot, self._changed, self._agents) for i in range(settings.slots)
        }
        self._tests = DeepTests(settings.node, settings.state, self.boot, self._used, launch.environ)
        self._monitor = NodeMonitor(settings.node, launch.environ)
        self._log = log.bind(node=settings.node)

    def _agents(self) -> frozenset[int]:
        """Children of ours whose end somebody waits for, and that are nobody's orphans."""
        return frozenset({self._tests.pid, self._monitor.pid, *(keeper.agent_pid for keeper in self.keepers.values())})

    def _changed(self) -> None:
        self._dirty.set()
        self._asked.set()

    def _used(self) -> str:
        """The workers that are here."""
        records = [keeper.record for keeper in self.keepers.values()]
        return ", ".join(f"{record.job}/{record.pod}" for record in records if record is not None and record.stage is not Stage.GONE)

    def _echo(self, pod: str, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    # --- life --------------------------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Exit code. NodeInUse when the node has a daemon already."""
        lock = take_lock(self.settings.state, self.settings.node)
        processes.become_subreaper()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for keeper in self.keepers.values():
            keeper.adopt()
        self._dirty.set()
        self._reap()
        work = [loop.create_task(keeper.run(), name=f"slot {name}") for name, keeper in self.keepers.items()]
        tasks = [
            loop.create_task(part(), name=part.__name__)
            for part in (self._connect, self._slots, self._spec, self._status, self._beats, self._ports, self._deep)
        ]
        if self.settings.echo:
            tasks.append(loop.create_task(self._echoes()))
        if not self.settings.virtual:  # several of those share a machine
            tasks.append(loop.create_task(self._monitored()))
        stop = loop.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait([stop, *work, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stop}:
                task.result()  # no part ends by itself: this raises what ended it
            await self._leave(work)
        finally:
            for task in (stop, *work, *tasks):
                task.cancel()
            await asyncio.gather(*work, *tasks, return_exceptions=True)
            for keeper in self.keepers.values():
                keeper.close()
            if self._bus is not None:
                await self._bus.close()
            os.close(lock)
        return 0

    async def _leave(self, work: list[asyncio.Task[None]]) -> None:
        if not self.settings.stop_workers:
            self._log.info("leaving; agents go on", agents=len(self._agents() - {0}))
            return
        for keeper in self.keepers.values():
            keeper.closing = True
            keeper.wake()
        await asyncio.gather(*work)
        if self._bus is not None and self._bus.connected:
            try:
                await self._tell_status(self._bus)
            except BusError as error:
                self._log.warning("the last status was not told", error=str(error))

    def _reap(self) -> None:
        processes.reap(self._agents())
        for keeper in self.keepers.values():
            keeper.wake()

    async def _echoes(self) -> None:
        while True:
            for keeper in self.keepers.values():
                keeper.echo()
            await asyncio.sleep(ECHO)

    # --- bus ---------------------------------------------------------------------------------------------------------------------

    async def _monitored(self) -> None:
        while True:
            await pause()
            if self._bus is not None and self._bus.connected:
                await self._monitor.look(self._bus)

    async def _connect(self) -> None:
        """Connect, however long it takes; from then on the bus itself reconnects for ever."""
        settings = self.settings
        while self._bus is None:
            try:
                bus = await Bus.connect(
                    Identity.from_creds_file(settings.creds),
                    list(settings.servers),
                    name=f"node-{settings.node}",
                    tls_ca=settings.tls_ca or None,
                    jwt_source=self._new_jwt,
                )
                await bus.subscribe(subjects.node_slot(settings.node, "*"), self._woken)
                await bus.subscribe(subjects.node_test(settings.node), self._test_asked)
            except (BusError, OSError, ValueError) as error:
                self._log.warning("no bus yet; what runs goes on", error=str(error))
                await asyncio.sleep(random.uniform(0.5, 2.0))
            else:
                self._bus = bus
        generation = -1
        while True:
            if self._bus.generation != generation and self._bus.connected:
                generation = self._bus.generation
                self._quick = QUICK_BEATS
                for event in (self._unregistered, self._dirty, self._read, self._beat, self._asked):
                    event.set()
            await asyncio.sleep(0.2)

    async def _ports(self) -> None:
        while self._bus is None:
            await asyncio.sleep(0.2)
        await Telling(self.settings.node, self.boot, self.settings.ports, self._nccl).run(self._bus)

    def _nccl(self) -> dict[str, dict[str, str]]:
        """NCCL's settings of the jobs that run here."""
        held = [keeper.held() for keeper in self.keepers.values()]
        return {one.job: found for one in held if one is not None and (found := nccl(bytes(one.spec)))}

    async def _new_jwt(self) -> str:
        """The creds file may have been renewed under us."""
        return Identity.from_creds_file(self.settings.creds).jwt

    async def _woken(self, msg: Msg) -> None:
        """A core message comes before the stream has stored it (a batch: well before), or without it ever being stored: look until it is there."""
        self._hoped[subjects.token(msg.subject, 4)] = (msg.data, time.monotonic())
        self._read.set()

    async def _repeat(self, event: asyncio.Event, work: Callable[[Bus], Any], every: float = REPEAT) -> None:
        """Do `work` when `event` is set and every so often; while it cannot be done, try again. Never ends."""
        while True:
            try:
                async with asyncio.timeout(every * random.uniform(0.9, 1.1)):
                    await event.wait()
            except TimeoutError:
                pass
            event.clear()
            if self._bus is None or not self._bus.connected:
                continue  # a connect sets the event again
            try:
                await work(self._bus)
            except BusError as error:
                self._log.warning("bus", work=work.__name__, error=str(error))
                event.set()
                await asyncio.sleep(random.uniform(0.2, 1.0))

    async def _slots(self) -> None:
        await self._repeat(self._read, self._read_slots)

    async def _deep(self) -> None:
        await self._repeat(self._asked, self._tests.look)

    async def _test_asked(self, msg: Msg) -> None:
        self._tests.heard(msg.data)
        self._asked.set()

    async def _spec(self) -> None:
        await self._repeat(self._unregistered, self._register)

    async def _read_slots(self, bus: Bus) -> None:
        now = time.monotonic()
        found = await asyncio.gather(*(bus.get("NODES", subjects.node_slot(self.settings.node, name)) for name in self.keepers))
        lost = []
        for name, stored in zip(self.keepers, found, strict=True):
            slot = self._slot(name, stored)
            if stored is None or stored.marker or self.keepers[name].older(stored.time_ms, stored.seq):
                lost.append(name)
            if slot is not None and stored is not None:
                self.keepers[name].want(slot, stored.time_ms, stored.seq)
            if name in self._hoped and stored is not None and stored.data == self._hoped[name][0]:
                del self._hoped[name]
        self._hoped = {name: hope for name, hope in self._hoped.items() if now - hope[1] < HOPE}
        if self._hoped:
            age = max(now - since for _, since in self._hoped.values())
            asyncio.get_running_loop().call_later(min(0.2, 0.01 + max(0.0, age) / 4), self._read.set)
        for name in lost:
            await self._tell_held(bus, name)

    async def _tell_held(self, bus: Bus, name: str) -> None:
        """The store has no record of what runs here, or an older one: it is another store. What was released or overwritten has a younger one."""
        held = self.keepers[name].held()
        if held is not None:
            self._log.warning("the store has lost this slot's record: telling what runs", slot=name, job=held.job, pod=held.pod)
            await bus.publish(subjects.node_held(self.settings.node, name), encode(held))

    def _slot(self, name: str, stored: Stored | None) -> Slot | None:
        """The wanted content; None (leave it as it is) when it was never written, the store lost it, or a newer version wrote it."""
        if stored is None or stored.marker:
            return None
        try:
            return decode(Slot, stored.data)
        except BadMessage as error:
            self._log.error("slot cannot be read; left as it is", slot=name, error=str(error))
            return None

    async def _register(self, bus: Bus) -> None:
        """NodeSpec, when the stored one is another (or the store was lost)."""
        s = self.settings
        spec = NodeSpec(s.node, s.host, s.addr, s.slots, s.gpus, s.gpu_type, self.boot, s.labels, s.virtual, VERSION, now_ms())
        stored = await bus.get("FLEET", subjects.node_spec(s.node))
        if stored is not None and not stored.marker:
            try:
                old = decode(NodeSpec, stored.data)
            except BadMessage:
                old = None
            if old is not None and old == msgspec.structs.replace(spec, at=old.at):
                return
        await bus.publish(subjects.node_spec(s.node), encode(spec))
        self._log.info("registered", slots=s.slots, gpus=s.gpus)

    async def _status(self) -> None:
        await self._repeat(self._dirty, self._tell_status)

    async def _tell_status(self, bus: Bus) -> None:
        self._n += 1
        status = NodeStatus(self.settings.node, self.boot, self._n, tuple(keeper.status for keeper in self.keepers.values()), now_ms())
        crashpoint("daemon.before-status")
        await bus.publish(subjects.node_status(self.settings.node), encode(status))
        crashpoint("daemon.after-status")

    async def _beats(self) -> None:
        n = 0
        while True:
            if self._bus is not None and self._bus.connected:
                n += 1
                self._bus.core(subjects.node_hb(self.settings.node), encode(NodeBeat(self.boot, n)))
            self._quick = max(0, self._quick - 1)
            self._beat.clear()
            try:
                async with asyncio.timeout(QUICK_BEAT if self._quick else BEAT * random.uniform(0.9, 1.0)):
                    await self._beat.wait()
            except TimeoutError:
                pass
