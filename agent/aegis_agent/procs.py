"""Processes as /proc tells them, and which of them belong to a scope. Reads /proc; signals nothing; imports little (a check uses it).

A scope is named `<uid>.<pod>.<attempt>.<incarnation>` and travels in the environment of every process of a run (`AEGIS_SCOPE`), so that it is found
again after its parents are gone, by anyone, after any restart. A process belongs to a scope if its environment says so, if it descends from one that
does, or if it descends from the agent that runs the scope.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

VARIABLE = "AEGIS_SCOPE"


def contents(path: str, size: int = 65536) -> bytes:
    """The first `size` bytes of a file of /proc or /sys; b"" when it is gone or not ours. Bare system calls: a sweep reads hundreds."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""
    finally:
        os.close(fd)


class Proc(NamedTuple):
    """One live process. `start` (clock ticks since boot) and pid together are unique."""

    pid: int
    parent: int
    start: int


def scope_id(uid: str, pod: str, attempt: int, incarnation: int | str) -> str:
    return f"{uid}.{pod}.{attempt}.{incarnation}"


def scope_prefix(uid: str, pod: str, attempt: int | None = None) -> str:
    """Matches every scope of a pod, or of one attempt of it."""
    return f"{uid}.{pod}." if attempt is None else f"{uid}.{pod}.{attempt}."


def live(pid: int | str) -> Proc | None:
    """The process if it lives. A zombie does not, unless threads of it still run (a leader that called pthread_exit)."""
    text = contents(f"/proc/{pid}/stat", 1024)
    if not text:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1:
        return None
    return Proc(int(pid), int(fields[1]), int(fields[19]))


def start_ticks(pid: int) -> int | None:
    """Start time of a live process, in clock ticks since boot; None when it is gone."""
    proc = live(pid)
    return proc.start if proc else None


def stat(pid: int) -> tuple[str, int] | None:
    """(state, user and system ticks) of a process, a zombie too; None when it is gone."""
    text = contents(f"/proc/{pid}/stat", 1024)
    if not text:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    return fields[0].decode(), int(fields[11]) + int(fields[12])


def processes() -> dict[int, Proc]:
    """Every live process this one can see."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (proc := live(name)) is not None:
            found[proc.pid] = proc
    return found


def descendants(procs: dict[int, Proc], roots: Iterable[int]) -> set[int]:
    """Pids below `roots`, without the roots."""
    return _below(_children(procs), roots)


def _children(procs: dict[int, Proc]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for proc in procs.values():
        children.setdefault(proc.parent, []).append(proc.pid)
    return children


def _below(children: dict[int, list[int]], roots: Iterable[int]) -> set[int]:
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
    environ = contents(f"/proc/{pid}/environ", 1 << 18)
    wanted = f"{VARIABLE}={prefix}".encode()
    if environ.startswith(wanted):
        at = 0
    else:
        at = environ.find(b"\0" + wanted) + 1
        if at == 0:
            return False
    return not whole or environ[at + len(wanted) : at + len(wanted) + 1] in (b"", b"\0")


def variable(pid: int, name: str) -> str:
    """A variable of the environment that `pid` was started with, "" when there is none or it may not be read."""
    wanted = f"{name}=".encode()
    found = next((entry for entry in contents(f"/proc/{pid}/environ", 1 << 18).split(b"\0") if entry.startswith(wanted)), b"")
    return found[len(wanted) :].decode(errors="replace")


def members(prefix: str, *, whole: bool = False, roots: Iterable[int] = (), spare: Iterable[int] = ()) -> dict[int, Proc]:
    """Live processes of the scopes that begin with `prefix`: what carries it and what descends from those; and what descends from `roots`.

    `spare` and everything below it is left out, and so is this process.
    """
    procs = processes()
    me = os.getpid()
    children = _children(procs)
    spared = set(spare)
    spared |= _below(children, spared) | {me}
    found = _below(children, roots)
    carrying = {pid for pid in procs if pid not in found and pid not in spared and carries(pid, prefix, whole=whole)}
    found |= carrying | _below(children, carrying)
    return {pid: procs[pid] for pid in found - spared}


def holds_connection(pids: Iterable[int], local: int, remote: int) -> bool:
    """Whether one of `pids` has the end of a TCP connection on this machine that has these ports. False for what may not be looked into."""
    ends = (f":{local:04X}", f":{remote:04X}")
    wanted = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{table}") as rows:
                found = (row.split() for row in rows)
                wanted |= {f"socket:[{row[9]}]" for row in found if row[1].endswith(ends[0]) and row[2].endswith(ends[1]) and row[9] != "0"}
        except OSError:
            continue
    return any(link in wanted for pid in pids for link in _links(pid))


def _links(pid: int) -> Iterator[str]:
    """What the descriptors of a process are."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
