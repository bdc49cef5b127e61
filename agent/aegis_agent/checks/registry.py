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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from aegis_proto.messages import CheckResult

from aegis_agent.env import without_secrets
from aegis_agent.reaper import Reaper
from aegis_agent.scope import VARIABLE, end_scope

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Check:
    """One row: `module` is run with `python -m`, for at most `deadline` seconds, in the rounds named."""

    name: str
    module: str
    deadline: float
    rounds: tuple[str, ...] = ("bootcheck", "troubleshoot")
    about: str = ""


CHECKS: tuple[Check, ...] = (
    Check(
        "process",
        "aegis_agent.checks.process",
        10.0,
        about="the agent lives, no process of an earlier run is left, working directory and /dev/shm can be written",
    ),
)


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
    output = b""
    child = None
    code, note = "", ""
    try:
        env = {**without_secrets(environ), VARIABLE: scope}
        child = reaper.spawn(
            [sys.executable, "-m", check.module], env=env, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=theirs.fileno(), helper=True
        )
        theirs.close()
        writer.write(json.dumps(asdict(context)).encode() + b"\n")
        async with asyncio.timeout(check.deadline):
            while chunk := await reader.read(65536):
                output = (output + chunk)[-65536:]
            status = await asyncio.shield(child.exit)
        if status != 0:
            code, note = "crashed", f"the check ended with {status}"
    except TimeoutError:
        code, note = "timeout", f"no answer within {check.deadline:g} s"
    except OSError as error:
        code, note = "cannotRun", str(error)
    finally:
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
    except ValueError:
        pass
    if not isinstance(answer, dict) or not isinstance(answer.get("pass"), bool):
        answer = {"pass": False, "result": note or (lines[-1] if lines else "no answer"), "code": code or "crashed"}
    if code:
        answer |= {"pass": False, "code": code, "result": note}
    values = answer.get("values")
    return CheckResult(
        CheckType=check.name,
        Pass=bool(answer["pass"]),
        Result=str(answer.get("result", ""))[:2000],
        TimeStamp=time.time_ns() // 1_000_000,
        duration=round(seconds, 4),
        node=node,
        code=str(answer.get("code", "")),
        values={str(key): float(value) for key, value in values.items()} if isinstance(values, dict) else {},
    )


async def run_round(
    reaper: Reaper, round_name: str, context: Context, environ: Mapping[str, str], *, scope: str, table: Sequence[Check] = CHECKS
) -> list[CheckResult]:
    """All checks of a round, side by side."""
    chosen = [check for check in table if round_name in check.rounds]
    return list(await asyncio.gather(*(run_check(reaper, check, context, environ, f"{scope}-{check.name}") for check in chosen)))


def command_line(argv: Sequence[str]) -> int:
    """`aegis-agent check list` and `aegis-agent check run NAME [--json]`: 0 passed, 1 failed, 2 usage."""
    as_json = "--json" in argv
    words = [word for word in argv if word != "--json"]
    if words[:1] == ["list"] or not words:
        rows = [{"name": check.name, "deadline": check.deadline, "rounds": check.rounds, "about": check.about} for check in CHECKS]
        print(json.dumps(rows) if as_json else "\n".join(f"{row['name']:<12} {row['deadline']:>5.0f} s  {row['about']}" for row in rows))
        return 0
    check = named(words[1]) if len(words) == 2 and words[0] == "run" else None
    if check is None:
        known = ", ".join(row.name for row in CHECKS)
        sys.stderr.write(f"usage: aegis-agent check list | run NAME [--json]   (known: {known})\n")
        return 2

    async def once(check: Check) -> CheckResult:
        reaper = Reaper()
        reaper.open()
        context = Context(scope="", cwd=os.getcwd(), agent=os.getpid())
        return await run_check(reaper, check, context, os.environ, f"check.{os.getpid()}.0.{check.name}")

    result = asyncio.run(once(check))
    if as_json:
        import msgspec

        print(msgspec.json.encode(result).decode())
    else:
        print(f"{'ok  ' if result.Pass else 'fail'}  {result.CheckType}: {result.Result} ({result.duration:.2f} s)")
    return 0 if result.Pass else 1
