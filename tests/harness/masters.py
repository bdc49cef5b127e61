"""Masters for tests: in this process (fast, settings at will) and as real processes (to be killed)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from aegis_bus.connection import Bus, Stored
from aegis_bus.errors import BusError
from aegis_bus.jobstore import JobStore, Loaded
from aegis_bus.ordered import OrderedReader
from aegis_master.judge import JudgeTimes
from aegis_master.publish import event_id
from aegis_master.service import Master
from aegis_master.settings import MasterSettings, OwnerSettings
from aegis_proto import messages, subjects
from aegis_proto.api import ActionReply, ActionRequest, Submit, SubmitReply, read_reply
from aegis_proto.messages import Era, JobEvent
from aegis_proto.state import JobSpec

from harness.waiting import until

QUICK = MasterSettings(
    owner=replace(OwnerSettings(), judge=JudgeTimes(silent=1.5, unconfirmed=3.0, quiet=1.0), tick=0.1, lazy=0.5, ack_after=0.5, progress=0.5),
    lease_ttl=2.0,
    scan=0.2,
    takeover_delay=0.3,
    era_poll=0.3,
)
"""The same rules in a tenth of the time."""


async def write_era(bus: Bus, era: str = "era1") -> None:
    await bus.publish(subjects.ERA, messages.encode(Era(era)))


class InProcess:
    """A master in this event loop. `crash` leaves everything as kill -9 would: no release, the lease runs out."""

    def __init__(self, bus: Bus, replica: str, settings: MasterSettings = QUICK) -> None:
        self.bus = bus
        self.master = Master(bus, settings, replica)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> InProcess:
        await self.master.start()
        self._task = asyncio.create_task(self.master.run())
        return self

    async def crash(self) -> None:
        if self._task is not None:
            self._task.cancel()
        tasks = [*self.master.ownership._tasks.values(), *self.master.effects._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *([self._task] if self._task else []), return_exceptions=True)
        lease = self.master.lease._task
        if lease is not None:
            lease.cancel()
        await self.bus.close(grace=0.1)

    async def stop(self) -> None:
        await self.master.stop(5.0)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Process:
    """`python -m aegis_master` as a real process."""

    def __init__(self, url: str, replica: str, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.url, self.replica, self.folder = url, replica, folder
        self.env = dict(env or {})
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> Process:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "AEGIS_BUS_SERVERS": self.url,
            "AEGIS_BUS_LEASE_TTL": "2",
            "AEGIS_SERVICE_REPLICA": self.replica,
            **self.env,
        }
        with (self.folder / f"{self.replica}.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(sys.executable, "-m", "aegis_master", env=env, stderr=log, cwd=self.folder)
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.returncode is not None

    async def kill9(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def terminate(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.terminate()
        return await self.process.wait()


async def submit(bus: Bus, spec: JobSpec, uid: str = "", timeout: float = 10.0) -> SubmitReply:
    """Submit by request, again until somebody answers (a repeat with the same uid is the same job)."""
    uid = uid or str(uuid.uuid4())
    body = messages.encode(Submit(spec, uid))

    async def once() -> SubmitReply | None:
        try:
            return read_reply(SubmitReply, await bus.request(subjects.rpc_do("master", "submit", spec.namespace), body, timeout=2.0))
        except BusError:
            return None

    reply: SubmitReply = await until(once, timeout, "submit answered")
    return reply


async def act(bus: Bus, verb: str, job: str, request_id: str = "", namespace: str = "default", **more: object) -> ActionReply:
    request = ActionRequest(job, request_id or str(uuid.uuid4()), who="test", **more)  # type: ignore[arg-type]
    return read_reply(ActionReply, await bus.request(subjects.rpc_do("master", verb, namespace), messages.encode(request), timeout=5.0))


async def state_of(bus: Bus, job: str) -> Loaded:
    loaded = await JobStore(bus).load(job)
    assert loaded is not None
    return loaded


def table(loaded: Loaded) -> str:
    """`1:0:0`"""
    return ":".join(str(pod.retries) for pod in loaded.state.pods())


async def until_phase(bus: Bus, job: str, phase: str, timeout: float = 20.0, incarnation: int | None = None) -> Loaded:
    """Wait until the job is in `phase` (and `incarnation`, when given)."""
    store = JobStore(bus)

    async def there() -> Loaded | None:
        loaded = await store.load(job)
        if loaded is None or loaded.state.head.phase.value != phase:
            return None
        return loaded if incarnation is None or loaded.state.head.incarnation == incarnation else None

    found: Loaded = await until(there, timeout, f"{job} in {phase} {incarnation if incarnation is not None else ''}")
    return found


async def events_of(bus: Bus, job: str, timeout: float = 10.0) -> list[JobEvent]:
    """All events of a job, in order, doubles included; waits until the last transition of the head is among them."""
    head = (await state_of(bus, job)).state.head
    wanted = event_id(job, head.recent[-1])

    async def told() -> list[JobEvent] | None:
        found = await _events(bus, job)
        return found if any(event.eventId == wanted for event in found) else None

    events: list[JobEvent] = await until(told, timeout, f"event of the last transition of {job}")
    return events


async def _events(bus: Bus, job: str) -> list[JobEvent]:
    subject = subjects.job_event(job)
    last = await bus.get("EVENTS", subject)
    found: list[JobEvent] = []
    if last is None:
        return found
    async with OrderedReader(bus, "EVENTS", [subject]) as reader:
        async for item in reader:
            if isinstance(item, Stored):
                found.append(messages.decode(JobEvent, item.data))
                if item.seq >= last.seq:
                    break
    return found
