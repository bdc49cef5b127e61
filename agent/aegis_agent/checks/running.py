"""How a check program is run: in its own scope, with a deadline for each result it owes, its last lines of output taken as what they are.

A check that does not answer in time, or dies, is a finding, not an error. Owns the processes of the check until they are gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aegis_proto.messages import CheckResult

from aegis_agent.env import without_secrets
from aegis_agent.reaper import Reaper
from aegis_agent.scope import VARIABLE, end_scope
from aegis_agent.warm import Standby
from aegis_agent.warm import run as warm_run

MOST_OUTPUT = 1 << 20
"""Bytes a check may print; one that prints more is ended."""
MOST_VALUES = 256
UNANSWERED = "unanswered"
"""Code of a check that was run with others and of which nothing was heard: it is run by itself then."""


CUT_SHORT = frozenset({"timeout", "tooMuchOutput", "crashed"})
"""Codes of a check that did not end by itself, and well."""

START = Path(__file__).resolve().parent.parent / "collective" / "start.py"
"""Runs under the user's interpreter: loads a folder of ours under a name of its own, and puts nothing on its path."""


def boot(folder: Path, name: str, *python: str) -> list[str]:
    """argv of `folder`/program.py under somebody else's interpreter (a path, and its flags)."""
    return [*python, str(START), str(folder), name]


@dataclass(frozen=True, slots=True)
class Program:
    """`told` is its stdin. `owes`: (name of a result, seconds since the start), in the order in which they are due. One that owes one result says it
    in its last line; one that owes more names them ("check"). `steps`: a result that is missing follows from the one before it."""

    argv: Sequence[str]
    told: bytes
    owes: tuple[tuple[str, float], ...]
    steps: bool = True


async def run_program(
    reaper: Reaper, program: Program, environ: Mapping[str, str], scope: str, node: str = "", *, standby: Standby | None = None
) -> list[CheckResult]:
    """Always a result for each that is owed; on cancellation the processes are ended first. `standby`: started out of it, where that is possible."""
    begun = time.monotonic()
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
    told = os.memfd_create("context", os.MFD_CLOEXEC)  # not the socket: one that closes it unread would take its own answer along
    os.write(told, program.told + b"\n")
    os.lseek(told, 0, os.SEEK_SET)
    said = _Said([name for name, _ in program.owes], begun, program.steps)
    child = None
    code, note = "", ""
    try:
        env = {**without_secrets(environ), VARIABLE: scope}
        child, _ = warm_run(standby, reaper, program.argv, env=env, stdin=told, stdout=theirs.fileno(), stderr=theirs.fileno(), helper=True)
        theirs.close()
        for name, deadline in program.owes:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + begun + deadline - time.monotonic()):
                while not said.has(name) and (chunk := await reader.read(65536)):
                    said.take(chunk)
        async with asyncio.timeout(max(1.0, program.owes[-1][1] + begun - time.monotonic())):
            while chunk := await reader.read(65536):
                said.take(chunk)
            status = await asyncio.shield(child.exit)
        if status != 0:
            code, note = "crashed", f"the check ended with {status}"
    except TimeoutError:
        due = said.due()
        code, note = "timeout", f"no answer within {dict(program.owes)[due]:g} s"
    except OverflowError:
        code, note = "tooMuchOutput", f"the check printed more than {MOST_OUTPUT >> 20} MiB"
    except OSError as error:
        code, note = "cannotRun", str(error)
    finally:
        os.close(told)
        theirs.close()
        writer.close()
        if child is not None and (child.alive or code or said.cut_short()):
            child.signal_group(9)
            await asyncio.shield(end_scope(scope, whole=True, limit=5.0))
    return said.results(code, note, time.monotonic() - begun, node)


class _Said:
    """What a program has printed so far."""

    def __init__(self, names: list[str], begun: float, steps: bool) -> None:
        self.names, self.begun, self.steps = names, begun, steps
        self.output, self.size = b"", 0
        self.found: dict[str, tuple[dict[str, object], float]] = {}

    def take(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.size > MOST_OUTPUT:
            raise OverflowError
        whole = self.output + chunk
        if len(self.names) > 1:
            *lines, whole = whole.split(b"\n")
            for line in lines:
                answer = answer_in(line)
                if answer is not None and answer.get("check") in self.names:
                    self.found.setdefault(str(answer["check"]), (answer, time.monotonic() - self.begun))  # the last lines are seen again
            whole = b"\n".join([*lines[-3:], whole])
        self.output = whole[-65536:]

    def has(self, name: str) -> bool:
        return name in self.found

    def cut_short(self) -> bool:
        """Whether a check among several had to be ended, or died: what it started may still be there."""
        return any(answer.get("code") in CUT_SHORT for answer, _ in self.found.values())

    def due(self) -> str:
        return next((name for name in self.names if name not in self.found), self.names[-1])

    def results(self, code: str, note: str, seconds: float, node: str) -> list[CheckResult]:
        lines = self.output.decode("utf-8", "replace").strip().splitlines()
        if len(self.names) == 1:
            return [_result(self.names[0], answer_in(lines[-1].encode()) if lines else None, lines, code=code, note=note, seconds=seconds, node=node)]
        out, late = [], False
        for name in self.names:
            answer, at = self.found.get(name, (None, seconds))
            if answer is not None:
                out.append(_result(name, answer, lines, code="", note="", seconds=at, node=node))
            elif not self.steps:
                out.append(_result(name, None, [], code=UNANSWERED, note=note or "no answer", seconds=at, node=node))
            elif not late:
                late = True
                out.append(_result(name, None, lines, code=code or "crashed", note=note, seconds=at, node=node))
            else:
                out.append(
                    _result(
                        name, {"pass": True, "result": "not reached: an earlier check did not end"}, lines, code="", note="", seconds=at, node=node
                    )
                )
        return out


def answer_in(line: bytes) -> dict[str, object] | None:
    """The answer in a line of output, None when it is none."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) and isinstance(answer.get("pass"), bool) else None


def _result(name: str, answer: dict[str, object] | None, lines: Sequence[str], *, code: str, note: str, seconds: float, node: str) -> CheckResult:
    if answer is None:
        answer = {"pass": False, "result": note or (lines[-1] if lines else "no answer"), "code": code or "crashed"}
    if code:
        last = lines[-1] if lines and code == "crashed" and not answer.get("values") else ""
        answer |= {"pass": False, "code": code, "result": f"{note}: {last}" if last else note}
    return CheckResult(
        CheckType=name,
        Pass=bool(answer["pass"]),
        Result=text(answer.get("result", ""), 2000),
        TimeStamp=time.time_ns() // 1_000_000,
        duration=round(seconds, 4),
        node=node,
        code=text(answer.get("code", ""), 80),
        values=numbers(answer.get("values")),
    )


def text(said: object, most: int) -> str:
    """What a message can hold: a path need not be UTF-8, and JSON may name half a character."""
    return str(said)[:most].encode("utf-8", "replace").decode()


def numbers(values: object) -> dict[str, float]:
    """The finite numbers of what a check gave as values, at most MOST_VALUES."""
    if not isinstance(values, dict):
        return {}
    good = {text(key, 80): float(value) for key, value in values.items() if isinstance(value, int | float) and abs(value) < 1e300}
    return dict(list(good.items())[:MOST_VALUES])
