"""The agent of a simulated worker: the real `Worker` (orders, reports, heartbeats, what it does when cut off), over processes that are simulated.

Stands in for the executor, the run of the command and the checks; everything that decides is the real code.
"""

from __future__ import annotations

import asyncio
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import aegis_agent.worker
from aegis_agent.checks.interpreter import Interpreter
from aegis_agent.handover import Exit, Status, WorkerTask
from aegis_agent.link import Uplink
from aegis_agent.progress import Progress
from aegis_agent.reasons import Ending
from aegis_agent.runner import RunResult
from aegis_agent.scope import Ended
from aegis_agent.signature import Look
from aegis_proto.ids import pod_index
from aegis_proto.messages import CheckResult, HangData
from aegis_proto.phases import LostReason, MessageType, ReportKind
from aegis_proto.state import Inject
from simulation import patches
from simulation.loop import START, Process
from simulation.training import PLAIN, Child

if TYPE_CHECKING:
    from simulation.world import World

WORLD: World | None = None
"""The world that runs now: what the stand-ins below belong to."""


class CannotDiagnose(Exception):
    """The checks themselves fail, by a fault that was drawn."""


class Link(Uplink):
    """The real uplink, to a bus that asks for no credentials."""

    def open(self) -> None:
        self._identity = patches.new_identity()
        self._tasks = [asyncio.create_task(self._run(), name="uplink")]

    def _bus_ca(self) -> str | None:
        return None


class Run:
    """One run of the command: what `Worker` asks of `aegis_agent.runner.Run`."""

    def __init__(self, world: World, child: Child, grace: float) -> None:
        self.plan = SimpleNamespace(incarnation=max(child.incarnation, 0))
        self.result: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        self.preempted = False
        self.stop_asked = False
        self.gone: Ended | None = None
        self.pids = [1]
        self.age = 0.0
        self.child = child
        self._world = world
        self._grace = grace
        self._stopping: asyncio.Task[Ended] | None = None
        loop, context = world.loop, world.loop.context_of(patches.PROCESS.get())
        child.on_end.append(lambda: loop.call_soon(self._ended, context=context))

    @property
    def alive(self) -> bool:
        return self.child.alive

    @property
    def ended_by_us(self) -> bool:
        if not self.stop_asked:
            return False
        told = self.result.result().ending if self.result.done() else None
        return told is None or told.signal in (0, signal.SIGTERM) or told.signal == signal.SIGKILL

    def _ended(self) -> None:
        child = self.child
        if self.result.done():
            return
        told: Ending | None = None
        if child.signal and self.preempted:
            told = Ending(child.code, child.signal, LostReason.PREEMPTED, "preempted")
        elif child.signal:
            told = Ending(child.code, child.signal, LostReason.SIGNAL, f"signal {child.signal}")
        elif child.code:
            told = Ending(child.code, 0, LostReason(child.reason), child.reason)
        self.result.set_result(RunResult(told, 0, int((START + child.ended_at) * 1000), child.ended_at - child.began))
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop(0.0))

    async def stop(self, grace: float | None = None) -> Ended:
        self.stop_asked = True
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop(self._grace if grace is None else grace))
        return await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> Ended:
        world, child = self._world, self.child
        if child.alive:
            obeys = world.rng.uniform(0.01, 0.3) if world.rng.random() < 0.9 else grace + 0.1
            await asyncio.sleep(min(obeys, grace))
            if obeys < grace:
                child.terminate()
            else:
                child.kill(ordered=True)
        await asyncio.sleep(0.02)
        self._ended()
        self.gone = Ended(True, 0.1)
        return self.gone


