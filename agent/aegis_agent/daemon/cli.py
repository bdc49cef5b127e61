"""The command line of `aegis-agent node`: flags, their environment, and what is refused with which words. Reads the environment once."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from aegis_bus import logs
from aegis_parsers.ib.live import ROOT
from aegis_proto.ids import check_id, nearest_id

from aegis_agent.daemon.ports import PortSettings
from aegis_agent.daemon.service import Daemon, NodeInUse, Settings


def parser() -> argparse.ArgumentParser:
    """All flags; each has the environment variable AEGIS_NODE_<FLAG> (bus flags: AEGIS_BUS_<FLAG>)."""
    p = argparse.ArgumentParser(prog="aegis-agent node", description="Keep the worker slots of this machine as the job controller wants them.")
    p.add_argument("--node", metavar="ID", help="name of this node (default: from the host name)")
    p.add_argument("--state", metavar="DIR", help="state directory, on a local disk (default: /var/lib/aegis/node-ID, or below $XDG_STATE_HOME)")
    p.add_argument("--servers", metavar="URL,...", help="bus servers (default: $AEGIS_BUS_SERVERS, else nats://127.0.0.1:4222)")
    p.add_argument("--creds", metavar="FILE", help="credentials of this node (default: $AEGIS_BUS_CREDS)")
    p.add_argument("--tls-ca", metavar="FILE", help="CA of the bus servers (default: $AEGIS_BUS_TLS_CA)")
    p.add_argument(
        "--credentials-ca", metavar="FILE", help="CA of the credentials service, handed to the agents (default: $AEGIS_CREDENTIALS_TLS_CA)"
    )
    p.add_argument("--slots", type=int, metavar="N", help="workers this node can hold, of different jobs (default 1)")
    p.add_argument("--addr", metavar="HOST", help="address at which other workers reach this node (default: found by the route to the bus)")
    p.add_argument("--gpus", type=int, metavar="N", help="GPUs of this node (default 0)")
    p.add_argument("--gpu-type", metavar="NAME", help="kind of GPU, as jobs ask for it")
    p.add_argument("--label", action="append", metavar="K=V", help="label of this node; may be repeated")
    p.add_argument("--virtual", action="store_true", help="one of several nodes on one machine: address 127.0.0.1")
    p.add_argument("--echo", action="store_true", help="repeat the agents' output on stdout")
    p.add_argument("--stop-workers", action="store_true", help="SIGTERM also stops the workers, with their grace (default: they go on)")
    p.add_argument("--ports-every", metavar="SECONDS", help="how often the InfiniBand and RoCE ports are read; 0 = never (default 10; virtual: 0)")
    p.add_argument("--ports-root", metavar="DIR", help=f"where they are (default {ROOT})")
    p.add_argument("--ports-exclude", metavar="PATTERN,...", help="devices that are not opened at all, as mlx5_bond*")
    p.add_argument(
        "--mlxlink",
        metavar="PROGRAM",
        help="reads the optics of a port every 5 minutes (default: mlxlink, where installed; - = never)",
    )
    p.add_argument("--worker-cmd", metavar="CMD", help="start this instead of the agent, with --slot-file PATH appended (for tests)")
    return p


def settings(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Settings from flags, then environment, then defaults. ValueError names the flag or variable, the value and what was expected."""
    given = parser().parse_args(argv)

    def value(flag: str, default: str, section: str = "NODE") -> str:
        at_flag = getattr(given, flag)
        return str(at_flag) if at_flag is not None else environ.get(f"AEGIS_{section}_{flag.upper()}", default)

    def number(flag: str, low: int, high: int, default: int) -> int:
        text = value(flag, str(default))
        if not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"E130 --{flag.replace('_', '-')} (AEGIS_NODE_{flag.upper()}) {text!r}: expected a number from {low} to {high}")
        return int(text)

    def switch(flag: str) -> bool:
        return getattr(given, flag) or environ.get(f"AEGIS_NODE_{flag.upper()}", "").lower() in ("1", "true", "yes")

    host = socket.gethostname()
    node = check_id("node", value("node", nearest_id(host.split(".")[0])))
    creds = value("creds", "", "BUS")
    if not creds:
        raise ValueError("E130 no credentials: give --creds FILE or AEGIS_BUS_CREDS (aegis creds issue --role node --node " + node + ")")
    servers = tuple(filter(None, (part.strip() for part in value("servers", "nats://127.0.0.1:4222", "BUS").split(","))))
    labels = {}
    for text in given.label or filter(None, environ.get("AEGIS_NODE_LABELS", "").split(",")):
        key, equals, label = text.partition("=")
        if not equals or not key:
            raise ValueError(f"E130 --label {text!r}: expected K=V")
        labels[key] = label
    virtual = switch("virtual")
    return Settings(
        node,
        Path(value("state", str(default_state(node, environ)))),
        servers,
        Path(creds),
        value("tls_ca", "", "BUS"),
        given.credentials_ca or environ.get("AEGIS_CREDENTIALS_TLS_CA", ""),
        number("slots", 1, 32, 1),
        host,
        value("addr", "127.0.0.1" if virtual else route_address(servers)),
        number("gpus", 0, 64, 0),
        value("gpu_type", ""),
        labels,
        virtual,
        switch("echo"),
        switch("stop_workers"),
        tuple(shlex.split(value("worker_cmd", ""))),
        PortSettings(
            float(number("ports_every", 0, 3600, 0 if virtual else 10)),
            value("ports_root", ROOT),
            tuple(filter(None, (part.strip() for part in value("ports_exclude", "").split(",")))),
            "" if value("mlxlink", "") == "-" else value("mlxlink", "") or shutil.which("mlxlink") or "",
        ),
    )


def default_state(node: str, environ: Mapping[str, str]) -> Path:
    """One directory per node name, so that a second daemon of the same name finds the lock of the first."""
    if os.geteuid() == 0:
        return Path("/var/lib/aegis") / f"node-{node}"
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "aegis" / f"node-{node}"


def route_address(servers: Sequence[str]) -> str:
    """Our address on the way to the first bus server; "" when there is no route (the agent then finds its own). Sends nothing."""
    host, port = servers[0].rpartition("://")[2].rpartition("@")[2], 4222
    if ":" in host and not host.endswith("]"):
        host, _, text = host.rpartition(":")
        port = int(text) if text.isdigit() else port
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def main(argv: Sequence[str]) -> int:
    """Run the daemon until SIGTERM. Exit 0; 2 on bad flags; 7 when the node has a daemon already."""
    try:
        wanted = settings(argv, os.environ)
    except ValueError as error:
        sys.stderr.write(f"aegis-agent node: {error}\n")
        return 2
    level = os.environ.get("AEGIS_LOGS_LEVEL", "info").lower()
    logs.configure("node", level if level in ("debug", "info", "warning", "error") else "info", wanted.node)
    try:
        return asyncio.run(_run(wanted))
    except NodeInUse as error:
        sys.stderr.write(f"aegis-agent node: {error}\n")
        return 7


async def _run(wanted: Settings) -> int:
    return await Daemon(wanted).run()
