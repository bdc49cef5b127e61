"""Joining, starting and ending the stack of this user. The caller's side; the other side is `keeper`.

`join` returns a `Stack` that stays up at least as long as this process holds it. Everything is decided under the gate, so two commands at once
get one stack, and none gets one that is just going away.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aegis_cli.errors import CliError, from_text
from aegis_cli.stack import guard, parts, place, users

START_TIMEOUT = 60.0
VIRTUAL_NODES = 64
"""Most node daemons a stack of one machine takes."""


@dataclass
class Stack:
    """A running stack, in use by this process until `leave`."""

    base: Path
    info: dict[str, Any]
    user: users.User | None = None
    started: bool = False
    """This call started it."""
    seconds: float = 0.0

    @property
    def servers(self) -> list[str]:
        return [str(server) for server in self.info["servers"]]

    @property
    def creds(self) -> Path:
        """Credentials of the operator of this stack."""
        return Path(self.info["creds"])

    @property
    def nodes(self) -> list[str]:
        return [part["name"] for part in self.info["parts"] if part["kind"] == "node"]

    def leave(self) -> None:
        """This process needs it no more."""
        if self.user is not None:
            self.user.close()
            self.user = None


def read_info(base: Path) -> dict[str, Any]:
    """What the keeper last said; {} when it said nothing (yet)."""
    try:
        info = json.loads((base / "keeper.json").read_text())
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def lock_free(base: Path) -> bool:
    """Nothing of a stack lives here."""
    if not (base / "keeper.lock").exists():
        return True
    fd = users.open_lock(base / "keeper.lock")
    try:
        return users.try_lock(fd)
    finally:
        os.close(fd)


def running(base: Path) -> dict[str, Any] | None:
    """The keeper's word if a stack runs here; None if not. Changes nothing."""
    if not base.is_dir() or lock_free(base):
        return None
    return read_info(base)


