"""One job of many workers on the real bus: order -> all reports, what heartbeats cost the master, bytes written per round.

    python bench/order_scale.py [--agents 1536] [--rounds 5] [--idle 30] [--processes 2] [--json]

A site as shipped (operator mode, one account per job, rights as shipped), a real nats-server, a real master process, simulated agents with one real
connection each (`light_agents.py`: light clients that follow the protocol and run nothing; on a cluster each has a machine of its own).
Claims: the 99th percentile of order -> report stored is <= 2 s with every agent's report counted, and heartbeats every 5 s cost the master <= 8 % of
a core. Times are the server's: stamp of the head that carries the order, stamp of each report. All processes share this machine's cores, so
latencies are upper bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import psutil
from aegis_bus.connection import Bus, Msg, Stored
from aegis_bus.identity import Identity
from aegis_bus.jetstream import time_ms
from aegis_bus.natsserver import NatsServer
from aegis_bus.ordered import OrderedReader
from aegis_credentials import accounts
from aegis_credentials.claims import Claims
from aegis_credentials.setup import Site, create_site, ensure_streams
from aegis_proto import messages, subjects
from aegis_proto.messages import Message
from aegis_proto.state import Head, JobSpec
from harness.masters import submit
from harness.waiting import until

CLAIM_P99_S = 2.0
CLAIM_CORE = 0.08
HEARTBEAT = 5.0
AGENTS = Path(__file__).resolve().with_name("light_agents.py")


class Crowd:
    """The agent processes."""

    def __init__(self) -> None:
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(self, folder: Path, plan: dict[str, object], agents: list[tuple[int, str]], count: int) -> None:
        for part in range(count):
            path = folder / f"agents{part}.json"
            path.touch(mode=0o600)
            path.write_text(json.dumps({**plan, "agents": agents[part::count]}))
            command = [sys.executable, str(AGENTS), str(path)]
            self.processes.append(await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1))
        for process in self.processes:
            assert process.stdout is not None
            if await process.stdout.readline() != b"ready\n":
                raise SystemExit("an agent process ended before its agents were connected")

    def say(self, line: str) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(line.encode() + b"\n")

    async def stop(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


# --- the measurement ------------------------------------------------------------------------------------------------------------------


class Watch:
    """Heads as they are committed: when each order came, and what was written."""

    def __init__(self) -> None:
        self.orders: dict[int, int] = {}  # seqNum -> server ms
        self.bytes: dict[int, int] = {}  # seqNum of the head at the time -> bytes of CTL written
        self.commits: dict[int, int] = {}
        self.now = 0
        self.latest: Head | None = None
        self.head_bytes = 0

    async def on_view(self, msg: Msg) -> None:
        head = messages.decode(Head, msg.data)
        self.latest = head
        self.head_bytes = len(msg.data)
        self.orders.setdefault(head.order.seqNum, time_ms(msg.headers["Nats-Time-Stamp"]))
        self.now = head.order.seqNum

    async def runs(self, incarnation: int) -> None:
        """Wait until all are ordered to run this incarnation."""
        await until(lambda: self.latest and (self.latest.phase.value, self.latest.incarnation) == ("RunCommand", incarnation), 120, "the run")

    async def on_write(self, msg: Msg) -> None:
        if msg.subject.endswith(".state"):
            self.commits[self.now] = self.commits.get(self.now, 0) + 1
        self.bytes[self.now] = self.bytes.get(self.now, 0) + len(msg.data)


async def report_times(bus: Bus, job: str) -> dict[int, list[int]]:
    """seqNum -> server ms of every Finish of a check round."""
    last = await bus.js_api("STREAM.INFO.REPORTS")
    end = int(last["state"]["last_seq"])
    found: dict[int, list[int]] = {}
    async with OrderedReader(bus, "REPORTS", [f"aegis.job.{job}.worker.*.finish"]) as reader:
        while True:
            try:
                async with asyncio.timeout(3.0):
                    item = await anext(reader)
            except TimeoutError:
                return found
            if isinstance(item, Stored):
                message = messages.decode(Message, item.data)
                if message.phase != "command":
                    found.setdefault(message.seqNum, []).append(item.time_ms)
                if item.seq >= end or reader.pending == 0:
                    return found


def busy(processes: list[psutil.Process]) -> float:
    """CPU seconds so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


async def site_up(folder: Path) -> tuple[Site, NatsServer]:
    site = create_site(folder / "site")
    server = NatsServer(folder / "nats", auth_conf=site.auth_conf.read_text(), die_with_parent=True)
    server.start()
    return site, server


