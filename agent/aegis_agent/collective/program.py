"""`main` of the collective checks: reads what it is told as one JSON line on stdin, writes one JSON line for each result.

Told: index, world, nproc, hub [host, port], key (the same for all of a round, and known to nobody else), seconds (for all but the speed), meet
(seconds until all have come), ports (for the store), speedCounts. Results: environment, allreduce, performance; each {"check", "pass", ...}.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from .hub import Hub
from .member import Member, Missed, end_with

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKS = ("environment", "allreduce", "performance")


def main() -> None:
    told: dict[str, Any] = json.loads(sys.stdin.readline())
    said: set[str] = set()

    def say(line: dict[str, Any]) -> None:
        said.add(line["check"])
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    try:
        if told["index"] == 0:
            many_files()
            hold_hub(told)
        member = Member(told, say)
        member.run()
    except Missed as error:
        for line in missing(said, error):
            say(line)


def missing(said: set[str], error: Missed) -> Iterator[dict[str, Any]]:
    """What is told when the meeting was missed, or ended early."""
    for check in CHECKS:
        if check in said:
            continue
        if check == "allreduce":
            values = {"pair.0": 0.0} if error.way else {}
            code = "allreduce" if error.way else "late"
            yield {"check": check, "pass": False, "result": f"cannot meet the others: {error}", "code": code, "values": values}
        else:
            yield {"check": check, "pass": True, "result": f"not applicable: {error}", "code": "", "values": {}}


def many_files() -> None:
    """A connection of every worker is held here, and one of every rank by the store: more than the soft limit (often 1024)."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass


def hold_hub(told: dict[str, Any]) -> None:
    """Fork the conductor, which ends with this worker's member: without it there is nobody to conduct. Raises Missed when the port cannot be had."""
    host, port = told["hub"]
    until = time.monotonic() + min(10.0, told["meet"])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        try:
            listener = socket.create_server(("", port), family=family, backlog=4096)
            break
        except OSError as error:
            if time.monotonic() > until:
                raise Missed(f"port {port} of this worker: {error.strerror}", False) from None
            time.sleep(0.1)
    me = os.getpid()
    if os.fork():
        listener.close()
        return
    end_with(me)
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        Hub(listener, told).run()
        code = 0
    except Exception:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)
