"""netmon as a process over a real bus: 3,072 nodes of 8 ports of 25 counters, a poll every 10 s. CPU per poll, memory, and how far it is behind.

python bench/netmon_scale.py [--nodes 3072] [--ports 8] [--fill 32] [--paced 3]

One process publishes for all daemons, with the messages that daemons send. Every port is busy (what rises in each poll on one: traffic, requests,
waiting) and one in a hundred also counts errors. First the window of every port is filled as fast as netmon reads (`--fill` polls), then polls come
in their own time (`--paced`, every 10 s). Prints JSON lines; ends with 1 when it needs more than one core or 1 GB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer, free_port
from aegis_proto import subjects
from aegis_proto.api import read_reply
from aegis_proto.messages import encode
from aegis_proto.net import LinksAnswer, LinksQuery, NodePorts, PortCounts
from aegis_proto.streams import stream_configs
from port_counters import NAMES, count

EVERY = 10.0
LIMIT_MIB = 953
"""1 GB."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=3072)
    parser.add_argument("--ports", type=int, default=8)
    parser.add_argument("--fill", type=int, default=32)
    parser.add_argument("--paced", type=int, default=3)
    return asyncio.run(measure(parser.parse_args()))


def message(node: int, ports: int, poll: int) -> bytes:
    """One node at one poll."""
    rows = tuple(
        PortCounts(f"mlx5_{n}", 1, f"{node:08x}{n:08x}", "ACTIVE", 400.0, "InfiniBand", 4711 + n, values(poll, (node * ports + n) % 100 == 0))
        for n in range(ports)
    )
    return encode(NodePorts("boot", int(time.time() * 1000), NAMES, rows))


def values(poll: int, sick: bool) -> tuple[int, ...]:
    return tuple(count(name, poll, sick) for name in NAMES)


class Service:
    """The process and what it tells of itself."""

    def __init__(self, pid: int, http: int) -> None:
        self.pid, self.http = pid, http

    def polls(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=5) as answer:
                found = re.search(r"^aegis_net_polls_total ([\d.e+]+)", answer.read().decode(), re.M)
                return int(float(found[1])) if found else 0
        except OSError:
            return -1

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self) -> int:
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        return int(found[1]) // 1024 if found else 0

    async def has(self, polls: int) -> None:
        while await asyncio.to_thread(self.polls) < polls:
            await asyncio.sleep(0.1)


async def measure(given: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="aegis-bench-") as folder:
        server = NatsServer(Path(folder) / "nats", die_with_parent=True)
        server.start()
        bus = await Bus.connect(Identity.new(), [server.url], name="bench")
        for config in stream_configs():
            await bus.js_api(f"STREAM.CREATE.{config['name']}", config)
        http = free_port()
        env = {**os.environ, "AEGIS_BUS_SERVERS": server.url, "AEGIS_SERVICE_PORT": str(http), "AEGIS_LOGS_LEVEL": "warning"}
        env |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "aegis_netmon", env=env, cwd=folder, stderr=asyncio.subprocess.DEVNULL)
        service = Service(process.pid, http)
        try:
            await service.has(0)
            return await run(given, bus, service)
        finally:
            process.terminate()
            await process.wait()
            await bus.close(1.0)
            server.stop()


async def run(given: argparse.Namespace, bus: Bus, service: Service) -> int:
    done = 0
    begun, cpu = time.monotonic(), service.cpu()
    for poll in range(given.fill):
        await publish(given, bus, poll)
        done += given.nodes
        await service.has(done)
    spent, took = service.cpu() - cpu, time.monotonic() - begun
    row = {"what": "filling", "polls": given.fill, "ports": given.nodes * given.ports, "counters": len(NAMES)}
    print(json.dumps({**row, "cpu_s_per_poll": round(spent / given.fill, 2), "wall_s_per_poll": round(took / given.fill, 2)}), flush=True)
    begun, cpu, behind = time.monotonic(), service.cpu(), 0.0
    for n in range(given.paced):
        await asyncio.sleep(max(0.0, begun + n * EVERY - time.monotonic()))
        await publish(given, bus, given.fill + n)
        done += given.nodes
        sent = time.monotonic()
        await service.has(done)
        behind = max(behind, time.monotonic() - sent)
    await asyncio.sleep(max(0.0, begun + given.paced * EVERY - time.monotonic()))
    share = (service.cpu() - cpu) / (time.monotonic() - begun)
    asked = time.monotonic()
    answer = await links(bus)
    row = {"what": "paced", "polls": given.paced, "cores": round(share, 2), "behind_s": round(behind, 2), "peak_mib": service.peak_mib()}
    print(json.dumps({**row, "alarms": answer.fabric.alarms, "links": answer.total, "answer_s": round(time.monotonic() - asked, 2)}), flush=True)
    return int(share > 1.0 or service.peak_mib() > LIMIT_MIB)


async def publish(given: argparse.Namespace, bus: Bus, poll: int) -> None:
    """All nodes, spread so that the socket is drained."""
    for node in range(given.nodes):
        while not bus.core(subjects.net_counter(f"n{node}"), message(node, given.ports, poll)):
            await asyncio.sleep(0.01)
        if node % 64 == 63:
            await asyncio.sleep(0)
    await bus.request("$JS.API.INFO", b"", timeout=10.0)


async def links(bus: Bus) -> LinksAnswer:
    while True:
        try:
            return read_reply(LinksAnswer, await bus.request(subjects.rpc_query("netmon", "links"), encode(LinksQuery(True)), timeout=10.0))
        except BusError:
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
