"""The collective checks as a round starts them: the user's python, our program's files, and where the workers of this round meet.

Pure but for looking for free ports. Knows the order (where w0 listens) and the job; the program itself is `aegis_agent.collective`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aegis_proto.messages import CheckResult
from aegis_proto.state import JobSpec

from aegis_agent import ports
from aegis_agent.checks.interpreter import Interpreter, of_command
from aegis_agent.checks.registry import accelerators, gpu_count
from aegis_agent.checks.running import Program, boot, run_program
from aegis_agent.handover import WorkerTask, now_ms
from aegis_agent.reaper import Reaper
from aegis_agent.warm import Standby, python_command

FOLDER = Path(__file__).resolve().parent.parent / "collective"
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
    words: tuple[str, ...] = ()
    """The interpreter as the command names it; () when the command is not a plain python script."""

    def program(self, *words: str) -> Program:
        connection = CONNECTION_SECONDS + self.grace
        owes = (("environment", connection), ("allreduce", connection), ("performance", connection + PERFORMANCE_SECONDS))
        return Program(boot(FOLDER, "aegis_collective", *words), self.told.encode(), owes)

    async def run(self, reaper: Reaper, scope: str, node: str, standby: Standby | None = None) -> list[CheckResult]:
        """Its three results: environment, allreduce, performance. Out of the standby, when it has imported what the training did."""
        if standby is None or not standby.preloaded or not self.words:
            return await run_program(reaper, self.program(self.python), self.env, f"{scope}-meeting", node)
        return await run_program(reaper, self.program(*self.words), self.env, f"{scope}-meeting", node, standby=standby)


def prepare(
    task: WorkerTask,
    environ: Mapping[str, str],
    *,
    index: int,
    host: str,
    port: int,
    round_key: tuple[str, int, int],
    grace: float,
    gpus: bool,
    interpreter: Interpreter | None = None,
) -> Meeting | None:
    """The meeting of this worker; None when there is nothing to meet for: no torch in the command, nobody to meet, or no place was named.

    `interpreter`: what its command names, when that is known already.
    """
    spec = task.spec
    if not host or not port or (task.workers < 2 and not (gpus and spec.nprocPerNode > 1)):
        return None
    env = {**environ, **spec.env}
    interpreter = interpreter or of_command(spec.command, env, spec.cwd or os.getcwd())
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
    plain = python_command(spec.command)
    return Meeting(interpreter.python, json.dumps(told), grace, env, plain.interpreter if plain is not None else ())


RESULTS: tuple[tuple[str, float, str], ...] = (
    ("environment", CONNECTION_SECONDS, "the software of all workers compared (by hand: of two on this machine)"),
    ("allreduce", CONNECTION_SECONDS, "all_reduce and all_gather over all workers, verified (by hand: as above)"),
    ("performance", PERFORMANCE_SECONDS / 2, "bandwidth with others, a pairing (by hand: as above)"),
)


async def by_hand(reaper: Reaper, environ: Mapping[str, str], scope: str, *, long: float = 0.0) -> list[CheckResult]:
    """What a meeting tells of this machine alone: of its devices together, or of two processes where it has fewer than two.

    `long`: seconds of one collective after the other under full load.
    """
    python = environ.get("AEGIS_CHECKS_PYTHON") or shutil.which("python3", path=environ.get("PATH")) or ""
    if not python:
        return [CheckResult(name, True, "not applicable: no python in the PATH", now_ms()) for name, _, _ in RESULTS]
    devices = gpu_count() if accelerators() else 0
    world = 1 if devices > 1 else 2
    span = JobSpec("by-hand").masterPortRange
    free = [port for port in ports.candidates(span, ports.ephemeral_range(), random.SystemRandom())[:64] if ports.can_listen(port)]
    hub, spare = free[0], free[1 : 1 + STORE_PORTS]
    secret = key(secrets.token_hex(16), ("", 0, 0))
    meetings = []
    for index in range(world):
        told = {"index": index, "world": world, "nproc": max(devices, 1), "hub": ["127.0.0.1", hub], "key": secret, "ports": spare}
        told |= {"seconds": CONNECTION_SECONDS - RESERVE, "meet": MEET_SECONDS, "patience": CONNECTION_SECONDS + long}
        told |= {"speedCounts": False, "byHand": True, "cpu": devices < 2, "long": long}
        meetings.append(Meeting(python, json.dumps(told), long, environ))
    every = await asyncio.gather(*(one.run(reaper, f"{scope}.{i}", "") for i, one in enumerate(meetings)))
    return every[0]


def key(uid: str, round_key: tuple[str, int, int]) -> str:
    """What the workers of one round know and nobody else: the job's uid with the order's number."""
    return hashlib.sha256("|".join((uid, *map(str, round_key))).encode()).hexdigest()
