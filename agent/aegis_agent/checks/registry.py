"""Checks of a worker by itself: what there is (a table), and which of it a round runs. Those for which the workers meet: `meeting`.

A check is a module with `main`: it reads a `Context` as JSON on stdin and writes one JSON line {"pass", "result", "code", "values"}.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from aegis_proto.messages import CheckResult

from aegis_agent import own
from aegis_agent.checks.running import UNANSWERED, Program, run_program
from aegis_agent.reaper import Reaper


@dataclass(frozen=True, slots=True)
class Context:
    """What a check is told. `scope` is the prefix of the scopes of this attempt's runs; none of their processes may live.

    `round`: "" by hand. `run_for`: seconds since the run began whose end is diagnosed; what is older says nothing about it. `python`: the interpreter
    that a command which uses torch names, "" for any other; `env`: what the job sets for it.
    """

    scope: str
    cwd: str
    agent: int
    node: str = ""
    round: str = ""
    run_for: float = 0.0
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def always(context: Context) -> bool:
    return True


def accelerators() -> bool:
    """A vendor's driver is here, or somebody expects it to be. Two system calls: it is on the way of every recovery."""
    return bool(os.environ.get("AEGIS_CHECKS_EXPECTED_GPUS")) or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", *OTHERS)))


def gpu_count() -> int:
    """GPUs of this machine that the command may use; at least 1."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return max(1, len([part for part in visible.split(",") if part.strip()]))
    try:
        return max(1, len([name for name in os.listdir("/proc/driver/nvidia/gpus") if name]))
    except OSError:
        return 1


def adapters() -> bool:
    """An RDMA adapter is here, or somebody expects one."""
    if os.environ.get("AEGIS_CHECKS_EXPECTED_PORTS"):
        return True
    try:
        return bool(os.listdir("/sys/class/infiniband"))
    except OSError:
        return False


OTHERS = ("/dev/davinci_manager", "/dev/mxcd", "/dev/cambricon_ctl")
"""Device nodes of Ascend, MetaX and Cambricon."""
ROUNDS = ("bootcheck", "troubleshoot")
HANG = "hang"
"""No round of the job: what is looked at beside a training that stands still, and touches nothing of it."""
EVERY = (*ROUNDS, HANG)
TOGETHER = "aegis_agent.checks.together"
START = 10.0
"""Seconds that starting several checks in one process may take, beyond their own deadlines."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row: `module` is run with `python -m`, for at most `deadline` seconds (docs/agent.md, "Checks"), in the rounds named where it `applies`.

    Without rounds it runs only by hand.
    """

    name: str
    module: str
    deadline: float
    rounds: tuple[str, ...] = ROUNDS
    about: str = ""
    applies: Callable[[Context], bool] = always


CHECKS: tuple[Check, ...] = (
    Check(
        "process",
        "aegis_agent.checks.process",
        10.0,
        about="the agent lives, no process of an earlier run is left, working directory and /dev/shm can be written",
    ),
    Check(
        "io",
        "aegis_agent.checks.io",
        30.0,
        EVERY,
        about="each mount takes data, syncs it and gives it back; free space, read-only, stalls, kernel lines",
    ),
    Check(
        "gpu",
        "aegis_agent.checks.gpu",
        66.0,
        EVERY,
        about="every GPU is here and answers: ECC, row remap, retired pages, clocks, heat, NVLink, PCIe, Xids of this boot",
        applies=lambda context: accelerators(),
    ),
    Check(
        "runtime",
        "aegis_agent.checks.runtime",
        30.0,
        EVERY,
        about="the user's python: torch, CUDA, NCCL, cuDNN, and the driver under them",
        applies=lambda context: not context.round or context.python != "",
    ),
    Check(
        "rdma",
        "aegis_agent.checks.rdma",
        25.0,
        EVERY,
        about="RDMA ports: state, rate, expected set, counters that rise",
        applies=lambda context: adapters(),
    ),
    Check(
        "hang",
        "aegis_agent.checks.hang",
        10.0,
        (HANG,),
        about="processes of the training that are stopped or blocked in the kernel; touches none of them",
    ),
    Check("memory", "aegis_agent.checks.memory", 10.0, (), "errors of the host's memory (EDAC), machine checks"),
    Check("power", "aegis_agent.checks.power", 30.0, (), "power supplies and fans, as the board's controller (IPMI) and the kernel tell"),
    Check("contention", "aegis_agent.checks.contention", 10.0, (), "what neighbours take: pressure, stolen time, throttling (warns, never fails)"),
)


def named(name: str) -> Check | None:
    return next((check for check in CHECKS if check.name == name), None)


async def run_check(reaper: Reaper, check: Check, context: Context, environ: Mapping[str, str], scope: str) -> CheckResult:
    """Run one check. Always returns a result; on cancellation its processes are ended first."""
    program = Program([*own.python(), "-m", check.module], json.dumps(asdict(context)).encode(), ((check.name, check.deadline),))
    return (await run_program(reaper, program, environ, scope, context.node))[0]


async def run_round(
    reaper: Reaper, context: Context, environ: Mapping[str, str], *, scope: str, table: Sequence[Check] = CHECKS
) -> list[CheckResult]:
    """All checks of the context's round that apply here, side by side."""
    chosen = [check for check in table if context.round in check.rounds and check.applies(context)]
    return await run_checks(reaper, chosen, context, environ, scope=scope)


async def run_checks(reaper: Reaper, checks: Sequence[Check], context: Context, environ: Mapping[str, str], *, scope: str) -> list[CheckResult]:
    """Side by side, each in a process of its own; of several, what they share is imported once (`together`)."""
    results: dict[str, CheckResult] = {}
    if len(checks) > 1:
        told = {"checks": [(check.name, check.module, check.deadline) for check in checks], "context": asdict(context)}
        owes = sorted(((check.name, check.deadline + START) for check in checks), key=lambda owed: owed[1])
        program = Program([*own.python(), "-m", TOGETHER], json.dumps(told).encode(), tuple(owes), steps=False)
        found = await run_program(reaper, program, environ, f"{scope}-together", context.node)
        results = {result.CheckType: result for result in found if result.code != UNANSWERED}
    alone = [check for check in checks if check.name not in results]
    found = list(await asyncio.gather(*(run_check(reaper, check, context, environ, f"{scope}-{check.name}") for check in alone)))
    results.update((result.CheckType, result) for result in found)
    return [results[check.name] for check in checks]
