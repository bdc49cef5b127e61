"""What an agent costs while the training runs: resident memory and share of a core, over a real bus.

Starts a nats-server, one worker with a sleeping command and a head that is rewritten as a master would under load, and prints one JSON line:
{"rss_mb", "cpu_percent", "seconds", "heads", "samples", "threads", "fds"}. Claim: <= 60 MB and <= 0.5 % of a core; with --monitors (the run is
sampled as always, and counted here: METRICS is there and heard) <= 80 MB and <= 1 %.
usage: python bench/agent_rest.py [--seconds 60] [--heads-per-second 1] [--monitors]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from aegis_agent.handover import WorkerTask, read_status
from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer
from aegis_proto import subjects
from aegis_proto.messages import encode
from aegis_proto.phases import OrderPhase
from aegis_proto.state import Head, JobSpec, Order
from aegis_proto.streams import stream_configs

JOB, UID = "rest-000001", "uid-rest"


async def measure(seconds: float, heads_per_second: float, monitors: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name, NatsServer(Path(name) / "nats", die_with_parent=True) as server:
        bus = await Bus.connect(Identity.new(), [server.url], name="master-bench")
        for config in stream_configs():
            if config["name"] in ("CTL", "REPORTS", *(("METRICS",) if monitors else ())):
                await bus.request(f"$JS.API.STREAM.CREATE.{config['name']}", json.dumps(config).encode())

        async def write(seq: int, phase: OrderPhase) -> None:
            order = Order(phase, seq, 0, ((1, 1),), masterAddr="127.0.0.1", masterPort=23456)
            head = Head(job=JOB, name="rest", namespace="default", uid=UID, workerNum=1, maxRetry=3, era="e", order=order)
            await bus.publish(subjects.job_state(JOB), encode(head))

        samples = 0

        async def heard(_: object) -> None:
            nonlocal samples
            samples += 1

        if monitors:
            await bus.subscribe(subjects.job_metric(JOB, "w0"), heard)
        await write(1, OrderPhase.WAIT)
        state = Path(name) / "agent"
        spec = JobSpec(name="rest", command=("sleep", "3600"))
        task = WorkerTask(spec=spec, job=JOB, uid=UID, servers=(server.url,), stateDir=str(state))
        file = Path(name) / "task.json"
        file.write_bytes(encode(task))
        agent = subprocess.Popen([sys.executable, "-m", "aegis_agent", "worker", "--task", str(file)], stdout=subprocess.DEVNULL)  # noqa: ASYNC220
        try:
            seq = 2
            while not ((status := read_status(state)) and status.running):
                await write(seq, OrderPhase.COMMAND)
                seq += 1
                await asyncio.sleep(0.5)
            await asyncio.sleep(2)
            process = psutil.Process(agent.pid)
            before, heads = process.cpu_times(), 0
            loop = asyncio.get_running_loop()
            end = loop.time() + seconds
            while loop.time() < end:
                if heads_per_second:
                    await write(seq, OrderPhase.COMMAND)  # the same order again: a commit for another worker's report
                    heads += 1
                await asyncio.sleep(1 / heads_per_second if heads_per_second else 1)
            after = process.cpu_times()
            cpu = after.user + after.system - before.user - before.system
            return {
                "rss_mb": round(process.memory_info().rss / 2**20, 1),
                "cpu_percent": round(100 * cpu / seconds, 3),
                "seconds": seconds,
                "heads": heads,
                "samples": samples,
                "threads": process.num_threads(),
                "fds": process.num_fds(),
            }
        finally:
            agent.terminate()
            agent.wait(30)
            await bus.close(grace=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--heads-per-second", type=float, default=1.0)
    parser.add_argument("--monitors", action="store_true")
    given = parser.parse_args()
    result = asyncio.run(measure(given.seconds, given.heads_per_second, given.monitors))
    print(json.dumps(result))
    memory, core = (80, 1.0) if given.monitors else (60, 0.5)
    good = result["rss_mb"] <= memory and result["cpu_percent"] <= core and (not given.monitors or result["samples"] >= given.seconds // 10 - 1)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    main()
