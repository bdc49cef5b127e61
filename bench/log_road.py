"""The road of the lines: simulated workers send numbered lines through a real nats-server into the store of a real lognexus process.

Every acknowledged line must be in the files once, in the order of its worker. With `--kill`, lognexus and then the server are killed (SIGKILL) and
started again in the middle. Prints one JSON object: the rate at which lines were sent and kept, how far the store was behind at the end, CPU time of
lognexus, and what was lost or doubled. The exit code is 1 where anything was, or, without `--kill`, where lines came slower than they were asked for.

    python bench/log_road.py [--rate 50000] [--seconds 60] [--workers 64] [--kill]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer
from aegis_lognexus.store.blocks import segment, segment_numbers
from aegis_proto import messages, subjects
from aegis_proto.logs import LogBatch, LogLine
from aegis_proto.streams import stream_configs

JOB = "digits-abc123"
EVERY = 0.25
IN_TIME = 0.9
"""Share of the rate that was asked for, from the first line to the last; the store writes once a second."""
TEXT = " iteration {n:8d}/  250000 | consumed samples: {n:12d} | loss: 2.318 | grad norm: 0.318 | nan iterations:   0 |"


class _Line(msgspec.Struct):
    worker: str
    n: int


class Worker:
    """Sends `per` lines every EVERY seconds; an unacknowledged message is sent again with the same id."""

    def __init__(self, bus: Bus, pod: str, per: int) -> None:
        self.bus, self.pod, self.per = bus, pod, per
        self.acknowledged = 0
        self.again = 0

    async def run(self, until: float) -> None:
        due = time.monotonic()
        while due < until:
            first = self.acknowledged + 1
            at = int(time.time() * 1000)
            lines = tuple(LogLine(at, 0, 0, "out", TEXT.format(n=first + k)) for k in range(self.per))
            data = messages.encode(LogBatch("uid", 1, "b1", first, lines, "n1"))
            while True:
                try:
                    await self.bus.publish(subjects.job_log(JOB, self.pod), data, msg_id=f"{JOB}-{self.pod}-{first}", timeout=5.0)
                    break
                except BusError:
                    self.again += 1
                    await asyncio.sleep(0.1)
            self.acknowledged += self.per
            due += EVERY
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def lognexus(url: str, folder: Path) -> asyncio.subprocess.Process:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "AEGIS_BUS_SERVERS": url, "AEGIS_SERVICE_REPLICA": "logs-1"}
    env["AEGIS_LOGNEXUS_STORE"] = str(folder / "store")
    with (folder / "lognexus.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(sys.executable, "-m", "aegis_lognexus", env=env, stderr=log, cwd=folder)


def kept(folder: Path) -> dict[str, list[int]]:
    """worker -> numbers, in the order of the files."""
    out: dict[str, list[int]] = {}
    decoder = msgspec.json.Decoder(_Line)
    where = folder / "store" / "jobs" / JOB
    for number in segment_numbers(where):
        for line in decoder.decode_lines(segment(where, number).read_bytes().rpartition(b"\n")[0]):
            out.setdefault(line.worker, []).append(line.n)
    return out


def size(folder: Path) -> int:
    where = folder / "store" / "jobs" / JOB
    return sum(segment(where, number).stat().st_size for number in segment_numbers(where))


async def quiet(folder: Path, seconds: float) -> float:
    """Wait until nothing more has come for so long; when the last came (monotonic)."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < seconds:
        if (now := size(folder)) != last:
            last, since = now, time.monotonic()
        await asyncio.sleep(0.25)
    return since


def compared(folder: Path, sent: dict[str, int]) -> dict[str, int]:
    """What is wrong in the files, of lines 1 to n of each worker: 0, 0 and 0."""
    found = kept(folder)
    return {
        "lost": sum(len(set(range(1, n + 1)) - set(found.get(pod, ()))) for pod, n in sent.items()),
        "doubled": sum(count - 1 for numbers in found.values() for count in Counter(numbers).values()),
        "workers_out_of_order": sum(numbers != sorted(numbers) for numbers in found.values()),
    }


def right(result: dict[str, Any]) -> bool:
    return not (result["lost"] or result["doubled"] or result["workers_out_of_order"])


@asynccontextmanager
async def servers(folder: Path, workers: int) -> AsyncIterator[tuple[NatsServer, list[Bus]]]:
    """A server with our streams, and connections of workers."""
    server = NatsServer(folder / "nats", die_with_parent=True)
    server.start()
    buses = [await Bus.connect(Identity.new(), [server.url], name=f"agent-{k}") for k in range(min(8, workers))]
    for config in stream_configs():
        await buses[0].js_api(f"STREAM.CREATE.{config['name']}", config)
    try:
        yield server, buses
    finally:
        for bus in buses:
            await bus.close(grace=0.5)
        server.stop(grace=5)


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    async with servers(folder, args.workers) as (server, buses):
        return await sent_and_kept(args, folder, server, buses)


async def sent_and_kept(args: argparse.Namespace, folder: Path, server: NatsServer, buses: list[Bus]) -> dict[str, Any]:
    process = await lognexus(server.url, folder)
    per = math.ceil(args.rate * EVERY / args.workers)  # never less than was asked for
    workers = [Worker(buses[k % len(buses)], f"w{k}", per) for k in range(args.workers)]
    began = time.monotonic()
    flows = [asyncio.create_task(worker.run(began + args.seconds)) for worker in workers]
    cpu = 0.0
    if args.kill:
        await asyncio.sleep(args.seconds / 3)
        cpu += sum(psutil.Process(process.pid).cpu_times()[:2])
        process.kill()
        await process.wait()
        process = await lognexus(server.url, folder)
        await asyncio.sleep(args.seconds / 3)
        await asyncio.to_thread(server.kill9)
        await asyncio.to_thread(server.start)
    await asyncio.gather(*flows)
    sent_for = time.monotonic() - began
    acknowledged = sum(worker.acknowledged for worker in workers)
    kept_for = await quiet(folder, 10.0) - began
    cpu += sum(psutil.Process(process.pid).cpu_times()[:2])
    process.terminate()
    await process.wait()
    return {
        "asked_lines_per_s": args.rate,
        "acknowledged_lines": acknowledged,
        "sent_lines_per_s": round(acknowledged / sent_for),
        "kept_lines_per_s": round(acknowledged / kept_for),
        "store_behind_s": round(kept_for - sent_for, 1),
        "lognexus_cpu_s": round(cpu, 1),
        "lines_per_cpu_s": round(acknowledged / cpu) if cpu else 0,
        "sent_again": sum(worker.again for worker in workers),
        **compared(folder, {worker.pod: worker.acknowledged for worker in workers}),
        "killed": args.kill,
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--kill", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aegis-road-") as folder:
        result = asyncio.run(measure(args, Path(folder)))
    print(json.dumps(result))
    in_time = args.kill or (result["sent_lines_per_s"] >= IN_TIME * args.rate and result["kept_lines_per_s"] >= IN_TIME * args.rate)
    return 0 if right(result) and in_time else 1


if __name__ == "__main__":
    sys.exit(main())
