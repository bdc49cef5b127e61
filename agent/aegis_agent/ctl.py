"""`aegis-agent ctl VERB`: talk to the agent of a worker over its control socket.

Of the training and of people: status, progress STEP, checkpoint STEP, expect-long SECONDS. Of people alone: hang [--clear], taint, untaint, stop,
check [NAME,...], burn [cpu|gpu]. Exit codes: 0 done, 1 refused or failed, 2 usage, 5 no agent answers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

NUMBERS = {"progress": "step", "checkpoint": "step", "expect-long": "seconds"}
PEOPLE = ("hang", "taint", "untaint", "stop", "check", "burn")
ANSWER = 5.0
CHECKS = 400.0
"""Seconds for the answer of `check`: the deadlines of the checks, side by side, and their start."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="aegis-agent ctl", description="Talk to the agent of this worker.")
    made.add_argument("verb", choices=("status", *NUMBERS, *PEOPLE))
    made.add_argument("value", nargs="?", default=None, help="step; seconds for expect-long; names for check; cpu or gpu for burn")
    made.add_argument("--socket", default=os.environ.get("AEGIS_CONTROL_SOCKET", ""), help="default: $AEGIS_CONTROL_SOCKET")
    made.add_argument("--seconds", type=float, default=10.0, help="how long a burn takes (10)")
    made.add_argument("--force", action="store_true", help="burn beside a running command")
    made.add_argument("--clear", action="store_true", help="with hang: withdraw the mark")
    made.add_argument("--why", default="", help="a reason, for the story of the job")
    return made


def main(argv: Sequence[str]) -> int:
    """Arguments after `aegis-agent ctl`; the exit code."""
    from aegis_agent.control import ask

    made = parser()
    given = made.parse_args(argv)
    if not given.socket:
        where = "--socket STATE/control.sock, under a node daemon STATE/slots/N/control.sock"
        made.error(f"no socket: AEGIS_CONTROL_SOCKET is not set (this is not a process of a worker); {where}")
    request: dict[str, object] = {"verb": given.verb}
    timeout = ANSWER
    if given.verb in NUMBERS:
        if given.value is None:
            made.error(f"{given.verb} needs a number")
        try:
            request[NUMBERS[given.verb]] = float(given.value) if given.verb == "expect-long" else int(given.value)
        except ValueError:
            made.error(f"{given.verb} {given.value!r}: a number is needed")
    elif given.verb != "status":
        request |= {"name": given.value or "", "why": given.why, "clear": given.clear, "force": given.force}
        if given.verb == "burn":
            request["seconds"] = given.seconds
            timeout = given.seconds + 90.0
        elif given.verb == "check":
            timeout = CHECKS
    try:
        answer = ask(given.socket, request, timeout)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"aegis-agent: no answer at {given.socket}: {error}\n")
        return 5
    print(json.dumps(answer, indent=2 if given.verb in ("status", "check") else None))
    return 0 if answer.get("ok") else 1
