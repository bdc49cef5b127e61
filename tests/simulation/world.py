"""One simulated world from one seed: a job, its masters, job controllers and machines, over a simulated server and clock.

`run(seed)` plays it to the end of the job and gives the verdict. The same seed is the same world, to the last message.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aegis_agent.companions
import aegis_agent.diagnosis
import aegis_agent.mode
import aegis_agent.presence
import aegis_agent.worker
import aegis_bus.connection
import aegis_jobcontroller.cache
import aegis_jobcontroller.facts
import aegis_jobcontroller.nodes
import aegis_jobcontroller.service
import aegis_jobcontroller.world
import aegis_master.metrics
import structlog
from aegis_agent.handover import WorkerTask
from aegis_bus.errors import BusError, WrongLastSequence
from aegis_bus.jobstore import JobStore
from aegis_master import machine, transitions
from aegis_master.clock import ServerClock
from aegis_master.judge import JudgeTimes
from aegis_master.settings import MasterSettings, OwnerSettings
from aegis_master.story import retries
from aegis_proto import messages, subjects
from aegis_proto.messages import Era
from aegis_proto.phases import Phase
from aegis_proto.state import JobSpec
from aegis_proto.streams import stream_configs
from simulation import agents, patches
from simulation.check import Check
from simulation.client import Network
from simulation.coverage import Coverage, name_of
from simulation.faults import Faults
from simulation.loop import START, Loop, Process, kill
from simulation.machines import Machine
from simulation.server import Server, Stream
from simulation.services import Credentials, JobController, Replica
from simulation.training import Child, Training

Key = tuple[str, str, int]
LIMIT = 400.0
"""Virtual seconds after which a job that has not ended never will."""
AFTER_END = 0.3
STREAMS = {
    config["name"]: config for config in stream_configs() if config["name"] in ("CTL", "LEASES", "NODES", "FLEET", "HELD", "REPORTS", "EVENTS", "DLQ")
}

SCALED: tuple[tuple[Any, str, float], ...] = (
    (aegis_agent.worker, "HEARTBEAT", 2.0),
    (aegis_agent.presence, "PENDING_AGAIN", 10.0),
    (aegis_agent.worker, "HOLD", 60.0),
    (aegis_agent.mode, "CUT_OFF", 12.0),
    (aegis_jobcontroller.world, "SILENT", 6.0),
    (aegis_jobcontroller.cache, "SILENT", 6.0),
    (aegis_jobcontroller.facts, "SILENT_REPEAT", 10.0),
    (aegis_jobcontroller.service, "TICK", 3.0),
)
"""Constants of the real code in the simulated world: the same rules, in less virtual time."""


@dataclass(frozen=True)
class Options:
    """What a seed draws."""

    workers: int
    replicas: int
    controllers: int
    machines: int
    max_retry: int
    run_for: tuple[float, float]
    start_wait: float
    reset_after: float
    master: MasterSettings

    @classmethod
    def draw(cls, rng: random.Random) -> Options:
        workers = rng.choice((1, 2, 2, 2, 3, 3, 4))
        judge = JudgeTimes(silent=6.0, unconfirmed=20.0, quiet=8.0, peer_memory=20.0, heartbeat=2.0, fence=22.0)
        owner = OwnerSettings(judge=judge, tick=1.0, ack_after=2.0, progress=10.0)
        return cls(
            workers,
            replicas=rng.choice((1, 2, 2, 2, 3)),
            controllers=rng.choice((1, 1, 1, 2)),
            machines=workers + rng.choice((0, 1, 1)),
            max_retry=rng.choice((0, 1, 2, 2, 3)),
            run_for=rng.choice(((1.0, 3.0), (4.0, 10.0), (6.0, 15.0))),
            start_wait=rng.choice((6.0, 20.0)),
            reset_after=rng.choice((0.0, 0.0, 0.0, 3.0)),
            master=MasterSettings(owner, lease_ttl=3.0, scan=1.5, takeover_delay=0.5, era_poll=5.0),
        )


@dataclass(frozen=True)
class Scene:
    """A world whose faults are told instead of drawn. `play` begins them; `options` are those of `Options`."""

    play: Callable[[World], None]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """The verdict on one seed."""

    seed: int
    problems: list[str]
    story: list[str]
    phase: str
    reason: str
    virtual: float
    callbacks: int
    steps: int
    commits: int
    counted: int
    retries: str = ""
    faults: list[tuple[float, str]] = field(default_factory=list)
    """As drawn: virtual second, name."""
    coverage: Coverage = field(default_factory=Coverage)
    traces: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Master -> its trace, when the story is kept."""

    @property
    def ok(self) -> bool:
        return not self.problems