def join(
    base: Path,
    *,
    nodes: int = 1,
    masters: int = 1,
    store: Path | None = None,
    pin: bool = False,
    host: str = "127.0.0.1",
    members: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Stack:
    """Use the stack of `base`, started if there is none; with at least `nodes` node daemons. E120 to E123 when it cannot be had.

    `members`: node daemons on other machines, that reach it at `host`; where none are, it is for this machine alone.
    """
    if nodes > VIRTUAL_NODES:
        raise CliError(
            "E113", f"{nodes} workers asked, one machine makes at most {VIRTUAL_NODES} virtual nodes. Processes on one node: --nproc-per-node"
        )
    begun = time.monotonic()
    place.trusted(base)
    if store is not None:
        place.check_local(store)
    with users.gate(base):
        user = users.User(base)
        try:
            info = running(base)
            if info is not None and info.get("state") in ("stopping", "failed", "gone"):
                _wait_free(base)
                info = None
            started = info is None
            if started:
                _clean(base)
                _start(base, ("--nodes", str(nodes), "--masters", str(masters), "--host", host, *_flags("--member", members)), store, say)
            if pin:
                users.pin(base, True)
        except BaseException:
            user.close()
            raise
    try:
        info = wait_ready(base)
        if store is not None and str(store) != info.get("store"):
            raise CliError("E105", f"a stack is up with its state in {info.get('store')}, not in {store}. End it first: aegis down")
        missing = nodes - sum(part["kind"] == "node" for part in info["parts"])
        if missing > 0:
            say(f"adding {missing} virtual node{'s' if missing > 1 else ''} of this machine")
            info = ask(base, {"do": "nodes", "count": nodes}, timeout=START_TIMEOUT)
    except BaseException:
        user.close()
        raise
    return Stack(base, info, user, started, time.monotonic() - begun)


def _wait_free(base: Path, timeout: float = 40.0) -> None:
    deadline = time.monotonic() + timeout
    while not lock_free(base):
        if time.monotonic() > deadline:
            raise CliError("E123", f"the stack in {base} is ending and does not end: a process of it would not die ({base}/logs/keeper.log)")
        time.sleep(0.02)


def _clean(base: Path) -> None:
    """Remove what a stack that was killed may have left: processes by their mark, socket, state of a trial. Under the gate, nothing runs."""
    mark = str(read_info(base).get("mark", ""))
    if mark and not guard.end_marked(mark):
        raise CliError("E123", f"processes of the stack that was here before would not die ({base}/logs/keeper.log)")
    for name in ("keeper.json", "control.sock", "pinned"):
        (base / name).unlink(missing_ok=True)
    for name in ("store", "nodes", "creds", "logs"):
        shutil.rmtree(base / name, ignore_errors=True)


def _flags(name: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (name, value)]


def _start(base: Path, flags: Sequence[str], store: Path | None, say: Callable[[str], None]) -> None:
    """Start guard and keeper in a session of their own; they hold keeper.lock from before this call returns."""
    say("starting a stack on this machine")
    (base / "logs").mkdir(mode=0o700, exist_ok=True)
    lock = users.open_lock(base / "keeper.lock")
    try:
        users.wait_lock(lock, 5.0, "the stack's lock")
        mark = secrets.token_hex(8)
        command = [sys.executable, "-m", "aegis_cli.stack.keeper", "--dir", str(base), "--mark", mark, *flags]
        command += ["--store", str(store)] if store else []
        with open(base / "logs" / "keeper.log", "ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "aegis_cli.stack.guard", mark, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**parts.neutral(os.environ), "AEGIS_STACK_LOCK_FD": str(lock)},
                pass_fds=[lock],
                start_new_session=True,
            )
    finally:
        os.close(lock)


def wait_ready(base: Path, timeout: float = START_TIMEOUT) -> dict[str, Any]:
    """Until every part answered; E123 (or the keeper's own code) with the reason when one does not."""
    deadline = time.monotonic() + timeout
    while True:
        info = read_info(base)
        if info.get("state") == "up":
            return info
        if info.get("state") == "failed":
            raise from_text(str(info.get("error", "")), "E123")
        if lock_free(base):
            info = read_info(base)
            raise from_text(str(info.get("error") or f"the stack ended while starting: {_last_line(base)}"), "E123")
        if time.monotonic() > deadline:
            waiting = [part["name"] for part in info.get("parts", []) if part["state"] != "up"]
            raise CliError("E123", f"the stack is not up after {timeout:.0f} s: waiting for {', '.join(waiting) or 'the keeper'} ({base}/logs)")
        time.sleep(0.02)


def _last_line(base: Path) -> str:
    try:
        lines = (base / "logs" / "keeper.log").read_text(errors="replace").strip().splitlines()
    except OSError:
        return "no log"
    return f"{lines[-1][:300]} ({base}/logs/keeper.log)" if lines else f"see {base}/logs"


def ask(base: Path, request: dict[str, Any], timeout: float = 10.0) -> dict[str, Any]:
    """One request to the keeper over its socket; E123 when it does not answer or refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
        try:
            connection.connect(f"/proc/self/fd/{folder}/control.sock")  # the real path may be too long for a socket address
            connection.sendall(json.dumps(request).encode() + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                chunk = connection.recv(65536)
                if not chunk:
                    break
                data += chunk
            answer = json.loads(data)
        except (OSError, ValueError) as error:
            raise CliError("E123", f"the keeper of the stack in {base} does not answer ({error or type(error).__name__})") from None
        finally:
            os.close(folder)
    if not isinstance(answer, dict):
        raise CliError("E123", f"the keeper of the stack in {base} gave no answer that makes sense")
    if answer.get("error"):
        raise from_text(str(answer["error"]), "E123")
    return answer


def end(base: Path, timeout: float = 60.0) -> bool:
    """End the stack, whoever uses it. False when there was none."""
    if running(base) is None:
        return False
    users.pin(base, False)
    try:
        ask(base, {"do": "down"})
    except CliError:
        pass  # it is ending already, or was killed: its lock tells
    _wait_free(base, timeout)
    return True
