"""The fabric collector: runs infiniband-diags within a time budget and gives a `Reading`. The thin shell around `fabricpoll`.

Starts `ibnetdiscover` and `ibqueryerrors` (from PATH; `prefix` before each, as `ibsim-run` or `sudo`); writes nothing and never resets a counter. A
tool that is missing, fails or takes too long costs its part of the reading, which says so.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

from aegis_parsers import parse
from aegis_parsers.schema import Parsed

from aegis_netmon.fabricpoll import Reading, read

PORTS = ("ibnetdiscover", "-p")
NODES = ("ibnetdiscover",)
DATA = ("ibqueryerrors", "--counters")
ERRORS = ("ibqueryerrors",)


class NoFabric(RuntimeError):
    """The graph could not be read at all; the message names the tool and what it said."""


class FabricReader:
    """Reads the fabric of one port of this machine."""

    def __init__(self, prefix: Sequence[str] = (), budget: float = 60.0, env: dict[str, str] | None = None) -> None:
        self.prefix, self.budget, self.env = tuple(prefix), budget, env

    def read(self, at: float | None = None) -> Reading:
        """One sweep. `at`: its time in seconds (default: now). NoFabric if there is no graph."""
        deadline = time.monotonic() + self.budget
        at = time.time() if at is None else at
        ports, why = self.run(PORTS, deadline)
        if ports is None or not ports.items:
            raise NoFabric(f"{' '.join(PORTS)}: {why or 'it listed no port'}")
        parts = [self.run(command, deadline) for command in (NODES, DATA, ERRORS)]
        reading = read(at, ports, *(parsed for parsed, _ in parts))
        told = [f"{' '.join(command)}: {why}" for command, (_, why) in zip((NODES, DATA, ERRORS), parts, strict=True) if why]
        return Reading(reading.at, reading.fabric, reading.polls, (*told, *reading.partial))

    def run(self, command: Sequence[str], deadline: float) -> tuple[Parsed | None, str]:
        """What a tool printed, or why not. ibqueryerrors ends with 1 when there are errors: that is no failure."""
        left = deadline - time.monotonic()
        if left <= 0:
            return None, f"the budget of {self.budget:g} s was spent before it"
        try:
            ended = subprocess.run([*self.prefix, *command], capture_output=True, timeout=left, env=self.env, check=False)
        except subprocess.TimeoutExpired:
            return None, f"no answer within the budget of {self.budget:g} s"
        except OSError as error:
            return None, error.strerror or str(error)
        if ended.returncode not in (0, 1) or not ended.stdout.strip():
            last = ended.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
            return None, f"ended with {ended.returncode}: {last[:200]}"
        return parse(command[0], ended.stdout), ""
