"""One story of a job told under a master that is killed at a named point, to be compared with the story nobody disturbed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_proto import messages, subjects
from aegis_proto.api import ActionReply, ActionRequest, DeadLetter, read_reply
from aegis_proto.state import JobSpec

from harness.masters import Process, events_of, state_of, submit, table, until_phase, write_era
from harness.simagent import Behaviour, SimPlatform
from harness.waiting import until

QUICK_ENV = {
    "AEGIS_MASTER_SILENT": "1.5",
    "AEGIS_MASTER_QUIET": "1",
    "AEGIS_MASTER_TICK": "0.1",
    "AEGIS_MASTER_SCAN": "0.2",
    "AEGIS_MASTER_TAKEOVER_DELAY": "0.2",
}


@dataclass
class Told:
    """What can be compared between two tellings."""

    story: list[tuple[str, str, str, bool, str]] = field(default_factory=list)
    """(phase, cause, pod, counted, retries) of every transition, in order, doubles dropped by their id."""
    doubles: int = 0
    retries: str = ""
    recover_count: int = 0
    incarnation: int = 0
    attempts: tuple[int, ...] = ()
    reason: str = ""
    letters: int = 0
    max_retry: int = 0


@dataclass
class Stage:
    """A server, and masters that come and go."""

    bus: Bus
    url: str
    folder: Path
    processes: list[Process] = field(default_factory=list)

    async def master(self, name: str, crash_at: str = "") -> Process:
        env = {**QUICK_ENV, **({"AEGIS_CRASH_AT": crash_at} if crash_at else {})}
        process = await Process(self.url, name, self.folder, env).start()
        self.processes.append(process)
        return process


@asynccontextmanager
async def stage(bus: Bus, url: str, folder: Path) -> AsyncIterator[Stage]:
    await write_era(bus)
    made = Stage(bus, url, folder)
    try:
        yield made
    finally:
        for process in made.processes:
            await process.kill9()


async def persistent(bus: Bus, verb: str, job: str, **more: object) -> ActionReply:
    """An acting verb as the command line asks it: the same request again until somebody answers."""
    body = messages.encode(ActionRequest(job, str(uuid.uuid4()), who="test", **more))  # type: ignore[arg-type]

    async def once() -> ActionReply | None:
        try:
            return read_reply(ActionReply, await bus.request(subjects.rpc_do("master", verb, "default"), body, timeout=1.0))
        except BusError:
            return None

    reply: ActionReply = await until(once, 15, f"{verb} answered")
    return reply


async def recovery(on: Stage, *, standby: bool = True) -> Told:
    """Two failures of two kinds, a malformed message, a verb, a good end. `standby`: a second master comes as soon as the first owns the job."""
    reply = await submit(on.bus, JobSpec("story", ("python", "train.py"), workers=3, maxRetry=3), timeout=20)
    job = reply.job
    if standby:
        await on.master("standby")
    platform = await SimPlatform(on.bus, job, reply.uid, behaviour=Behaviour(check_for=0.02)).start()
    try:
        await until_phase(on.bus, job, "RunCommand", incarnation=0, timeout=30)
        await on.bus.publish(subjects.report(job, "w2", "finish"), b"not a message")
        await persistent(on.bus, "set", job, settings={"max-retry": "4"})
        await platform.kill(0)
        await until_phase(on.bus, job, "RunCommand", incarnation=1, timeout=30)
        await platform.agents[1].fail(message="ValueError")
        await until_phase(on.bus, job, "RunCommand", incarnation=2, timeout=30)
        await until(lambda: all(agent.running == 2 for agent in platform.agents.values()), 10, "all run")
        for index in range(3):
            await platform.agents[index].finish()
        await until_phase(on.bus, job, "Succeed", timeout=30)
        return await told(on, job)
    finally:
        await platform.stop()


async def silent_death(on: Stage) -> Told:
    """An agent dies without a word, another one misses it."""
    reply = await submit(on.bus, JobSpec("silent", ("python", "train.py"), workers=3, maxRetry=3), timeout=20)
    await on.master("standby")
    platform = await SimPlatform(on.bus, reply.job, reply.uid, behaviour=Behaviour(check_for=0.02, heartbeat=0.2)).start()
    try:
        await until_phase(on.bus, reply.job, "RunCommand", incarnation=0, timeout=30)
        await platform.kill(2, tell=False)
        await platform.agents[0].fail(reason="collateral", message="connection reset by peer")
        await until_phase(on.bus, reply.job, "RunCommand", incarnation=1, timeout=40)
        return await told(on, reply.job)
    finally:
        await platform.stop()


async def never_placed(on: Stage) -> Told:
    """Nobody comes: the placing deadline ends the job."""
    reply = await submit(on.bus, JobSpec("nobody", ("true",), workers=2, placingTimeout=2.0), timeout=20)
    await on.master("standby")
    await until_phase(on.bus, reply.job, "Failed", timeout=30)
    return await told(on, reply.job)


async def stopped_by_hand(on: Stage, how: str, successor_dies_at: str = "") -> Told:
    """The owner gets `how` (term or kill) while the job runs; later the job ends well. A second master
    comes before that; one that dies at `successor_dies_at`, and then a third."""
    first = on.processes[0]
    reply = await submit(on.bus, JobSpec("handed", ("true",), workers=2, maxRetry=1), timeout=20)
    platform = await SimPlatform(on.bus, reply.job, reply.uid, behaviour=Behaviour(check_for=0.02)).start()
    try:
        await until_phase(on.bus, reply.job, "RunCommand", timeout=30)
        second = await on.master("second", successor_dies_at)
        await (first.terminate() if how == "term" else first.kill9())
        if successor_dies_at:
            await until(lambda: second.ended, 30, f"the one that takes over dies at {successor_dies_at}")
            await on.master("third")
        await platform.agents[0].fail()
        await until_phase(on.bus, reply.job, "RunCommand", incarnation=1, timeout=40)
        for agent in platform.agents.values():
            await agent.finish()
        await until_phase(on.bus, reply.job, "Succeed", timeout=30)
        return await told(on, reply.job)
    finally:
        await platform.stop()


async def told(on: Stage, job: str) -> Told:
    """What the stored state and the events say."""
    events = await events_of(on.bus, job, timeout=30)
    unique = {event.eventId: event for event in events}
    loaded = await state_of(on.bus, job)
    head = loaded.state.head
    transitions = [event for event in unique.values() if event.type in ("created", "phase", "counted")]
    return Told(
        story=[(event.phase, event.cause, event.pod, event.counted, event.retries) for event in transitions],
        doubles=len(events) - len(unique),
        retries=table(loaded),
        recover_count=head.recoverCount,
        incarnation=head.incarnation,
        attempts=tuple(pod.attempt for pod in loaded.state.pods()),
        reason=head.failedReason.value if head.failedReason else "",
        letters=await letters(on.bus),
        max_retry=head.maxRetry,
    )


async def letters(bus: Bus) -> int:
    """Different messages in the dead-letter stream."""
    found: set[int] = set()
    seq = 1
    while (item := await bus.get_seq("DLQ", seq)) is not None:
        found.add(messages.decode(DeadLetter, item.data).seq)
        seq += 1
    return len(found)
