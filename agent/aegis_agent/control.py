"""The control socket of a worker: JSON lines over a unix socket, 0600, each peer known by SO_PEERCRED.

The training may say `progress`, `checkpoint`, `expect-long` and `saver`, and ask `status`; it may never stop, taint or order anything: that is for
people on the machine, who are no processes of the training (`people`). Two lines of Python:
    s = socket.socket(socket.AF_UNIX); s.connect(os.environ["AEGIS_CONTROL_SOCKET"])
    s.sendall(b'{"verb": "progress", "step": 100}\\n')
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from aegis_proto.messages import Number

MAX_LINE = 4096
MAX_PEERS = 256
_PATH_LIMIT = 100  # sun_path is 108 bytes
_PRIVATE = "aegis-socket-"


class Request(msgspec.Struct, frozen=True):
    """One line. `step` for progress and checkpoint, `seconds` for expect-long and burn, `path` for saver; the rest is for the verbs of people."""

    verb: str
    step: Number = -1
    seconds: float = 0.0
    path: str = ""
    name: str = ""
    why: str = ""
    clear: bool = False
    force: bool = False


Verb = Callable[[Request], Awaitable["Answer"]]
VERBS = ("checkpoint", "progress", "expect-long", "saver", "status")

Answer = dict[str, Any]


def socket_path(state_dir: Path) -> Path:
    """`control.sock` in the state directory, or in a short private folder when the name would not fit into a socket address."""
    path = state_dir / "control.sock"
    if len(os.fsencode(path)) <= _PATH_LIMIT:
        return path
    return Path(tempfile.mkdtemp(prefix=_PRIVATE)) / "control.sock"


class ControlSocket:
    """Listens at `path`; every good request goes to `handle`, whose answer goes back. Bad lines get an error and change nothing.

    `people`: verbs that only a peer which `ours` knows not to be a process of the training may use.
    """

    def __init__(
        self,
        path: Path,
        handle: Callable[[Request], Answer],
        people: Mapping[str, Verb] | None = None,
        ours: Callable[[int], bool] = lambda pid: True,
    ) -> None:
        self.path = path
        self._handle = handle
        self._people = people or {}
        self._ours = ours
        self._server: asyncio.Server | None = None
        self._peers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        old = os.umask(0o177)
        try:
            listener.bind(os.fspath(self.path))
        finally:
            os.umask(old)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=MAX_LINE)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._peers):
                writer.close()
            self._server = None
            self.path.unlink(missing_ok=True)
            if self.path.parent.name.startswith(_PRIVATE):
                with contextlib.suppress(OSError):  # a cleaner of /tmp may have been faster: a training lasts longer than it waits
                    self.path.parent.rmdir()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._peers) >= MAX_PEERS or not _same_user(writer):
            writer.close()
            return
        self._peers.add(writer)
        try:
            while line := await reader.readline():
                writer.write(msgspec.json.encode(await self._answer(line, _peer(writer)[0])) + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError, asyncio.LimitOverrunError):
            pass  # gone, or a line beyond the limit
        finally:
            self._peers.discard(writer)
            writer.close()

    async def _answer(self, line: bytes, pid: int) -> Answer:
        try:
            request = msgspec.json.decode(line, type=Request)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return {"ok": False, "error": f"not a request: {error}"}
        if (verb := self._people.get(request.verb)) is not None and not self._ours(pid):
            return await verb(request)
        if request.verb not in VERBS:
            return {"ok": False, "error": f"the training may not {request.verb!r}; it may {', '.join(VERBS)}"}
        return {"ok": True, **self._handle(request)}


def _same_user(writer: asyncio.StreamWriter) -> bool:
    """Whether the peer is of our user, or root."""
    return _peer(writer)[1] in (os.geteuid(), 0)


def _peer(writer: asyncio.StreamWriter) -> tuple[int, int]:
    """(pid, uid) of the peer, as the kernel says."""
    raw = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid


def ask(path: str, request: dict[str, Any], timeout: float = 5.0) -> Answer:
    """One request to a worker's socket (`aegis-agent ctl`). OSError when nobody listens, ValueError on an answer that is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout)
        peer.connect(path)
        peer.sendall(msgspec.json.encode(request) + b"\n")
        data = b""
        while not data.endswith(b"\n") and (more := peer.recv(65536)):
            data += more
    answer = msgspec.json.decode(data)
    if not isinstance(answer, dict):
        raise ValueError("not an answer")
    return answer
