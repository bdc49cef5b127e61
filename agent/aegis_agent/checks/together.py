"""`main` of several checks in one process: what they share is imported once, then each runs in a child of its own, ended at its own deadline.

Told {"checks": [[name, module, seconds], ...], "context": {...}} on stdin; says one line for each, as the check would by itself, with its name
("check"). A check that hangs in a driver holds its child, also on its way out: not the others and not this process. Each ends with this process.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import select
import signal
import sys
import time
from typing import Any

from aegis_agent.lifeline import end_with

MOST_OUTPUT = 1 << 20
"""Bytes a check may print; one that prints more is ended."""


class Part:
    """One check in its child."""

    def __init__(self, name: str, module: str, seconds: float, context: str) -> None:
        self.name, self.seconds = name, seconds
        self.until = time.monotonic() + seconds
        self.output, self.closed = b"", False
        self.fd, out = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            end_with(parent)
            code = 1
            try:
                os.setpgid(0, 0)
                for number in (1, 2):
                    os.dup2(out, number)
                os.close(out)  # what a check forks and cannot end must not hold its answer open
                sys.stdin = io.StringIO(context)
                runpy.run_module(module, run_name="__main__", alter_sys=True)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.close(out)

    def fileno(self) -> int:
        """What shows that something has come of it: its output, and after that its end (a pidfd)."""
        return self.fd

    def look(self) -> bool:
        """Take what has come. Whether that was the last: it has ended, or has said more than it may."""
        if self.closed:
            return True
        data = os.read(self.fd, 65536)
        self.output = (self.output + data)[-MOST_OUTPUT - 1 :]
        if not data:
            os.close(self.fd)
            self.fd, self.closed = os.pidfd_open(self.pid), True
        return len(self.output) > MOST_OUTPUT

    def end(self, code: str = "", why: str = "") -> dict[str, Any]:
        """Its answer, whatever became of it; what has not ended by itself is ended."""
        if not code and len(self.output) > MOST_OUTPUT:
            code, why = "tooMuchOutput", f"the check printed more than {MOST_OUTPUT >> 20} MiB"
        if code:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:
                pass
        os.close(self.fd)
        status = os.waitpid(self.pid, os.WNOHANG)[1]  # never a wait: what a driver holds has no end
        lines = self.output.decode("utf-8", "replace").strip().splitlines()
        if not code and status:
            code, why = "crashed", f"the check ended with {os.waitstatus_to_exitcode(status)}: {lines[-1] if lines else 'no word'}"
        if not code:
            try:
                answer = json.loads(lines[-1]) if lines else None
            except (ValueError, RecursionError):
                answer = None
            if isinstance(answer, dict) and isinstance(answer.get("pass"), bool):
                return {**answer, "check": self.name}
            code, why = "crashed", lines[-1][:500] if lines else "no answer"
        return {"check": self.name, "pass": False, "code": code, "result": why, "values": {}}


def main() -> None:
    told = json.loads(sys.stdin.readline())
    from aegis_agent.checks import answer, kernellog, limits, settings  # noqa: F401 (shared by the children)

    context = json.dumps(told["context"]) + "\n"
    parts = [Part(name, module, seconds, context) for name, module, seconds in told["checks"]]
    while parts:
        first = min(part.until for part in parts)
        ready = select.select(parts, [], [], max(0.0, first - time.monotonic()))[0]
        now = time.monotonic()
        for part in list(parts):
            if part in ready and part.look():
                say(part.end())
            elif part.until <= now:
                say(part.end("timeout", f"no {'end' if part.closed else 'answer'} within {part.seconds:g} s"))
            else:
                continue
            parts.remove(part)


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # all is said, and flushed
