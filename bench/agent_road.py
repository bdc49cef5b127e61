"""The whole road of the lines, from the bytes of a pipe to the files: the agents' own sender with its spool, a real nats-server, a real lognexus.

Halfway the server is killed (SIGKILL) and started again `--away` seconds later. Prints one JSON object: lines printed and kept, lost, doubled and out
of order (0, or the exit code is 1), the most that lay on disk, CPU time of the sending side per line, and the longest that feeding a chunk took.

    python bench/agent_road.py [--rate 20000] [--seconds 20] [--workers 16] [--away 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aegis_agent.handover import WorkerTask
from aegis_agent.logroad import LogRoad
from aegis_agent.spool import Spool
from aegis_bus.connection import Bus
from aegis_bus.natsserver import NatsServer
from aegis_proto.state import JobSpec
from log_road import EVERY, JOB, compared, lognexus, quiet, right, servers

LINE = b" iteration %8d/  250000 | loss: 2.318 | grad norm: 0.318 | nan iterations:   0 |\n"


class Sender:
    """One worker: its road, and how much it printed."""

    def __init__(self, bus: Bus, pod: str, folder: Path) -> None:
        self.spool = Spool(folder / pod, owner=f"u.{pod}")

        async def publish(subject: str, data: bytes, msg_id: str) -> object:
            return await bus.publish(subject, data, msg_id=msg_id)

        self.pod = pod
        self.road = LogRoad(WorkerTask(JobSpec("bench"), job=JOB, uid="u", pod=pod, node="n1"), "b1", publish, self.spool)
        self.feed = self.road.feed(0, 0, "out")
        self.pump = asyncio.create_task(self.road.pump())
        self.printed = 0
        self.slowest = 0.0
        self.on_disk = 0

    async def print(self, per: int, until: float) -> None:
        due = time.monotonic()
        while due < until:
            text = b"".join(LINE % (self.printed + k) for k in range(per))
            for at in range(0, len(text), 65_536):
                began = time.perf_counter()
                self.feed.take(text[at : at + 65_536])
                self.slowest = max(self.slowest, time.perf_counter() - began)
            self.printed += per
            self.on_disk = max(self.on_disk, self.spool.size)
            due += EVERY
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    async with servers(folder, args.workers) as (server, buses):
        return await printed_and_kept(args, folder, server, buses)


async def printed_and_kept(args: argparse.Namespace, folder: Path, server: NatsServer, buses: list[Bus]) -> dict[str, Any]:
    process = await lognexus(server.url, folder)
    senders = [Sender(buses[k % len(buses)], f"w{k}", folder / "spool") for k in range(args.workers)]
    per = max(1, round(args.rate * EVERY / args.workers))
    cpu = time.process_time()
    began = time.monotonic()
    flows = [asyncio.create_task(sender.print(per, began + args.seconds)) for sender in senders]
    await asyncio.sleep(args.seconds / 2)
    await asyncio.to_thread(server.kill9)
    await asyncio.sleep(args.away)
    await asyncio.to_thread(server.start)
    await asyncio.gather(*flows)
    flushed = await asyncio.gather(*(sender.road.flush(60.0) for sender in senders))
    cpu = time.process_time() - cpu
    await quiet(folder, 5.0)
    process.terminate()
    await process.wait()
    for sender in senders:
        sender.pump.cancel()
    printed = sum(sender.printed for sender in senders)
    return {
        "asked_lines_per_s": args.rate,
        "printed_lines": printed,
        "flushed": all(flushed),
        **compared(folder, {sender.pod: sender.printed - sender.road.given_up for sender in senders}),
        "given_up": sum(sender.road.given_up for sender in senders),
        "server_away_s": args.away,
        "most_on_disk_mb": round(sum(sender.on_disk for sender in senders) / 1e6, 1),
        "cpu_us_per_line": round(cpu / printed * 1e6, 1),
        "slowest_chunk_ms": round(max(sender.slowest for sender in senders) * 1000, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--away", type=float, default=5.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aegis-agent-road-") as folder:
        result = asyncio.run(measure(args, Path(folder)))
    print(json.dumps(result))
    return 0 if right(result) else 1


if __name__ == "__main__":
    sys.exit(main())
