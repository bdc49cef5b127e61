"""Agents and a platform that run no processes: they follow the order protocol over a real bus, so that the master can be tried alone and at scale.

`SimAgent` is one attempt of one pod: it obeys the highest (era, incarnation, seqNum) that names its attempt, acknowledges, checks, "runs", stops.
`SimPlatform` is a job controller without machines: it fills empty places with agents of the attempt that the state names and tells facts.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aegis_bus.connection import Bus, Msg
from aegis_bus.errors import BusError
from aegis_bus.jobstore import JobStore
from aegis_proto import messages, subjects
from aegis_proto.ids import pod_name
from aegis_proto.messages import AckData, CheckResponse, CheckResult, ErrorData, Fact, FinishData, Heartbeat, Message, PendingData, StoppedData
from aegis_proto.phases import FactKind, MessageType, OrderPhase, ReportKind
from aegis_proto.state import Head

ROUNDS = (OrderPhase.BOOTCHECK, OrderPhase.COMMAND, OrderPhase.TROUBLESHOOT)


@dataclass
class Behaviour:
    """How an agent acts. Seconds."""

    run_for: float | None = None
    """The command ends with 0 after this long; None = when `finish` is called."""
    check_for: float = 0.0
    failed_checks: tuple[str, ...] = ()
    heartbeat: float | None = 1.0
    """None = no heartbeats."""
    acks: bool = True
    poll: float | None = None
    """Direct Get of the head this often, besides the view; None = never after the start."""


@dataclass
class SimAgent:
    """One attempt of one pod. `start`, then it lives by itself until `quit`, `leave` or `kill`."""

    bus: Bus
    job: str
    uid: str
    index: int
    attempt: int = 1
    name: str = "sim"
    namespace: str = "default"
    node: str = ""
    behaviour: Behaviour = field(default_factory=Behaviour)
    on_report: Callable[[str, str], None] = lambda kind, phase: None
    boot: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        self.pod = pod_name(self.index)
        self.node = self.node or f"node{self.index}"
        self.era = ""
        self.key: tuple[int, int] = (-1, -1)  # (incarnation, seqNum) of the order obeyed last
        self.order = OrderPhase.WAIT
        self.running = -1  # incarnation of the child; -1 = none
        self.step = -1
        self.checkpoint = -1
        self.beats = 0
        self.alive = False
        self.left: str = ""
        self.orders: list[tuple[str, int, int]] = []
        self.sent: list[tuple[str, str, int]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._sub: object = None

    # --- life ------------------------------------------------------------------------------------------------------------------

    async def start(self) -> SimAgent:
        self.alive = True
        self._sub = await self.bus.subscribe(subjects.view_job_state(self.job), self._on_view)
        await self._read_head(act=False)
        await self.pending()
        await self._read_head(act=True)
        if self.behaviour.heartbeat:
            self._spawn(self._beat(self.behaviour.heartbeat))
        if self.behaviour.poll:
            self._spawn(self._poll(self.behaviour.poll))
        return self

    async def kill(self) -> None:
        """As SIGKILL: nothing more is said."""
        self.alive = False
        self.running = -1
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        if self._sub is not None:
            await self._sub.unsubscribe()  # type: ignore[attr-defined]
            self._sub = None

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- orders ------------------------------------------------------------------------------------------------------------------

    async def _on_view(self, msg: Msg) -> None:
        if self.alive and msg.data:
            await self.obey(messages.decode(Head, msg.data))

    async def _read_head(self, act: bool) -> None:
        stored = await self.bus.get("CTL", subjects.job_state(self.job))
        if stored is None or stored.marker:
            return
        head = messages.decode(Head, stored.data)
        if act:
            await self.obey(head)
        else:
            self.era = head.era
            # A new boot never starts the run of the present incarnation on its own: it waits for the next order.
            self.key = (head.order.incarnation, head.order.seqNum) if head.order.phase is OrderPhase.COMMAND else (-1, -1)

    async def _poll(self, every: float) -> None:
        while self.alive:
            await asyncio.sleep(every)
            try:
                await self._read_head(act=True)
            except BusError:
                continue

    def _names_me(self, head: Head) -> bool:
        left = self.index
        for attempt, count in head.order.attempts:
            if left < count:
                return attempt == self.attempt
            left -= count
        return False

    async def obey(self, head: Head) -> None:
        """Act on an order that is above the last one and names this attempt. A repeat is nothing new: its acknowledgement is stored."""
        if head.uid != self.uid:
            return
        order = head.order
        key = (order.incarnation, order.seqNum)
        if head.era != self.era:
            self.era = head.era
            self.key = (-1, -1)
            await self.pending()
        if key <= self.key or not self._names_me(head):
            return
        self.key = key
        phase = order.exceptions.get(self.pod, order.phase)
        self.order = phase
        self.orders.append((phase.value, order.incarnation, order.seqNum))
        await self._act(phase, order.incarnation)

    async def _act(self, phase: OrderPhase, incarnation: int) -> None:
        if phase in ROUNDS and self.behaviour.acks:
            await self.ack()
        if phase in (OrderPhase.BOOTCHECK, OrderPhase.TROUBLESHOOT):
            self.running = -1
            self._spawn(self._check(self.key))
        elif phase is OrderPhase.COMMAND:
            if self.running != incarnation:
                self.running = incarnation
                self.step = 0
                if self.behaviour.run_for is not None:
                    self._spawn(self._run(self.key, self.behaviour.run_for))
        elif phase is OrderPhase.STOP:
            self.running = -1
            await self.say(ReportKind.STOPPED, MessageType.ACK, "stop", StoppedData(incarnation=incarnation))
        elif phase is OrderPhase.HANG_WITH_QUIT:
            self.running = -1
            await self.say(ReportKind.STOPPED, MessageType.ACK, "stop", StoppedData(incarnation=incarnation, leaving=True))
            self.left = "leave"
        elif phase is OrderPhase.QUIT:
            self.running = -1
            self.left = "quit"
        elif phase is OrderPhase.PLAIN:
            self.running = incarnation
            self.left = "plain"

    async def _check(self, key: tuple[int, int]) -> None:
        await asyncio.sleep(self.behaviour.check_for)
        if key == self.key and self.alive:
            results = tuple(CheckResult(name, False, "simulated", int(time.time() * 1000)) for name in self.behaviour.failed_checks)
            results = results or (CheckResult("node", True, "", int(time.time() * 1000)),)
            await self.say(ReportKind.FINISH, MessageType.FINISH, self.order.value, CheckResponse(results, f"10.0.0.{self.index % 250}", 20000))

    async def _run(self, key: tuple[int, int], seconds: float) -> None:
        await asyncio.sleep(seconds)
        if key[0] == self.running and self.alive:
            await self.finish()

    # --- reports -----------------------------------------------------------------------------------------------------------------

    def message(self, kind: MessageType, phase: str, data: object) -> Message:
        incarnation, seq_num = self.key
        return Message(
            AegisName=self.name,
            AegisNamespace=self.namespace,
            podName=self.pod,
            type=kind,
            phase=phase,
            data=messages.raw(data),
            timeStamp=int(time.time() * 1000),
            uid=self.uid,
            era=self.era,
            attempt=self.attempt,
            boot=self.boot,
            incarnation=max(0, incarnation),
            seqNum=max(0, seq_num),
        )

    async def say(self, kind: ReportKind, type_: MessageType, phase: str, data: object) -> None:
        """One report, stored once however often its answer is lost."""
        body = messages.encode(self.message(type_, phase, data))
        msg_id = self.bus.next_msg_id()
        while self.alive:
            try:
                await self.bus.publish(subjects.report(self.job, self.pod, kind.value), body, msg_id=msg_id, timeout=10.0)
                break
            except BusError:
                await asyncio.sleep(0.2)
        self.sent.append((kind.value, phase, self.key[1]))
        self.on_report(kind.value, phase)

    async def pending(self) -> None:
        data = PendingData(podIP=f"10.0.0.{self.index % 250}", nodeName=self.node, running=self.running >= 0, incarnation=self.running)
        await self.say(ReportKind.PENDING, MessageType.ACK, "", data)

    async def ack(self) -> None:
        await self.say(ReportKind.ACK, MessageType.ACK, self.order.value, AckData(pid=1))

    async def finish(self) -> None:
        """The command ended with 0."""
        await self.say(ReportKind.FINISH, MessageType.FINISH, "command", FinishData(0, self.step))

    async def fail(self, reason: str = "error", message: str = "simulated", exit_code: int = 1) -> None:
        """The command failed."""
        self.running = -1
        now = int(time.time() * 1000)
        await self.say(ReportKind.ERROR, MessageType.ERROR, "command", ErrorData(reason, exit_code, message=message, diedAt=now, ranFor=60.0))

    async def _beat(self, every: float) -> None:
        await asyncio.sleep(every * secrets.randbelow(1000) / 1000)
        while self.alive:
            self.beat()
            await asyncio.sleep(every)

    def beat(self) -> None:
        self.beats += 1
        if self.running >= 0:
            self.step += 1
        body = Heartbeat(
            self.boot, self.beats, self.attempt, max(0, self.key[0]), max(0, self.key[1]), self.running >= 0, self.step, checkpoint=self.checkpoint
        )
        self.bus.core(subjects.heartbeat(self.job, self.pod), messages.encode(body))


class SimPlatform:
    """Fills the places of one job and tells facts, level by level from the stored state. `behaviours` may name one per (index, attempt)."""

    def __init__(self, bus: Bus, job: str, uid: str, *, behaviour: Behaviour | None = None, name: str = "sim") -> None:
        self.bus = bus
        self.job = job
        self.uid = uid
        self.name = name
        self.behaviour = behaviour or Behaviour()
        self.behaviours: dict[tuple[int, int], Behaviour] = {}
        self.agents: dict[int, SimAgent] = {}
        self.head: Head | None = None
        self.paused = False
        """True: no place is filled now."""
        self._store = JobStore(bus)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sub: object = None
        self._stopping = False

    async def start(self) -> SimPlatform:
        self._sub = await self.bus.subscribe(subjects.view_job_state(self.job), self._on_view)
        self._task = asyncio.create_task(self._loop())
        return self

    async def stop(self) -> None:
        # Not by cancelling: on Python 3.11 asyncio.wait_for inside nats-py may swallow a cancellation, and the loop would go on.
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._sub is not None:
            await self._sub.unsubscribe()  # type: ignore[attr-defined]
        for agent in list(self.agents.values()):
            await agent.kill()

    async def _on_view(self, msg: Msg) -> None:
        if msg.data:
            self.head = messages.decode(Head, msg.data)
        self._wake.set()

    async def _loop(self) -> None:
        while not self._stopping:
            try:
                await self._reconcile()
            except BusError:
                await asyncio.sleep(0.1)
            try:
                async with asyncio.timeout(0.2):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _reconcile(self) -> None:
        loaded = await self._store.load(self.job)
        if loaded is None:
            return
        state = loaded.state
        self.head = state.head
        for index, agent in list(self.agents.items()):
            if agent.left in ("leave", "quit") and agent.alive:
                await self._gone(index, agent, 1 if agent.left == "leave" else 0)
        if state.head.phase.terminal or self.paused:
            return
        for index, pod in enumerate(state.pods()):
            agent = self.agents.get(index)
            if pod.present or (agent is not None and agent.alive):
                continue
            if pod.gone or (agent is not None and not agent.alive):
                await self._place(index, pod.attempt)

    async def _place(self, index: int, attempt: int) -> None:
        known = self.agents.get(index)
        if known is not None and known.attempt >= attempt:
            return
        behaviour = self.behaviours.get((index, attempt), self.behaviour)
        agent = SimAgent(self.bus, self.job, self.uid, index, attempt, name=self.name, behaviour=behaviour)
        self.agents[index] = agent
        await self.fact(index, attempt, FactKind.RUNNING)
        await agent.start()

    async def _gone(self, index: int, agent: SimAgent, exit_code: int | None, signal: int = 0) -> None:
        await agent.kill()
        await self.fact(index, agent.attempt, FactKind.GONE, exit_code=exit_code, signal=signal)
        self._wake.set()

    async def kill(self, index: int, tell: bool = True) -> None:
        """SIGKILL of the agent of a place; with `tell` the platform notices at once."""
        agent = self.agents[index]
        if tell:
            await self._gone(index, agent, None, 9)
        else:
            await agent.kill()

    async def fact(self, index: int, attempt: int, kind: FactKind, exit_code: int | None = None, signal: int = 0) -> None:
        fact = Fact(kind, self.uid, attempt, f"node{index}", exit_code, signal, int(time.time() * 1000))
        msg_id = f"{self.uid}-{index}-{attempt}-{kind.value}-{secrets.token_hex(4)}"
        while not self._stopping:
            try:
                await self.bus.publish(subjects.fact(self.job, pod_name(index)), messages.encode(fact), msg_id=msg_id, timeout=5.0)
                return
            except BusError:
                await asyncio.sleep(0.1)
