"""What a quiet run looks like from outside: stopped, blocked in the kernel, busy or idle. Reads /proc of its processes; cheap, once per heartbeat."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from aegis_agent.procs import stat

STOPPED, BLOCKED, BUSY, IDLE = "stopped", "blocked", "busy", "idle"
BUSY_SHARE = 0.3
"""Cores that the tree of a run uses, above which it is busy: who spins in a collective uses one, who waits in a poll next to none."""
BLOCKED_LOOKS = 2
"""Looks in a row at which the main thread of a rank waits in the kernel without hearing signals (D)."""
MOST = 512
"""Processes that are looked at."""
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Look:
    """`cpu`: cores used since the look before, -1 = not known yet. `pid` is who is stopped or blocked."""

    sign: str = ""
    cpu: float = -1.0
    pid: int = 0


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(word) for word in file.read(65536).split()]
    except OSError:
        return []


class Signature:
    """Of one run. `look` compares with the look before."""

    def __init__(self) -> None:
        self._ticks: dict[int, int] = {}
        self._at = 0.0
        self._blocked: dict[int, int] = {}

    def look(self, roots: Iterable[int], now: float) -> Look:
        """`roots`: the processes of the ranks (or of a nested launcher). `now`: monotonic seconds."""
        states: dict[int, str] = {}
        ticks: dict[int, int] = {}
        stack = list(roots)
        while stack and len(states) < MOST:
            pid = stack.pop()
            if pid in states or (found := stat(pid)) is None:
                continue
            states[pid], ticks[pid] = found
            stack += _children(pid)
        before, since = self._ticks, now - self._at
        self._ticks, self._at = ticks, now
        self._blocked = {pid: self._blocked.get(pid, 0) + 1 for pid, state in states.items() if state == "D"}
        cpu = -1.0
        if before and since > 0:
            cpu = max(0.0, sum(used - before.get(pid, used) for pid, used in ticks.items()) / _TICK / since)
        for pid, state in states.items():
            if state in "Tt":
                return Look(STOPPED, cpu, pid)
        for pid, looks in self._blocked.items():
            if looks >= BLOCKED_LOOKS:
                return Look(BLOCKED, cpu, pid)
        return Look("" if cpu < 0 else BUSY if cpu >= BUSY_SHARE else IDLE, cpu)
