"""Checks of a worker: what there is (a table), and how one is run: as a killable process with a deadline, whose last line of output is its result.

A check is a module with `main`: it reads a `Context` as JSON on stdin and writes one JSON line {"pass", "result", "code", "values"}. A check that
does not answer in time, or dies, is a finding, not an error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from aegis_proto.messages import CheckResult

from aegis_agent.env import without_secrets
from aegis_agent.reaper import Reaper
from aegis_agent.scope import VARIABLE, end_scope

log = logging.getLogger(__name__)


def always() -> bool:
    return True


def accelerators() -> bool:
    """A vendor's driver is here, or somebody expects it to be. Two system calls: it is on the way of every recovery."""
    return bool(os.environ.get("AEGIS_CHECKS_EXPECTED_GPUS")) or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", *OTHERS)))


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


@dataclass(frozen=True, slots=True)
class Check:
    """One row: `module` is run with `python -m`, for at most `deadline` seconds (DESIGN.md §5), in the rounds named where it `applies`.

    Without rounds it runs only by hand: what costs a recovery more than a tenth of a second is not on its way.
    """

    name: str
    module: str
    deadline: float
    rounds: tuple[str, ...] = ROUNDS
    about: str = ""
    applies: Callable[[], bool] = always


CHECKS: tuple[Check, ...] = (
    Check(
        "process",
        "aegis_agent.checks.process",
        10.0,
        about="the agent lives, no process of an earlier run is left, working directory and /dev/shm can be written",
    ),
    Check("io", "aegis_agent.checks.io", 30.0, (), "each mount takes data, syncs it and gives it back; free space, read-only, stalls, kernel lines"),
    Check(
        "gpu",
        "aegis_agent.checks.gpu",
        66.0,
        about="every GPU is here and answers: ECC, row remap, retired pages, clocks, heat, NVLink, PCIe, Xids of this boot",
        applies=accelerators,
    ),
    Check("runtime", "aegis_agent.checks.runtime", 30.0, (), "the user's python: torch, CUDA, NCCL, cuDNN, and the driver under them"),
    Check(
        "rdma",
        "aegis_agent.checks.rdma",
        25.0,
        about="RDMA ports: state, rate, expected set, counters that rise",
        applies=adapters,
    ),
    Check("memory", "aegis_agent.checks.memory", 10.0, (), "errors of the host's memory (EDAC), machine checks"),
    Check("contention", "aegis_agent.checks.contention", 10.0, (), "what neighbours take: pressure, stolen time, throttling (warns, never fails)"),
)
MOST_OUTPUT = 1 << 20
"""Bytes a check may print; one that prints more is ended."""
MOST_VALUES = 256


@dataclass(frozen=True, slots=True)
class Context:
    """What a check is told. `scope` is the prefix of the scopes of this attempt's runs; none of their processes may live."""

    scope: str
    cwd: str
    agent: int
    node: str = ""


def named(name: str) -> Check | None:
    return next((check for check in CHECKS if check.name == name), None)


async def run_check(reaper: Reaper, check: Check, context: Context, environ: Mapping[str, str], scope: str) -> CheckResult:
    """Run one check. Always returns a result; on cancellation its processes are ended first."""
    begun = time.monotonic()
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
    told = os.memfd_create("context", os.MFD_CLOEXEC)  # not the socket: one that closes it unread would take its own answer along
    os.write(told, json.dumps(asdict(context)).encode() + b"\n")
    os.lseek(told, 0, os.SEEK_SET)
    output, size = b"", 0
    child = None
    code, note = "", ""
    try:
        env = {**without_secrets(environ), VARIABLE: scope}
        child = reaper.spawn([sys.executable, "-m", check.module], env=env, stdin=told, stdout=theirs.fileno(), stderr=theirs.fileno(), helper=True)
        theirs.close()
        async with asyncio.timeout(check.deadline):
            while chunk := await reader.read(65536):
                size += len(chunk)
                output = (output + chunk)[-65536:]
                if size > MOST_OUTPUT:
                    raise OverflowError
            status = await asyncio.shield(child.exit)
        if status != 0:
            code, note = "crashed", f"the check ended with {status}"
    except TimeoutError:
        code, note = "timeout", f"no answer within {check.deadline:g} s"
    except OverflowError:
        code, note = "tooMuchOutput", f"the check printed more than {MOST_OUTPUT >> 20} MiB"
    except OSError as error:
        code, note = "cannotRun", str(error)
    finally:
        os.close(told)
        theirs.close()
        writer.close()
        if child is not None and child.alive:
            child.signal_group(9)
            await asyncio.shield(end_scope(scope, whole=True, limit=5.0))
    return _result(check, output, code=code, note=note, seconds=time.monotonic() - begun, node=context.node)


def _result(check: Check, output: bytes, *, code: str, note: str, seconds: float, node: str) -> CheckResult:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    answer: dict[str, object] = {}
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        pass
    if not isinstance(answer, dict) or not isinstance(answer.get("pass"), bool):
        answer = {"pass": False, "result": note or (lines[-1] if lines else "no answer"), "code": code or "crashed"}
    if code:
        last = lines[-1] if lines and code == "crashed" and not answer.get("values") else ""
        answer |= {"pass": False, "code": code, "result": f"{note}: {last}" if last else note}
    values = answer.get("values")
    return CheckResult(
        CheckType=check.name,
        Pass=bool(answer["pass"]),
        Result=str(answer.get("result", ""))[:2000],
        TimeStamp=time.time_ns() // 1_000_000,
        duration=round(seconds, 4),
        node=node,
        code=str(answer.get("code", ""))[:80],
        values=numbers(values),
    )


def numbers(values: object) -> dict[str, float]:
    """The finite numbers of what a check gave as values, at most MOST_VALUES."""
    if not isinstance(values, dict):
        return {}
    good = {str(key)[:80]: float(value) for key, value in values.items() if isinstance(value, int | float) and abs(value) < 1e300}
    return dict(list(good.items())[:MOST_VALUES])


async def run_round(
    reaper: Reaper, round_name: str, context: Context, environ: Mapping[str, str], *, scope: str, table: Sequence[Check] = CHECKS
) -> list[CheckResult]:
    """All checks of a round that apply here, side by side."""
    chosen = [check for check in table if round_name in check.rounds and check.applies()]
    return list(await asyncio.gather(*(run_check(reaper, check, context, environ, f"{scope}-{check.name}") for check in chosen)))
