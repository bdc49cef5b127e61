"""Ending the processes of one run of the command, and verifying that they are gone: the first step of a recovery.

Which processes: `procs`. Signals by pidfd, so that a reused pid is never hit; waits by pidfd, so that nothing polls; never kill(-1).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aegis_agent.procs import VARIABLE, Proc, carries, descendants, live, members, processes, scope_id, scope_prefix, start_ticks

__all__ = [
    "GONE_LIMIT",
    "VARIABLE",
    "Ended",
    "Patience",
    "Proc",
    "all_exited",
    "carries",
    "descendants",
    "end",
    "end_scope",
    "in_group",
    "live",
    "members",
    "processes",
    "scope_id",
    "scope_prefix",
    "send",
    "start_ticks",
]

GONE_LIMIT = 30.0
"""Seconds after SIGKILL until what is left is called unkillable (a process in D state: the node is suspect)."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How ending a scope went: `clean` = two sweeps in a row found nothing; `left` would not die; `killed` needed SIGKILL."""

    clean: bool
    seconds: float
    killed: int = 0
    left: tuple[int, ...] = ()


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

    @property
    def ran_out(self) -> bool:
        return time.monotonic() >= self.until

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


def ticks_now() -> int:
    """The present moment in the unit of `Proc.start`: clock ticks since boot."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def in_group(procs: Iterable[Proc], group: int) -> set[tuple[int, int]]:
    """(pid, start) of those in this process group now."""
    found = set()
    for proc in procs:
        try:
            if os.getpgid(proc.pid) == group:
                found.add((proc.pid, proc.start))
        except OSError:  # gone meanwhile
            continue
    return found


async def end(
    find: Callable[[], dict[int, Proc]],
    patience: Patience,
    *,
    limit: float = GONE_LIMIT,
    told: Iterable[tuple[int, int]] = (),
    since: int | None = None,
    kill_all: Callable[[], None] | None = None,
) -> Ended:
    """End all that `find` finds: SIGTERM (and SIGCONT, a stopped one must hear it), later SIGKILL, until two sweeps in a row are empty.

    `told` (pid, start) have had their SIGTERM: for many trainings a second one means "do not save, go". What one of them has started since then
    (`since`: clock ticks since boot, default now) is how it saves, and is left to it while it lives and the patience lasts.
    `kill_all` is cgroup.kill where a cgroup is ours. What is still there `limit` seconds after SIGKILL is reported as left.
    """
    begun = time.monotonic()
    hard_since: float | None = None
    since = ticks_now() if since is None else since
    told = set(told)
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
        if hard:
            for proc in found.values():
                killed.add((proc.pid, proc.start))
                send(proc, signal.SIGKILL)
            await all_exited(found.values(), 0.2)
            continue
        theirs = _started_by(found, told, since)
        for proc in found.values():
            key = (proc.pid, proc.start)
            if proc.pid not in theirs and key not in told:
                told.add(key)
                send(proc, signal.SIGTERM, signal.SIGCONT)
        await patience.wait_exited(proc for proc in found.values() if proc.pid not in theirs)


def _started_by(found: dict[int, Proc], told: set[tuple[int, int]], since: int) -> set[int]:
    """Pids of what those in `told` that live, and their children, have started since `since`."""
    theirs: set[int] = set()
    for proc in sorted(found.values(), key=lambda proc: (proc.start, proc.pid)):
        parent = found.get(proc.parent)
        if parent is None or proc.start < since or (proc.pid, proc.start) in told:
            continue
        if parent.pid in theirs or (parent.pid, parent.start) in told:
            theirs.add(proc.pid)
    return theirs


async def end_scope(prefix: str, grace: float = 0.0, *, whole: bool = False, limit: float = GONE_LIMIT) -> Ended:
    """End every process of the scopes that begin with `prefix`, whoever started them (the node daemon's sweep)."""
    from aegis_agent.cgroup import kill_scopes, remove_scopes

    ended = await end(lambda: members(prefix, whole=whole), Patience(grace), limit=limit, kill_all=lambda: kill_scopes(prefix))
    remove_scopes(prefix)
    return ended
