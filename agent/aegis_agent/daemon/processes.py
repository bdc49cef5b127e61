"""The processes of a slot, as /proc tells them: the agent that was started for it, and everything that is left of it.

Reads /proc. Owns no state. A process is known by (pid, start time in clock ticks since boot, boot id of the machine). It belongs to attempt n
of a pod when its environment at exec said AEGIS_SCOPE=<uid>.<pod>.<n>.<...>, when its command line names the slot file (an agent makes itself
unreadable), when it descends from such a process, or when it became our child without a scope: with agents that are subreapers this means that
its agent died.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from aegis_agent.procs import variable
from aegis_agent.scope import VARIABLE, Proc, descendants, processes, start_ticks

PR_SET_CHILD_SUBREAPER = 36
AGENT = "agent"
"""Last part of the scope of an agent itself, where its command has the incarnation."""


def boot_id() -> str:
    """Id of this boot of the machine: no process survives a change of it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def become_subreaper() -> None:
    """Orphans of our agents become our children instead of init's, so that none is lost from sight."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _read(pid: int, what: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{what}", "rb", buffering=0) as file:
            return file.read(1 << 20)
    except OSError:
        return b""


def scope_of(pid: int) -> str:
    """The Aegis scope in the environment of a process, "" when it has none or may not be read."""
    return variable(pid, VARIABLE)


def attempt_of(scope: str, uid: str, pod: str) -> int | None:
    """Attempt named by a scope `<uid>.<pod>.<attempt>.<incarnation>`, None when it belongs to another job or pod."""
    if not scope.startswith(f"{uid}.{pod}."):
        return None
    number = scope[len(uid) + len(pod) + 2 :].split(".", 1)[0]
    return int(number) if number.isdigit() else None


def own_line() -> set[int]:
    """This process and its ancestors: never to be killed, whatever their environment says."""
    line: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        pid = int(fields[1]) if fields else 0
    return line


@dataclass(slots=True)
class Sweep:
    """What a sweep looks for: all attempts of one pod up to `attempt`, agents started with `slot_file`, and orphans that came to us."""

    uid: str
    pod: str
    attempt: int
    slot_file: str = ""
    orphans: bool = False
    agents: Callable[[], frozenset[int]] = frozenset
    """Pids of the agents of this daemon: children of ours that are no orphans."""
    highest: int = 0
    """Highest attempt of the pod that the last sweep saw alive on this machine, 0 when none."""

    def __call__(self) -> dict[int, Proc]:
        """Living processes of the scope, with all that descends from them."""
        procs = processes()
        me, spared, agents = os.getpid(), own_line(), self.agents()
        roots: set[int] = set()
        self.highest = 0
        for pid, proc in procs.items():
            if pid in spared:
                continue
            scope = scope_of(pid)
            attempt = attempt_of(scope, self.uid, self.pod)
            if attempt is not None:
                self.highest = max(self.highest, attempt)
                if attempt <= self.attempt:
                    roots.add(pid)
            elif (self.slot_file and names_file(pid, self.slot_file)) or (self.orphans and not scope and proc.parent == me and pid not in agents):
                roots.add(pid)
        return {pid: procs[pid] for pid in (roots | descendants(procs, roots)) - spared}


def names_file(pid: int, path: str) -> bool:
    """True when `path` is an argument of the command line: readable even where the environment is not."""
    return path.encode() in _read(pid, "cmdline").split(b"\0")


def find_agent(slot_file: str) -> Proc | None:
    """The agent that was started with this slot file (the oldest, should a child have copied its command line)."""
    found = [proc for pid, proc in processes().items() if pid != os.getpid() and names_file(pid, slot_file)]
    return min(found, key=lambda proc: proc.start, default=None)


def reap(spare: Iterable[int]) -> int:
    """Collect dead children: orphans of agents. `spare`: pids whose exit code somebody waits for. Returns how many."""
    spared, count, me = set(spare), 0, os.getpid()
    for name in _read(me, f"task/{me}/children").split():
        pid = int(name)
        if pid not in spared and start_ticks(pid) is None:
            try:
                count += os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                continue
    return count