class Executor:
    """What `Worker` asks of `aegis_agent.executor.Executor`."""

    def __init__(self, task: WorkerTask, environ: Any, *, light: bool = False) -> None:
        assert WORLD is not None
        self.world = WORLD
        self.task = task
        self.environ = dict(environ)
        self.reaper = None
        self.run: Run | None = None
        self.state_dir = None
        self.people: dict[str, Any] = {}
        self.index = pod_index(task.pod)
        self._progress = Progress()
        self._machine = self.world.machines[task.node]

    async def open(self, on_term: Any, status: Any) -> None:
        self._machine.on_term[self.world.key_of(self.task)] = on_term

    async def close(self, last: Exit) -> None:
        self.note_end(last)

    def say(self, text: str) -> None:
        self.world.tell(f"{self.task.pod}/a{self.task.attempt}", text)

    def write_status(self, status: Status) -> None:
        self._machine.note_status(self.world.key_of(self.task), status)

    def note_end(self, last: Exit) -> None:
        self._machine.last_words[self.world.key_of(self.task)] = last

    @property
    def progress(self) -> Progress:
        if self.run is not None and self.run.child.training is not None:
            training = self.run.child.training
            step = training.step()
            if step > self._progress.step:
                at = training.running_since + step / 2
                self._progress.advance(step, at)
                self._progress.longest_gap = 0.5
        return self._progress

    def start(self, incarnation: int, address: str, port: int, *, bare: bool = False) -> Run:
        return self._start(incarnation)

    def start_plain(self) -> Run:
        return self._start(PLAIN)

    def _start(self, incarnation: int) -> Run:
        self._progress = Progress()
        self._machine.last_words.pop(self.world.key_of(self.task), None)
        child = self.world.start_child(self.task.node, self.task.pod, self.task.attempt, incarnation)
        self.run = Run(self.world, child, self.task.spec.stopGrace)
        return self.run


async def interpreter_of(executor: object) -> Interpreter:
    """No script is read: the command is none that uses torch."""
    return Interpreter()


async def run_round(reaper: Any, context: Any, environ: Any, *, scope: str = "") -> list[CheckResult]:
    """The checks of one round: a little time, then what the state of the machine says."""
    world = WORLD
    assert world is not None
    machine = world.machines[context.node]
    await asyncio.sleep(world.rng.uniform(0.1, 1.0))
    if machine.checks_raise:
        raise CannotDiagnose
    at = int((START + world.loop.now) * 1000)
    return [CheckResult(name, False, "simulated", at) for name in machine.failing] or [CheckResult("gpu", True, "", at)]


class Signature:
    """Stands for `aegis_agent.signature.Signature`: there are no processes to look at."""

    def look(self, roots: object, now: float) -> Look:
        return Look()


class Injector:
    """Stands for `aegis_agent.inject.Injector`: the fault is the end of the simulated child."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.done: set[str] = set()

    def heard(self, ask: Inject | None) -> None:
        run, task = self.worker.exec.run, self.worker.task
        if ask is None or ask.id in self.done or (ask.pod, ask.attempt) != (task.pod, task.attempt) or run is None:
            return
        if run.alive and run.plan.incarnation == ask.incarnation:
            self.done.add(ask.id)
            run.child.end(137, signal.SIGKILL)


class Ports:
    """Stands for `aegis_agent.ports`."""

    @staticmethod
    def free_port(span: object) -> int:
        return 20000

    @staticmethod
    def route_address(server: str) -> str:
        return "10.0.0.1"


class Agent:
    """One agent process."""

    def __init__(self, world: World, task: WorkerTask) -> None:
        self.world = world
        self.task = task
        self.key = world.key_of(task)
        self.process = Process(f"agent-{task.pod}-a{task.attempt}", world.machines[task.node].skew)
        self.process.cut_until = world.machines[task.node].cut_until
        self.exit_code: int | None = None
        self.worker: Any = None
        world.loop.spawn(self.process, self._main())

    async def _main(self) -> None:
        self.worker = aegis_agent.worker.Worker(self.task, {"AEGIS_AGENT_START_WAIT": str(self.world.options.start_wait)})
        self.exit_code = await self.worker.run()
        self.world.tell(self.process.name, f"exits with {self.exit_code}")
        self.world.end_process(self.process)

    @property
    def alive(self) -> bool:
        return self.process.alive

    def terminate(self) -> None:
        """SIGTERM."""
        on_term = self.world.machines[self.task.node].on_term.get(self.key)
        if on_term is None:
            self.exit_code = 143
            self.world.end_process(self.process)
        else:
            self.world.loop.call_soon(on_term, signal.SIGTERM, context=self.world.loop.context_of(self.process))

    def report_hang(self, cleared: bool, kind: str = "hang") -> None:
        """What its monitor would report."""

        def say() -> None:
            worker = self.worker
            run = worker.exec.run if worker is not None else None
            if run is not None and run.alive and not run.stop_asked and not worker.plain:
                data = HangData(kind, cleared, silence=3.0, message="simulated")
                worker.write._put(ReportKind.HANG, MessageType.ERROR, "hang", data)

        self.world.loop.call_soon(say, context=self.world.loop.context_of(self.process))

    def notice(self) -> None:
        """What a monitor of resources would report."""

        def say() -> None:
            self.worker.write.noticed(CheckResult("monitor", False, "simulated", code="gpuIdle"))

        self.world.loop.call_soon(say, context=self.world.loop.context_of(self.process))