class World:
    """See the module. `story`: keep what happens, for people."""

    def __init__(self, seed: int, story: bool = False, scene: Scene | None = None) -> None:
        self.seed = seed
        self.scene = scene
        self.rng = random.Random(seed)
        self.story: list[str] | None = [] if story else None
        self.loop = Loop()
        draw = self.rng.random
        self.latency = lambda: 0.0002 + 0.002 * draw()
        """Seconds that a message takes, one way."""
        self.options = replace(Options.draw(self.rng), **(scene.options if scene is not None else {}))
        self.check = Check(self)
        self.server = Server(self.loop, self.rng)
        self.server.on_stored = self.check.stored
        self.server.streams = {name: Stream(name, config) for name, config in STREAMS.items()}
        self.network = Network(self.loop, self.server, self.latency)
        self.spec = JobSpec(
            "sim",
            ("train",),
            allowInject=True,
            workers=self.options.workers,
            maxRetry=self.options.max_retry,
            stopGrace=1.0,
            preemptGrace=3.0,
            hangTimeout=8.0,
            placingTimeout=40.0,
            pendingTimeout=15.0,
            roundTimeout=15.0,
            retryResetAfter=self.options.reset_after,
        )
        self.job, self.uid = "sim-000001", "00000001-sim"
        self.eras = 1
        self.over = False
        self.children: list[Child] = []
        self.trainings: dict[int, Training] = {}
        self.processes: list[Process] = []
        self.replicas: dict[str, Replica] = {}
        self.controllers: dict[str, JobController] = {}
        self.credentials: Credentials | None = None
        self.machines: dict[str, Machine] = {}
        self.coverage = Coverage()
        self.faults = Faults(self)
        self._names = 0
        self._nobody = self.loop.context_of(None)

    # --- small words -------------------------------------------------------------------------------------------------------------------

    def later(self, seconds: float, work: Callable[..., Any], *args: Any) -> None:
        self.loop.call_later(seconds, work, *args, context=self._nobody)

    def tell(self, who: str, text: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.loop.now:9.3f}  {who:<16} {text}")

    def key_of(self, task: WorkerTask) -> Key:
        return (task.uid, task.pod, task.attempt)

    def new_name(self, name: str) -> str:
        self._names += 1
        return f"{name.partition('-')[0]}-{self._names}"

    def _skew(self) -> float:
        return self.rng.choice((0.0, 0.0, self.rng.uniform(-30.0, 30.0)))

    # --- who is there --------------------------------------------------------------------------------------------------------------------

    def start_replica(self, name: str) -> None:
        known = self.replicas.get(name)
        if known is None or not known.process.alive:
            self.tell(name, "starts")
            self.replicas[name] = Replica(self, name, self._skew())
            self.processes.append(self.replicas[name].process)

    def start_controller(self, name: str) -> None:
        known = self.controllers.get(name)
        if known is None or not known.process.alive:
            self.tell(name, "starts")
            self.controllers[name] = JobController(self, name, self._skew())
            self.processes.append(self.controllers[name].process)

    def start_credentials(self, name: str) -> None:
        if self.credentials is None or not self.credentials.process.alive:
            self.tell(name, "starts")
            self.credentials = Credentials(self, name, 0.0)
            self.processes.append(self.credentials.process)

    def end_process(self, process: Process) -> None:
        kill(process)

    def start_child(self, node: str, pod: str, attempt: int, incarnation: int) -> Child:
        child = Child(self, node, pod, attempt, incarnation, self.loop.now)
        self.check.starts(child)
        self.tell(node, f"child {child.name} starts")
        self.children.append(child)
        training = self.trainings.get(incarnation)
        if training is None:
            training = self.trainings[incarnation] = Training(self, incarnation)
        training.join(child)
        return child

    # --- the play ------------------------------------------------------------------------------------------------------------------------

    async def _submit(self) -> None:
        """What the API of a master does for a user, until it is known to be done."""
        bus = await aegis_bus.connection.Bus.connect(patches.new_identity(), ["sim"], name="submit", timeout=300.0)  # type: ignore[arg-type]
        store = JobStore(bus)
        state = machine.create(self.job, self.spec, self.uid, "era1", int((START + self.loop.now) * 1000))
        while True:
            try:
                await store.create(state)
                return
            except WrongLastSequence:
                return
            except BusError:
                await asyncio.sleep(1.0)

    def ended(self) -> None:
        """The job is in a terminal phase, as stored. A little later so is the world."""
        self.over = True
        self.later(AFTER_END, self.loop.stop)

    def play(self) -> Result:
        options = self.options
        self.server.handle(None, subjects.ERA, messages.encode(Era("era1", reason="created")), None, "")
        for i in range(options.machines):
            self.machines[f"n{i}"] = Machine(self, f"n{i}", self._skew())
            self.later(self.rng.uniform(0, 0.5), self.machines[f"n{i}"].power_on)
        for i in range(options.replicas):
            self.later(self.rng.uniform(0, 0.5), self.start_replica, f"m{i}")
        for i in range(options.controllers):
            self.later(self.rng.uniform(0, 0.5), self.start_controller, f"c{i}")
        self.later(self.rng.uniform(0, 0.5), self.start_credentials, "credentials")
        self.later(self.rng.uniform(0, 1.0), self._spawn_submit)
        if self.scene is None:
            self.faults.draw()
        else:
            self.scene.play(self)
        self.later(LIMIT, self.loop.stop)
        self.loop.run()
        self.check.ends(self.loop.now)
        for error in self.loop.errors:
            self.check.problem(f"unhandled: {error}")
        head = self.check.state.head if self.check.state is not None else None
        return Result(
            self.seed,
            self.check.problems,
            self.story or [],
            head.phase.value if head is not None else "",
            str(head.failedReason or "") if head is not None else "",
            self.loop.now,
            self.loop.callbacks,
            self.check.steps,
            self.check.commits,
            len(self.check.counted),
            retries(self.check.state.shards) if self.check.state is not None else "",
            self.faults.drawn,
            self.coverage,
            self.check.traces,
        )

    def clear(self) -> None:
        """Nothing of this world is left running."""
        loop = self.loop
        for owner in (self.server, self.network, self.check, self.faults, self):
            vars(owner).clear()
        loop.clear()

    def _spawn_submit(self) -> None:
        self.loop.spawn(Process("submit"), self._submit())


