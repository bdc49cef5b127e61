"""lognexus as a real process, and workers that send lines with the rights of agents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_lognexus.store.blocks import segment, segment_numbers
from aegis_proto import messages, subjects
from aegis_proto.api import read_reply
from aegis_proto.logs import LogBatch, LogLine, LogsAnswer, LogsQuery, StoredLine
from harness.service import ServiceProcess

T0 = 1_796_000_000_000


class Process(ServiceProcess):
    """lognexus, judging soon; `store` is its folder."""

    def __init__(self, url: str, folder: Path, replica: str = "logs-1", creds: str = "", **env: str) -> None:
        self.store = folder / f"store-{replica}"
        settle = {"AEGIS_LOGNEXUS_SETTLE": "0.3", "AEGIS_LOGNEXUS_HANG_SETTLE": "0.3"}
        super().__init__("aegis_lognexus", url, folder, replica, creds, **{"AEGIS_LOGNEXUS_STORE": str(self.store), **settle, **env})

    def hears(self) -> bool:
        """The process of the last `start` takes signals."""
        return f"lognexus started: pid {self.pid}," in self.log.read_text()

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
