"""Check `hang`: how the processes of the training on this node stand: stopped, blocked in the kernel, or alive. Touches none of them.

What waits in a collective looks like what works or like what sleeps: whether steps advance is judged by the master. What can be seen here is a
process that cannot advance at all. Reads /proc twice; writes nothing.
"""

from __future__ import annotations

import os
import time
from typing import Any

from aegis_agent.checks.answer import Answer, run
from aegis_agent.checks.settings import Settings
from aegis_agent.procs import VARIABLE, processes, stat, variable

WINDOW = 1.0
OURS = ("agent", "check")
"""How what is not a training's begins: the fourth word of its scope, or the first of a check by hand. A standby's scope ends in room (dots)."""


def training(scope: str) -> bool:
    """Whether a process with this scope belongs to a run of a command."""
    words = scope.split(".", 4)
    return bool(scope) and words[0] not in OURS and not words[min(3, len(words) - 1)].startswith(OURS)


def trainings(prefix: str) -> dict[int, str]:
    """Processes of trainings whose scope begins with `prefix` (all, when it is empty)."""
    me, found = os.getpid(), {}
    for pid in processes():
        scope = variable(pid, VARIABLE) if pid != me else ""
        if training(scope) and scope.startswith(prefix):
            found[pid] = scope
    return found


def examine(answer: Answer, settings: Settings, context: dict[str, Any]) -> str:
    pids = trainings(str(context.get("scope", "")))
    if not pids:
        return "not applicable: no training runs here"
    before = {pid: found for pid in pids if (found := stat(pid)) is not None}
    time.sleep(WINDOW)
    after = {pid: found for pid in before if (found := stat(pid)) is not None}
    used = sum(ticks - before[pid][1] for pid, (_, ticks) in after.items()) / os.sysconf("SC_CLK_TCK") / WINDOW
    answer.values |= {"processes": float(len(after)), "cores": round(used, 2)}
    for pid, (sign, _) in after.items():
        if sign in "Tt":
            answer.finding("hang_stopped", "critical", f"pid {pid}", f"stopped by a signal or a debugger ({pids[pid]})")
        elif sign == before[pid][0] == "D":
            answer.finding("hang_blocked", "critical", f"pid {pid}", f"waits in the kernel and hears no signal ({pids[pid]})")
    return f"{len(after)} processes use {used:.2f} cores"


if __name__ == "__main__":
    run("hang", examine)