class Loud(logging.Handler):
    """What the code itself calls an error is a problem."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        drawn = record.exc_info is not None and record.exc_info[0] is agents.CannotDiagnose
        if record.levelno >= logging.ERROR and record.exc_info and not drawn:
            self.world.check.problem(f"logged by {record.name}: {text}")
        elif self.world.story is not None:
            process = patches.PROCESS.get()
            self.world.tell(process.name if process is not None else "-", f"[{record.levelname.lower()}] {text}")


def _to_logging(logger: Any, method: str, event: dict[str, Any]) -> Any:
    """structlog's line to the handler above."""
    exc_info = event.pop("exc_info", None)
    name = event.pop("event")
    text = f"{name} {' '.join(f'{key}={value}' for key, value in event.items())}"
    level = logging.ERROR if method == "exception" else getattr(logging, method.upper(), logging.INFO)
    logging.getLogger("aegis.structlog").log(level, "%s", text, exc_info=exc_info if method == "exception" else None)
    raise structlog.DropEvent


@contextmanager
def _staged(world: World) -> Iterator[None]:
    """The stand-ins of `agents`, scaled constants and the log, for the time of the play."""
    worker = aegis_agent.worker
    clock = patches.Clock(world.loop)
    level = logging.DEBUG if world.story is not None else logging.ERROR
    saved: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        saved.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    for owner, name, value in SCALED:
        put(owner, name, value)
    stand_ins = dict(Executor=agents.Executor, Uplink=agents.Link, Signature=agents.Signature, Injector=agents.Injector, hello=lambda task: None)
    for name, value in stand_ins.items():
        put(worker, name, value)
    put(aegis_agent.diagnosis, "run_round", agents.run_round)
    put(aegis_agent.diagnosis, "interpreter_of", agents.interpreter_of)
    put(aegis_agent.diagnosis, "ports", agents.Ports)
    put(aegis_agent.presence, "ports", agents.Ports)
    put(aegis_agent.companions, "COMPANIONS", ())
    put(agents, "WORLD", world)
    put(aegis_jobcontroller.nodes, "_gauges", lambda world: None)  # nobody scrapes a simulated process
    put(aegis_master.metrics, "show_job", lambda before, head: None)
    put(aegis_master.metrics, "forget_job", lambda head: None)
    find = transitions.find

    def found(source: Phase | None, target: Phase, trigger: transitions.Trigger) -> transitions.Edge | None:
        edge = find(source, target, trigger)
        if edge is not None:
            world.coverage.rows[name_of(edge)] += 1
        return edge

    put(transitions, "find", found)
    put(ServerClock.__init__, "__defaults__", (clock.time, clock.monotonic))
    handler = Loud(world)
    root = logging.getLogger()
    before = root.level, root.handlers[:], logging.getLogger("asyncio").level
    root.handlers[:], root.level = [handler], level
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    was = structlog.get_config()
    structlog.configure(
        processors=[_to_logging],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )
    try:
        with patches.installed(world.network, world.rng):
            yield
    finally:
        structlog.configure(**was)
        root.handlers[:] = before[1]
        root.setLevel(before[0])
        logging.getLogger("asyncio").setLevel(before[2])
        for owner, name, value in reversed(saved):
            setattr(owner, name, value)


BETWEEN = 16
"""Worlds after which what is left of them is collected: each time costs as much as a third of a world."""
KEPT: list[World] = []


def play_and_keep(seeds: Iterable[int]) -> Iterator[Result]:
    """Play worlds in a process that will end without a cleanup (`run.in_child`): what is left of each, about 2 MB, stays where it lies."""
    gc.disable()
    for seed in seeds:
        world = World(seed)
        KEPT.append(world)
        with _staged(world):
            result = world.play()
        yield result


def play(seeds: Iterable[int], story: bool = False, scene: Scene | None = None) -> Iterator[Result]:
    """Play worlds, one after the other."""
    gc.disable()
    gc.freeze()
    loop = Loop()
    try:
        for n, seed in enumerate(seeds, 1):
            world = World(seed, story, scene)
            with _staged(world):
                try:
                    result = world.play()
                finally:
                    loop = world.loop
                    world.clear()
            del world
            if n % BETWEEN == 0:
                loop.collect()
            yield result
    finally:
        loop.collect()
        gc.unfreeze()
        gc.enable()


def run(seed: int, story: bool = False, scene: Scene | None = None) -> Result:
    """Play one world."""
    (result,) = play([seed], story, scene)
    return result
