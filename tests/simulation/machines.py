"""A simulated machine: its node daemon, its agents, their children, and what stays on its disk.

The daemon follows the rules of `aegis_agent.daemon` (its own `decide` is used); what it does to processes is simulated.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import aegis_bus.connection
import msgspec
from aegis_agent.daemon.keeper import STOP_MARGIN
from aegis_agent.daemon.reconcile import Action, decide
from aegis_agent.daemon.slotdir import Record, Stage, slot_key
from aegis_agent.handover import Exit, Status, WorkerTask
from aegis_bus.connection import Bus, Msg
from aegis_bus.errors import BusError
from aegis_proto import subjects
from aegis_proto.messages import NodeSpec, NodeStatus, Slot, SlotStatus, decode, encode
from aegis_proto.state import JobSpec
from simulation import patches
from simulation.agents import Agent
from simulation.loop import START, Process

if TYPE_CHECKING:
    from simulation.world import Key, World

BEAT = 2.0
LONG = 10.0
"""Seconds after which the keeper looks by itself; whatever it waits for wakes it."""
REPEAT = 15.0
LOOK_AGAIN = (0.0, 0.02, 0.1, 0.3, 1.0, 3.0)
"""Seconds after a wake-up at which the slot is read: a core message comes before the stream has stored it."""


class Machine:
    """One node with one slot."""

    def __init__(self, world: World, name: str, skew: float) -> None:
        self.world = world
        self.name = name
        self.skew = skew
        self.up = False
        self.boots = 0
        self.cut_until = 0.0
        self.record: Record | None = None
        self.agent: Agent | None = None
        self.daemon: Daemon | None = None
        self.last_words: dict[Key, Exit] = {}
        self.statuses: dict[Key, Status] = {}
        self.on_term: dict[Key, object] = {}
        self.failing: list[str] = []
        """Checks that fail here."""
        self.checks_raise = False

    @property
    def boot_id(self) -> str:
        return f"{self.name}-boot{self.boots}"

    def processes(self) -> list[Process]:
        found = [self.daemon.process] if self.daemon is not None else []
        return found + ([self.agent.process] if self.agent is not None else [])

    def power_on(self) -> None:
        if not self.up:
            self.up = True
            self.boots += 1
            self.start_daemon()

    def power_off(self) -> None:
        """Everything that runs here is gone at once."""
        if not self.up:
            return
        self.up = False
        for process in self.processes():
            self.world.end_process(process)
        for child in [child for child in self.world.children if child.node == self.name]:
            child.kill()

    def note_status(self, key: Key, status: Status) -> None:
        """What an agent writes into the folder of its slot; the daemon looks there."""
        self.statuses[key] = status
        self.look()

    def look(self) -> None:
        """Something about an agent has changed: whichever daemon is there now looks at it."""
        if self.daemon is not None:
            self.daemon.look()

    def start_daemon(self) -> None:
        if self.up and (self.daemon is None or not self.daemon.process.alive):
            self.daemon = Daemon(self)

    def kill_agent(self, children_too: bool) -> None:
        """SIGKILL of the agent. Its children may live on: what they are to the machine, only a sweep knows."""
        if self.agent is not None and self.agent.alive:
            self.world.end_process(self.agent.process)
            self.agent.exit_code = -signal.SIGKILL
            if children_too:
                self.sweep(self.agent.task.pod)

    def sweep(self, pod: str) -> int:
        """Kill every child of a pod on this machine; how many."""
        found = [child for child in self.world.children if child.node == self.name and child.pod == pod]
        for child in found:
            child.kill(ordered=True)
        return len(found)


class Daemon:
    """The node daemon's process."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.world = machine.world
        self.process = Process(f"daemon-{machine.name}", machine.skew)
        self.process.cut_until = machine.cut_until
        self.wanted: Slot | None = None
        self.since = 0
        self.bus: Bus | None = None
        self._n = int(self.world.loop.now * 1000)
        self._wake = asyncio.Event()
        self._linked = asyncio.Event()
        self._told: tuple[SlotStatus, ...] | None = None
        self._tell_now = asyncio.Event()
        self.world.loop.spawn(self.process, self._main())

    def _now_ms(self) -> int:
        return int((START + self.world.loop.now + self.process.skew) * 1000)

    async def _main(self) -> None:
        self._adopt()
        tasks = [asyncio.create_task(self._keep())]
        while self.bus is None:
            try:
                bus = await aegis_bus.connection.Bus.connect(patches.new_identity(), ["sim"], name=f"node-{self.machine.name}")  # type: ignore[arg-type]
                bus.on_link.append(self._linked.set)
                await bus.subscribe(subjects.node_slot(self.machine.name, "*"), self._woken)
            except BusError:
                await asyncio.sleep(1.0)
            else:
                self.bus = bus
        tasks += [asyncio.create_task(part()) for part in (self._beats, self._statuses, self._reread)]
        await asyncio.gather(*tasks)

    # --- the bus -------------------------------------------------------------------------------------------------------------------

    async def _woken(self, msg: Msg) -> None:
        self._looks = asyncio.create_task(self._look(msg.data))

    async def _look(self, shown: bytes) -> None:
        for wait in LOOK_AGAIN:
            await asyncio.sleep(wait)
            if await self._read() == shown:
                return

    async def _read(self) -> bytes:
        assert self.bus is not None
        try:
            stored = await self.bus.get("NODES", subjects.node_slot(self.machine.name, "0"))
        except BusError:
            return b""
        if stored is None or stored.marker:
            return b""
        if stored.time_ms >= self.since:
            self.since = stored.time_ms
            slot = decode(Slot, stored.data)
            if slot != self.wanted:
                self.wanted = slot
                self._wake.set()
        return stored.data

    async def _reread(self) -> None:
        """At every connect, and now and then."""
        while True:
            self._linked.clear()
            await self._read()
            await self._register()
            self._tell_now.set()
            await self._within(REPEAT, self._linked)

    @staticmethod
    async def _within(seconds: float, event: asyncio.Event) -> None:
        """Until it is set, or for so long."""
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass

    async def _register(self) -> None:
        assert self.bus is not None
        machine = self.machine
        spec = NodeSpec(machine.name, f"host-{machine.name}", f"10.0.0.{machine.name[1:]}", 1, boot=machine.boot_id, at=self._now_ms())
        try:
            stored = await self.bus.get("FLEET", subjects.node_spec(machine.name))
            old = decode(NodeSpec, stored.data) if stored is not None and stored.data else None
            if old is None or msgspec.structs.replace(old, at=spec.at) != spec:
                await self.bus.publish(subjects.node_spec(machine.name), encode(spec))
        except BusError:
            return

    async def _beats(self) -> None:
        assert self.bus is not None
        while True:
            self.bus.core(subjects.node_hb(self.machine.name), b"{}")
            await asyncio.sleep(BEAT)

    async def _statuses(self) -> None:
        assert self.bus is not None
        while True:
            self._tell_now.clear()
            record = self.machine.record
            self._n += 1
            status = NodeStatus(self.machine.name, self.machine.boot_id, self._n, (self._status(record),), self._now_ms())
            try:
                await self.bus.publish(subjects.node_status(self.machine.name), encode(status))
            except BusError:
                self._tell_now.set()
                await asyncio.sleep(0.5)
            await self._within(REPEAT, self._tell_now)

    @staticmethod
    def _status(record: Record | None) -> SlotStatus:
        if record is None:
            return SlotStatus("0")
        state = "gone" if record.stage is Stage.GONE else "running"
        return SlotStatus(
            "0",
            record.job,
            record.uid,
            record.pod,
            record.attempt,
            state,
            record.pid,
            record.exitCode,
            record.signal,
            record.at,
            record.plain,
            record.lastWord,
            record.clean,
            record.message,
        )

    def look(self) -> None:
        self.world.loop.call_soon(self._wake.set, context=self.world.loop.context_of(self.process))

    # --- the slot --------------------------------------------------------------------------------------------------------------------

    def _save(self, record: Record | None) -> None:
        self.machine.record = record
        self._tell_now.set()

    def _adopt(self) -> None:
        """What an earlier daemon left."""
        record = self.machine.record
        self.since = record.since if record is not None else 0
        if record is None or record.stage is Stage.GONE:
            return
        if record.bootId != self.machine.boot_id:
            self._gone(record, None, "the machine was restarted")
        elif record.stage is Stage.STARTING:
            self._save(None)

    def _lives(self) -> bool:
        record, agent = self.machine.record, self.machine.agent
        return record is not None and record.stage is Stage.RUNNING and agent is not None and agent.alive and agent.key == record.key

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            record = self.machine.record
            action = decide(self.wanted, record, self._lives())
            if action is Action.START and self.wanted is not None:
                await self._start(self.wanted)
            elif action is Action.REFUSE and self.wanted is not None:
                self._gone(self._record_for(self.wanted), None, "stopped before it was started")
            elif action is Action.STOP and record is not None:
                await self._stop(record)
            elif action is Action.SETTLE and record is not None:
                await self._settle(record)
            elif record is not None and record.stage is Stage.RUNNING:
                status = self.machine.statuses.get(record.key)
                if status is not None and status.plain and not record.plain:
                    self._save(msgspec.structs.replace(record, plain=True))
            if action in (Action.HOLD, Action.STOP):
                await self._within(LONG, self._wake)

    def _record_for(self, slot: Slot) -> Record:
        grace = decode(JobSpec, slot.spec).stopGrace + STOP_MARGIN
        return Record(slot.job, slot.uid, slot.pod, slot.attempt, bootId=self.machine.boot_id, at=self._now_ms(), since=self.since, grace=grace)

    async def _start(self, slot: Slot) -> None:
        machine = self.machine
        record = self._record_for(slot)
        machine.record = record
        await asyncio.sleep(self.world.rng.uniform(0.01, 0.1))
        if machine.sweep(slot.pod):
            await asyncio.sleep(0.1)
        if self.wanted is None or slot_key(self.wanted) != record.key or self.wanted.stop:
            self._save(None)
            return
        spec = decode(JobSpec, slot.spec)
        task = WorkerTask(
            spec,
            slot.job,
            slot.uid,
            slot.namespace,
            slot.pod,
            slot.attempt,
            slot.workers,
            "",
            "sim:1",
            "",
            slot.plainAddr,
            slot.plainPort,
            node=machine.name,
            address=f"10.0.0.{machine.name[1:]}",
            servers=("sim",),
        )
        machine.statuses.pop(record.key, None)
        machine.last_words.pop(record.key, None)
        machine.agent = Agent(self.world, task)
        self.world.tell(machine.name, f"starts {slot.pod} attempt {slot.attempt}")
        self._save(msgspec.structs.replace(record, stage=Stage.RUNNING, pid=1))
        machine.agent.process.on_death.append(machine.look)

    async def _stop(self, record: Record) -> None:
        agent = self.machine.agent
        if agent is None or not agent.alive:
            return
        agent.terminate()
        for _ in range(20):
            await asyncio.sleep(record.grace / 20)
            if not agent.alive:
                return
        self.machine.kill_agent(children_too=False)

    async def _settle(self, record: Record) -> None:
        await asyncio.sleep(self.world.rng.uniform(0.01, 0.2))
        while self.machine.sweep(record.pod):
            await asyncio.sleep(0.1)
        agent = self.machine.agent
        self._gone(record, agent.exit_code if agent is not None and agent.key == record.key else None)

    def _gone(self, record: Record, code: int | None, message: str = "") -> None:
        last = self.machine.last_words.get(record.key)
        status = self.machine.statuses.get(record.key)
        plain = record.plain or (last is not None and last.plain) or (status is not None and status.plain)
        changes: dict[str, object] = dict(stage=Stage.GONE, at=self._now_ms(), plain=plain, message=message)
        if last is not None:
            changes["lastWord"] = encode(last).decode()
        if code is not None:
            changes |= dict(exitCode=128 - code, signal=-code) if code < 0 else dict(exitCode=code)
        elif last is not None:
            changes["exitCode"] = last.code
        self.world.tell(self.machine.name, f"{record.pod} attempt {record.attempt} is gone: {changes.get('exitCode')} {message}")
        self._save(msgspec.structs.replace(record, **changes))
