"""A master that does as it is told, over a real nats-server: it writes heads and reads reports. And the agent beside it, as a real process.

The server asks for no credentials here; the way through the credentials service has its own test.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from aegis_agent.handover import Exit, WorkerTask, read_exit, read_status
from aegis_bus.connection import Bus, Stored
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer
from aegis_bus.ordered import OrderedReader
from aegis_proto import subjects
from aegis_proto.messages import Heartbeat, Message, decode, decode_data, encode
from aegis_proto.phases import OrderPhase
from aegis_proto.state import Head, JobSpec, Order
from aegis_proto.streams import STREAMS

JOB, UID = "train-abc123", f"uid-{os.getpid()}"  # of this process: tests run side by side, and look for processes of their job
WAIT = 30.0


async def until(what: Callable[[], Any], why: str, timeout: float = WAIT) -> Any:
    """The first true value of `what()`; an error that says `why` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not (value := what()):
        if time.monotonic() > end:
            raise AssertionError(f"no {why} within {timeout} s")
        await asyncio.sleep(0.005)
    return value


class ScriptedMaster:
    """Streams CTL and REPORTS, one job, its orders, and all reports so far (`reports`, in stream order)."""

    def __init__(self, bus: Bus, workers: int = 1) -> None:
        self.bus = bus
        self.workers = workers
        self.reports: list[tuple[str, Message]] = []
        self.stored_at: list[int] = []  # ms, of each of them, by the server
        self.beats: list[Heartbeat] = []
        self.head: Head | None = None
        self.seq = 0
        self.incarnation = 0
        self.era = "01A"
        self.attempt = 1
        self._seen = 0

    @classmethod
    async def open(cls, server: NatsServer, workers: int = 1) -> ScriptedMaster:
        bus = await Bus.connect(Identity.new(), [server.url], name="master-1")
        self = cls(bus, workers)
        for config in STREAMS:
            if config["name"] in ("CTL", "REPORTS"):
                answer = json.loads(await bus.request(f"$JS.API.STREAM.CREATE.{config['name']}", json.dumps({"storage": "file", **config}).encode()))
                assert "error" not in answer or answer["error"]["err_code"] == 10058, answer

        async def beat(msg: Any) -> None:
            self.beats.append(decode(Heartbeat, msg.data))

        await bus.subscribe(subjects.heartbeat(JOB, "*"), beat)
        self._reading = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        async with OrderedReader(self.bus, "REPORTS", [subjects.report(JOB, "*", "*")]) as reader:
            async for item in reader:
                assert isinstance(item, Stored), item
                self.stored_at.append(item.time_ms)
                self.reports.append((item.subject.rpartition(".")[2], decode(Message, item.data)))

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self.bus.close(grace=1.0)

    async def order(self, phase: OrderPhase, **changes: Any) -> None:
        """Write a new head with the next order."""
        self.seq += 1
        if "incarnation" in changes:
            self.incarnation = changes.pop("incarnation")
        attempts = changes.pop("attempts", ((self.attempt, self.workers),))
        order = Order(phase, self.seq, self.incarnation, attempts, **changes)
        await self.write(order)

    async def repeat(self, round_seq: int) -> None:
        """The present order under a new number; its round began with order `round_seq`."""
        assert self.head is not None
        self.seq += 1
        await self.write(msgspec.structs.replace(self.head.order, seqNum=self.seq), round_seq)

    async def write(self, order: Order, round_seq: int | None = None) -> None:
        head = Head(job=JOB, name="train", namespace="default", uid=UID, workerNum=self.workers, maxRetry=3, era=self.era, order=order)
        self.head = msgspec.structs.replace(head, roundSeqNum=order.seqNum if round_seq is None else round_seq)
        await self.bus.publish(subjects.job_state(JOB), encode(self.head))

    async def report(self, kind: str, where: Callable[[Message], bool] = lambda _: True, pod: str = "w0", timeout: float = WAIT) -> Message:
        """The next report of this kind that is not older than the last one taken."""

        def find() -> Message | None:
            for at, (name, message) in enumerate(self.reports[self._seen :]):
                if name == kind and message.podName == pod and where(message):
                    self._seen += at + 1
                    return message
            return None

        try:
            message: Message = await until(find, f"report {kind} of {pod}", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}; arrived: {[(k, m.phase, m.seqNum) for k, m in self.reports]}") from None
        return message

    async def data(self, kind: str, **given: Any) -> Any:
        return decode_data(await self.report(kind, **given))


class Agent:
    """A worker as a process of its own, with its output in a file."""

    def __init__(self, folder: Path, task: WorkerTask, env: dict[str, str] | None = None, patch: str = "") -> None:
        """`patch`: statements run before the agent's main (shorter clocks)."""
        self.folder = folder
        self.state = folder / f"{task.pod}-{task.attempt}"
        folder.mkdir(parents=True, exist_ok=True)
        self.task = msgspec.structs.replace(task, stateDir=str(self.state))
        file = folder / f"task-{task.pod}-{task.attempt}.json"
        file.write_bytes(encode(self.task))
        self.output = folder / f"out-{task.pod}-{task.attempt}.txt"
        patched = ["-c", f"{patch}\nimport sys; from aegis_agent.main import main; sys.exit(main(sys.argv[1:]))"]
        main = patched if patch else ["-m", "aegis_agent"]
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, *main, "worker", "--task", str(file)],
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def status(self) -> Any:
        return read_status(self.state)

    async def exit_code(self, timeout: float = WAIT) -> int:
        await until(lambda: self.process.poll() is not None, f"end of the agent ({self.text[-2000:]})", timeout)
        return int(self.process.returncode)

    @property
    def last_word(self) -> Exit:
        last = read_exit(self.state)
        assert last is not None, "no exit.json"
        return last

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def task_of(server: NatsServer, *command: str, pod: str = "w0", attempt: int = 1, workers: int = 1, **changes: Any) -> WorkerTask:
    """A task that reaches the server directly."""
    spec = JobSpec(
        name="train", command=command, workers=workers, stopGrace=changes.pop("stopGrace", 5.0), preemptGrace=changes.pop("preemptGrace", 5.0)
    )
    spec = msgspec.structs.replace(spec, **{key: changes.pop(key) for key in list(changes) if hasattr(spec, key)})
    return WorkerTask(spec=spec, job=JOB, uid=UID, pod=pod, attempt=attempt, workers=workers, servers=(server.url,), **changes)
