"""The processes of one run of the command: found, ended, and verified gone (DESIGN.md §5, "Recovery", step 1).

A scope is named `<uid>.<pod>.<attempt>.<incarnation>` and travels in the environment of every process of the run (`AEGIS_SCOPE`), so that it is
found again after its parents are gone, by anyone, after any restart. A process belongs to a scope if its environment says so, if it descends from
one that does, or if it descends from the agent that runs the scope. Reads /proc; signals by pidfd, so that a reused pid is never hit; never kill(-1).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

VARIABLE = "AEGIS_SCOPE"
GONE_LIMIT = 30.0
"""Seconds after SIGKILL until what is left is called unkillable (a process in D state: the node is suspect)."""


class Proc(NamedTuple):
    """One live process. `start` (clock ticks since boot) and pid together are unique."""

    pid: int
    parent: int
    start: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How ending a scope went: `clean` = two sweeps in a row found nothing; `left` would not die; `killed` needed SIGKILL."""

    clean: bool
    seconds: float
    killed: int = 0
    left: tuple[int, ...] = ()


def scope_id(uid: str, pod: str, attempt: int, incarnation: int | str) -> str:
    return f"{uid}.{pod}.{attempt}.{incarnation}"


def scope_prefix(uid: str, pod: str, attempt: int | None = None) -> str:
    """Matches every scope of a pod, or of one attempt of it."""
    return f"{uid}.{pod}." if attempt is None else f"{uid}.{pod}.{attempt}."


def live(pid: int | str) -> Proc | None:
    """The process if it lives. A zombie does not, unless threads of it still run (a leader that called pthread_exit)."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(1024)
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1:
        return None
    return Proc(int(pid), int(fields[1]), int(fields[19]))


def start_ticks(pid: int) -> int | None:
    """Start time of a live process, in clock ticks since boot; None when it is gone."""
    proc = live(pid)
    return proc.start if proc else None


def processes() -> dict[int, Proc]:
    """Every live process this one can see."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (proc := live(name)) is not None:
            found[proc.pid] = proc
    return found


def descendants(procs: dict[int, Proc], roots: Iterable[int]) -> set[int]:
    """Pids below `roots`, without the roots."""
    children: dict[int, list[int]] = {}
    for proc in procs.values():
        children.setdefault(proc.parent, []).append(proc.pid)
    found: set[int] = set()
    stack = list(roots)
    while stack:
        for pid in children.get(stack.pop(), ()):
            if pid not in found:
                found.add(pid)
                stack.append(pid)
    return found


def carries(pid: int, prefix: str, *, whole: bool = False) -> bool:
    """Whether the environment of `pid` names a scope that begins with `prefix` (or is it, with `whole`). False when it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            environ = file.read(1 << 20)
    except OSError:
        return False
    wanted = f"{VARIABLE}={prefix}".encode()
    if environ.startswith(wanted):
        at = 0
    else:
        at = environ.find(b"\0" + wanted) + 1
        if at == 0:
            return False
    return not whole or environ[at + len(wanted) : at + len(wanted) + 1] in (b"", b"\0")


def members(prefix: str, *, whole: bool = False, roots: Iterable[int] = (), spare: Iterable[int] = ()) -> dict[int, Proc]:
    """Live processes of the scopes that begin with `prefix`: what carries it, what descends from those, and what descends from `roots` (without them).

    `spare` and everything below it is left out, and so is this process.
    """
    procs = processes()
    me = os.getpid()
    spared = set(spare) | {me}
    spared |= descendants(procs, spared - {me})
    found = descendants(procs, roots)
    carrying = {pid for pid in procs if pid not in found and pid not in spared and carries(pid, prefix, whole=whole)}
    found |= carrying | descendants(procs, carrying)
    return {pid: procs[pid] for pid in found - spared}


def send(proc: Proc, *signals: int) -> bool:
    """Signal exactly this process, never a later one with its pid. False when it is gone or not ours."""
    try:
        fd = os.pidfd_open(proc.pid)
    except OSError:
        return False
    try:
        if start_ticks(proc.pid) != proc.start:
            return False
        for number in signals:
            signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


async def all_exited(procs: Iterable[Proc], timeout: float) -> bool:
    """Wait until every one of `procs` has exited, by pidfd: no polling. False at the timeout (seconds)."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    waiting: set[int] = set()

    def exited(fd: int) -> None:
        loop.remove_reader(fd)
        waiting.discard(fd)
        os.close(fd)
        if not waiting and not done.done():
            done.set_result(True)

    for proc in procs:
        try:
            fd = os.pidfd_open(proc.pid)
        except OSError:
            continue
        if start_ticks(proc.pid) != proc.start:
            os.close(fd)
            continue
        waiting.add(fd)
        loop.add_reader(fd, exited, fd)
    try:
        if waiting:
            async with asyncio.timeout(max(timeout, 0)):
                await done
        return True
    except TimeoutError:
        return False
    finally:
        for fd in waiting:
            loop.remove_reader(fd)
            os.close(fd)


