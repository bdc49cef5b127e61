"""The collective checks as a round starts them: the user's python, our program's files, and where the workers of this round meet.

Pure but for looking for free ports. Knows the order (where w0 listens) and the job; the program itself is `aegis_agent.collective`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aegis_proto.messages import CheckResult

from aegis_agent import ports
from aegis_agent.checks.interpreter import of_command
from aegis_agent.checks.running import Program, run_program
from aegis_agent.handover import WorkerTask
from aegis_agent.reaper import Reaper

FOLDER = Path(__file__).resolve().parent.parent / "collective"
BOOT = """import importlib.util as u, sys
sys.path[:] = [p for p in sys.path if p]
s = u.spec_from_file_location("aegis_collective", sys.argv[1] + "/__init__.py", submodule_search_locations=[sys.argv[1]])
m = sys.modules[s.name] = u.module_from_spec(s)
s.loader.exec_module(m)
from aegis_collective.program import main
main()
"""
"""Runs under the user's interpreter: loads our files under a name of their own, and puts nothing on its path."""
CONNECTION_SECONDS, PERFORMANCE_SECONDS = 122.0, 2 * 182.0
MEET_SECONDS = 40.0
RESERVE = 6.0
"""Seconds below the deadline at which the program itself gives up, so that it says why."""
STORE_PORTS = 8


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the program needs. `grace`: seconds others may take to stop their command before they come."""

    python: str
    told: str
    grace: float
    env: Mapping[str, str]

    @property
    def program(self) -> Program:
        connection = CONNECTION_SECONDS + self.grace
        owes = (("environment", connection), ("allreduce", connection), ("performance", connection + PERFORMANCE_SECONDS))
        return Program([self.python, "-c", BOOT, str(FOLDER)], self.told.encode(), owes)

    async def run(self, reaper: Reaper, scope: str, node: str) -> list[CheckResult]:
        """Its three results: environment, allreduce, performance."""
        return await run_program(reaper, self.program, self.env, f"{scope}-meeting", node)


def prepare(
    task: WorkerTask, environ: Mapping[str, str], *, index: int, host: str, port: int, round_key: tuple[str, int, int], grace: float, gpus: bool
) -> Meeting | None:
    """The meeting of this worker; None when there is nothing to meet for: no torch in the command, nobody to meet, or no place was named."""
    spec = task.spec
    if not host or not port or (task.workers < 2 and not (gpus and spec.nprocPerNode > 1)):
        return None
    env = {**environ, **spec.env}
    interpreter = of_command(spec.command, env, spec.cwd or os.getcwd())
    if not interpreter.python or not interpreter.torch:
        return None
    candidates = ports.candidates(spec.masterPortRange, ports.ephemeral_range(), random.SystemRandom())
    told = {
        "index": index,
        "world": task.workers,
        "nproc": spec.nprocPerNode,
        "hub": [host, port],
        "key": key(task.uid, round_key),
        "seconds": CONNECTION_SECONDS + grace - RESERVE,
        "meet": MEET_SECONDS + grace,
        "patience": CONNECTION_SECONDS + grace,
        "ports": [number for number in candidates[:64] if number != port and ports.can_listen(number)][:STORE_PORTS] if index == 0 else [],
        "speedCounts": gpus or env.get("AEGIS_CHECKS_CPU_SPEED") == "1",
    }
    return Meeting(interpreter.python, json.dumps(told), grace, env)


def key(uid: str, round_key: tuple[str, int, int]) -> str:
    """What the workers of one round know and nobody else: the job's uid with the order's number."""
    return hashlib.sha256("|".join((uid, *map(str, round_key))).encode()).hexdigest()
