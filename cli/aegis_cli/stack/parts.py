"""The parts of a stack as data: how each is started, with which environment, and how it tells that it is ready. Starts nothing."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from aegis_bus import config

from aegis_cli.spec import gpus

KEPT = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_.*|TZ|TMPDIR|TERM|XDG_RUNTIME_DIR|VIRTUAL_ENV|PYTHON.*|LD_LIBRARY_PATH|CUDA_.*|NVIDIA_.*|SSL_CERT_.*|COVERAGE_.*"
    r"|AEGIS_NATS_SERVER|AEGIS_CRASH_AT|AEGIS_STACK|AEGIS_MASTER_TRACE"
)
"""What of the starter's environment the parts get: the stack is shared, so nothing that only this one command meant."""
SLOTS = 4
"""Workers (of different jobs) that one virtual node without GPUs takes side by side."""


@dataclass
class Part:
    """One process of the stack. `http`: port of its health page, 0 = ready otherwise."""

    kind: str  # nats | credentials | master | jobcontroller | lognexus | lemon | netmon | node
    name: str
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    http: int = 0
    address: str = ""
    version: str = ""
    state: str = "starting"  # starting | up | down
    pid: int = 0
    replica: str = ""
    restarts: int = 0
    last: str = ""
    note: str = ""
    needed: bool = True
    """The stack is not up before this part answers."""

    def told(self) -> dict[str, object]:
        """As it stands in keeper.json."""
        keys = ("kind", "name", "state", "pid", "version", "address", "restarts", "last", "note", "replica")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class Layout:
    """Folders and addresses that the parts share."""

    base: Path
    store: Path
    servers: str
    grpc: str

    @property
    def site(self) -> Path:
        return self.store / "site"

    @property
    def ca(self) -> Path:
        return self.site / "tls" / "ca.pem"

    def creds(self, name: str) -> Path:
        return self.base / "creds" / f"{name}.creds"


def neutral(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment every part starts from."""
    return {key: value for key, value in environ.items() if KEPT.fullmatch(key)}


def _service(kind: str, name: str, module: str, layout: Layout, *, http: int, extra: Mapping[str, str], replica: str) -> Part:
    environment = {
        "AEGIS_BUS_SERVERS": layout.servers,
        "AEGIS_SERVICE_REPLICA": replica,
        "AEGIS_SERVICE_PORT": str(http),
        "AEGIS_SERVICE_DRAIN_GRACE": "3s",
        **extra,
        **({"AEGIS_BUS_TLS_CA": str(layout.ca)} if layout.servers.startswith("tls://") else {}),
    }
    if kind != "credentials":
        environment["AEGIS_BUS_CREDS"] = str(layout.creds(kind))
    part = Part(kind, name, [sys.executable, "-m", module], environment, http, f"http://127.0.0.1:{http}")
    part.replica = replica
    return part


def credentials(layout: Layout, http: int) -> Part:
    extra = {"AEGIS_CREDENTIALS_STATE": str(layout.site), "AEGIS_CREDENTIALS_LISTEN": layout.grpc}
    return _service("credentials", "credentials", "aegis_credentials", layout, http=http, extra=extra, replica="c1")


def master(layout: Layout, http: int, number: int, replica: str) -> Part:
    """`replica` is new at every start: a killed replica's lease must be missed, not renewed by its successor."""
    return _service("master", f"master-{number}", "aegis_master", layout, http=http, extra={}, replica=replica)


def jobcontroller(layout: Layout, http: int) -> Part:
    extra = {"AEGIS_CREDENTIALS_SERVER": layout.grpc, "AEGIS_CREDENTIALS_TLS_CA": str(layout.ca)}
    return _service("jobcontroller", "jobcontroller", "aegis_jobcontroller", layout, http=http, extra=extra, replica="jc1")


def has_lognexus() -> bool:
    """What it needs is installed (extra `lognexus`)."""
    return all(find_spec(name) is not None for name in ("aegis_lognexus", "numpy", "hyperscan"))


def lognexus(layout: Layout, http: int) -> Part:
    """The store of the lines. Nothing waits for it: what comes before it is up lies in the stream."""
    part = _service(
        "lognexus", "lognexus", "aegis_lognexus", layout, http=http, extra={"AEGIS_LOGNEXUS_STORE": str(layout.store / "logs")}, replica="logs1"
    )
    part.needed = False
    return part


def has_lemon() -> bool:
    """What it needs is installed (extra `lemon`)."""
    return all(find_spec(name) is not None for name in ("aegis_lemon", "numpy", "duckdb"))


def lemon(layout: Layout, http: int) -> Part:
    """Which nodes are bad, as the user's configuration has it; its history lies in the store where that names no other folder."""
    extra = {} if config.load(cwd=layout.base, env=neutral(os.environ)).lemon.state else {"AEGIS_LEMON_STATE": str(layout.store / "lemon")}
    part = _service("lemon", "lemon", "aegis_lemon", layout, http=http, extra=extra, replica="lemon1")
    part.needed = False
    return part


def wants_netmon(folder: Path) -> bool:
    """The user's own configuration sets something of [netmon]. `folder`: one without an aegis.toml (a working folder's is not trusted with it).

    A configuration that is wrong wants nothing here: the commands say what is wrong with it.
    """
    try:
        loaded = config.load(cwd=folder, env=neutral(os.environ))
    except config.ConfigError:
        return False
    return any(key.startswith("netmon.") and origin != "default" for key, origin in loaded.origins.items())


def netmon(layout: Layout, http: int) -> Part:
    """The network monitor, as the user's configuration has it."""
    part = _service("netmon", "netmon", "aegis_netmon", layout, http=http, extra={}, replica="net1")
    part.needed = False
    return part


def node(layout: Layout, name: str, alone: bool, ports: bool = False) -> Part:
    """A node daemon. Alone on its machine it has the GPUs, and the ports when they are watched; otherwise it is one of several virtual nodes."""
    cards = gpus() if alone else 0
    command = [sys.executable, "-m", "aegis_agent", "node", "--node", name, "--state", str(layout.base / "nodes" / name), "--servers", layout.servers]
    command += ["--creds", str(layout.creds(name)), "--credentials-ca", str(layout.ca), "--slots", "1" if cards else str(SLOTS), "--virtual"]
    command += ["--gpus", str(cards)] if cards else []
    command += ["--ports-every", "10"] if alone and ports else []
    return Part("node", name, command, {}, 0, "127.0.0.1")


def node_name(number: int) -> str:
    return f"node{number}"


def environment_of(part: Part, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a part's process."""
    return {**neutral(os.environ if environ is None else environ), **part.environment}