class Patience:
    """The moment at which SIGTERM becomes SIGKILL; may be brought forward, never put off."""

    def __init__(self, grace: float) -> None:
        self.until = time.monotonic() + grace
        self._changed: asyncio.Event = asyncio.Event()

    def shorten(self, grace: float) -> None:
        """At most `grace` seconds from now."""
        until = time.monotonic() + grace
        if until < self.until:
            self.until = until
            self._changed.set()

    async def wait_exited(self, procs: Iterable[Proc]) -> None:
        """Until all of `procs` have exited or patience has run out."""
        while (left := self.until - time.monotonic()) > 0:
            self._changed.clear()
            exited = asyncio.ensure_future(all_exited(procs, left))
            changed = asyncio.ensure_future(self._changed.wait())
            await asyncio.wait((exited, changed), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if exited.done():
                return
            exited.cancel()
            await asyncio.wait((exited,))


async def end(
    find: Callable[[], dict[int, Proc]], patience: Patience, *, limit: float = GONE_LIMIT, kill_all: Callable[[], None] | None = None
) -> Ended:
    """End all that `find` finds: SIGTERM (and SIGCONT, so that a stopped one hears it), when patience ends SIGKILL, until two sweeps in a row are empty.

    `kill_all` is cgroup.kill where a cgroup is ours. What is still there `limit` seconds after SIGKILL is reported as left.
    """
    begun = time.monotonic()
    hard_since: float | None = None
    told: set[tuple[int, int]] = set()
    killed: set[tuple[int, int]] = set()
    empty = 0
    while True:
        found = find()
        now = time.monotonic()
        if not found:
            empty += 1
            if empty == 2:
                return Ended(True, now - begun, len(killed))
            await asyncio.sleep(0)
            continue
        empty = 0
        hard = now >= patience.until
        if hard and hard_since is None:
            hard_since = now
        if hard_since is not None and now >= hard_since + limit:
            return Ended(False, now - begun, len(killed), tuple(sorted(found)))
        if hard and kill_all is not None:
            kill_all()
        for proc in found.values():
            key = (proc.pid, proc.start)
            if hard:
                killed.add(key)
                send(proc, signal.SIGKILL)
            elif key not in told:
                told.add(key)
                send(proc, signal.SIGTERM, signal.SIGCONT)
        if hard:
            await all_exited(found.values(), 0.2)
        else:
            await patience.wait_exited(found.values())


async def end_scope(prefix: str, grace: float = 0.0, *, whole: bool = False, limit: float = GONE_LIMIT) -> Ended:
    """End every process of the scopes that begin with `prefix`, whoever started them (the node daemon's sweep)."""
    from aegis_agent.cgroup import kill_scopes, remove_scopes

    ended = await end(lambda: members(prefix, whole=whole), Patience(grace), limit=limit, kill_all=lambda: kill_scopes(prefix))
    remove_scopes(prefix)
    return ended
