"""lognexus as a real process, and workers that send lines with the rights of agents."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_lognexus.store.blocks import segment, segment_numbers
from aegis_proto import messages, subjects
from aegis_proto.api import read_reply
from aegis_proto.logs import LogBatch, LogLine, LogsAnswer, LogsQuery, StoredLine

T0 = 1_796_000_000_000


class Process:
    """`python -m aegis_lognexus`; `store` is its folder."""

    def __init__(self, url: str, folder: Path, replica: str = "logs-1", creds: str = "", **env: str) -> None:
        self.store, self._folder = folder / f"store-{replica}", folder
        self._env = {"AEGIS_BUS_SERVERS": url, "AEGIS_SERVICE_REPLICA": replica, "AEGIS_LOGNEXUS_STORE": str(self.store)}
        self._env |= {"AEGIS_BUS_LEASE_TTL": "2", "AEGIS_LOGNEXUS_SETTLE": "0.3", **env}
        if creds:
            path = folder / "lognexus.creds"
            path.write_text(creds)
            path.chmod(0o600)
            self._env["AEGIS_BUS_CREDS"] = str(path)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> Process:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **self._env}
        with (self._folder / "lognexus.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(sys.executable, "-m", "aegis_lognexus", env=env, stderr=log, cwd=self._folder)
        return self

    def hears(self) -> bool:
        """The process of the last `start` takes signals."""
        assert self._process is not None
        return f"lognexus started: pid {self._process.pid}," in (self._folder / "lognexus.log").read_text()

    async def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        return await self._process.wait()

    async def kill9(self) -> None:
        await self.end(signal.SIGKILL)

    def lines(self, job: str) -> list[StoredLine]:
        """Whole lines of the files as they are now."""
        folder = self.store / "jobs" / job
        data = b"".join(segment(folder, number).read_bytes().rpartition(b"\n")[0] + b"\n" for number in segment_numbers(folder))
        return [msgspec.json.decode(line, type=StoredLine) for line in data.splitlines() if line]


class Worker:
    """Sends numbered lines as an agent does; a message is sent again until it is acknowledged."""

    def __init__(self, bus: Bus, job: str, pod: str, boot: str = "b1") -> None:
        self._bus, self._job, self._pod, self._boot = bus, job, pod, boot
        self.next = 1
        self.sent: list[str] = []

    async def send(self, texts: Sequence[str], rank: int = 0, incarnation: int = 0) -> None:
        lines = tuple(LogLine(T0 + self.next + k, incarnation, rank, "out", text) for k, text in enumerate(texts))
        data = messages.encode(LogBatch("uid", 1, self._boot, self.next, lines, "n1"))
        while True:
            try:
                await self._bus.publish(
                    subjects.job_log(self._job, self._pod), data, msg_id=f"{self._job}-{self._pod}-{self._boot}-{self.next}", timeout=3.0
                )
                break
            except BusError:
                await asyncio.sleep(0.05)
        self.next += len(lines)
        self.sent += texts


async def ask(bus: Bus, query: LogsQuery, namespace: str = "") -> LogsAnswer:
    """By request; RequestRefused, BusError."""
    return read_reply(LogsAnswer, await bus.request(subjects.rpc_query("lognexus", "logs", namespace), messages.encode(query), timeout=5.0))