async def measure(folder: Path, workers: int, rounds: int, idle: float, processes: int) -> dict[str, object]:
    site, server = await site_up(folder)
    crowd = Crowd()
    master: asyncio.subprocess.Process | None = None
    buses: list[Bus] = []

    async def connect(role: str, **tags: str) -> Bus:
        buses.append(await Bus.connect(Identity.from_creds(site.issue(role, tags)), [server.url], name=f"{role}-bench"))
        return buses[-1]

    try:
        admin = await connect("admin")
        await ensure_streams(admin)
        creds = folder / "master.creds"
        Identity.from_creds(site.issue("master")).to_creds_file(creds)
        env = {**os.environ, "AEGIS_BUS_SERVERS": server.url, "AEGIS_BUS_CREDS": str(creds), "AEGIS_SERVICE_REPLICA": "m1"}
        with (folder / "master.log").open("wb") as log:
            master = await asyncio.create_subprocess_exec(sys.executable, "-m", "aegis_master", env=env, stderr=log)
        user = await connect("user", namespace="default")
        uid = str(uuid.uuid4())
        spec = JobSpec("scale", ("true",), workers=workers, maxRetry=1_000, roundTimeout=120.0)
        job = (await submit(user, spec, uid, timeout=20)).job
        system = await Bus.connect(Identity.from_creds(site.system_user()), [server.url], name="sys-bench")
        buses.append(system)
        await Claims(system, site.secret).push(accounts.job(site.secret, job, uid, workers, now=int(time.time())))
        watch = Watch()
        await admin.subscribe(subjects.view_job_state(job), watch.on_view)
        await admin.subscribe(subjects.job_state(job), watch.on_write)
        await admin.subscribe(subjects.job_pods(job, 0)[:-1] + "*", watch.on_write)

        began = time.monotonic()
        plan = {"url": server.url, "job": job, "uid": uid}
        await crowd.start(folder, plan, [(i, site.issue("agent", {"job": job, "pod": f"w{i}"}, uid=uid)) for i in range(workers)], processes)
        connected = time.monotonic() - began
        await watch.runs(0)

        watched = {
            "master": [psutil.Process(master.pid)],
            "server": [psutil.Process(server.process.pid)] if server.process else [],
            "agents": [psutil.Process(process.pid) for process in crowd.processes],
        }
        measured: list[int] = []
        before = {name: busy(group) for name, group in watched.items()}
        for number in range(1, rounds + 1):
            crowd.say(f"fail {number} {number - 1}")
            await watch.runs(number)
            measured.append(max(seq for seq in watch.orders) - 1)  # the troubleshoot round before this run
            await asyncio.sleep(1.5)
        spent = {name: (busy(group) - before[name]) / len(measured) for name, group in watched.items()}

        await asyncio.sleep(HEARTBEAT)
        before, started = {name: busy(group) for name, group in watched.items()}, time.monotonic()
        await asyncio.sleep(idle)
        took = time.monotonic() - started
        cores = {name: (busy(group) - before[name]) / took for name, group in watched.items()}

        times = await report_times(admin, job)
        latencies = sorted((at - watch.orders[seq]) / 1000 for seq in measured for at in times.get(seq, []))
        complete = [(watch.orders[seq + 1] - watch.orders[seq]) / 1000 for seq in measured]
        assert len(latencies) == workers * len(measured), f"{len(latencies)} reports of {workers} workers in {len(measured)} rounds"
        return {
            "workers": workers,
            "rounds": len(measured),
            "connect_s": round(connected, 2),
            "report_p50_s": round(statistics.median(latencies), 3),
            "report_p99_s": round(latencies[int(0.99 * len(latencies))], 3),
            "report_max_s": round(latencies[-1], 3),
            "order_to_next_order_p50_s": round(statistics.median(complete), 3),
            "order_to_next_order_max_s": round(max(complete), 3),
            "state_bytes_per_round": round(statistics.median(watch.bytes.get(seq, 0) for seq in measured)),
            "head_bytes": watch.head_bytes,
            "bytes_to_agents_per_round": watch.head_bytes * workers * round(statistics.median(watch.commits.get(seq, 0) for seq in measured)),
            "commits_per_round": round(statistics.median(watch.commits.get(seq, 0) for seq in measured)),
            "master_cpu_s_per_round": round(spent["master"], 3),
            "server_cpu_s_per_round": round(spent["server"], 3),
            "agents_cpu_s_per_round": round(spent["agents"], 3),
            "load_average": round(os.getloadavg()[0], 1),
            "heartbeats_per_s": round(workers / HEARTBEAT, 1),
            "master_core_share": round(cores["master"], 4),
            "server_core_share": round(cores["server"], 4),
            "agents_core_share": round(cores["agents"], 4),
            "master_rss_mb": round(watched["master"][0].memory_info().rss / 1e6, 1),
            "server_rss_mb": round(watched["server"][0].memory_info().rss / 1e6, 1),
            "claim_p99_s": CLAIM_P99_S,
            "claim_core": CLAIM_CORE,
            "ok": latencies[int(0.99 * len(latencies))] <= CLAIM_P99_S and cores["master"] <= CLAIM_CORE,
        }
    finally:
        await crowd.stop()
        if master is not None and master.returncode is None:
            master.terminate()
            await master.wait()
        for bus in buses:
            with contextlib.suppress(Exception):
                await bus.close(grace=1.0)
        server.stop(grace=20)


def table(result: dict[str, object]) -> str:
    return "\n".join(f"{name:28} {value}" for name, value in result.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1536)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aegis-scale-") as folder:
        result = asyncio.run(measure(Path(folder), given.agents, given.rounds, given.idle, given.processes))
    print(json.dumps(result) if given.json else table(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
