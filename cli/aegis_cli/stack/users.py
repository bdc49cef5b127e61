"""Who uses the stack: locks in its folder, never process ids. A lock ends with its process, however that ends.

`gate` orders joining, starting and ending: whoever holds it sees a stack that is not just going away. `User` is one process that needs the stack.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from aegis_cli.errors import CliError


def try_lock(fd: int) -> bool:
    """Take the exclusive lock of an open file now, or say that somebody has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_lock(path: Path) -> int:
    """An open lock file (0600, never through a symbolic link, not inherited)."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def wait_lock(fd: int, timeout: float, what: str) -> None:
    """Take a lock that another process gives up soon; E123 names what was waited for."""
    deadline = time.monotonic() + timeout
    while not try_lock(fd):
        if time.monotonic() > deadline:
            raise CliError("E123", f"waited {timeout:.0f} s for {what}: another aegis process holds the stack's lock. aegis status, or aegis down")
        time.sleep(0.02)


@contextlib.contextmanager
def gate(base: Path, timeout: float = 90.0) -> Iterator[None]:
    """Hold the gate of the stack in `base`."""
    fd = open_lock(base / "gate")
    try:
        wait_lock(fd, timeout, "the stack to finish starting or ending")
        yield
    finally:
        os.close(fd)


class User:
    """This process needs the stack until `close`, or until it ends. Make it under the gate."""

    def __init__(self, base: Path) -> None:
        folder = base / "users"
        folder.mkdir(mode=0o700, exist_ok=True)
        self.path = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        self._fd = open_lock(self.path)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def close(self) -> None:
        if self._fd >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def in_use(base: Path, clean: bool = False) -> int:
    """How many user processes live. `clean`: remove the files of dead ones; under the gate only, else one that is just being made could be hit."""
    alive = 0
    for path in (base / "users").glob("*") if (base / "users").is_dir() else ():
        try:
            fd = open_lock(path)
        except OSError:
            continue
        try:
            if not try_lock(fd):
                alive += 1
            elif clean:
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)
    return alive


def pinned(base: Path) -> bool:
    """`aegis up`, `run -d` or `--keep-stack` said that it stays."""
    return (base / "pinned").exists()


def pin(base: Path, on: bool) -> None:
    if on:
        (base / "pinned").touch(mode=0o600)
    else:
        (base / "pinned").unlink(missing_ok=True)
