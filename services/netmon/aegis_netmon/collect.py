"""The fabric collector: runs infiniband-diags within a time budget and gives a `Reading`. The thin shell around `fabricpoll`.

Starts `ibnetdiscover` and `ibqueryerrors`, seldom `dump_fts` and `iblinkinfo` (from PATH; `prefix` before each, as `ibsim-run` or `sudo`); writes
nothing and never resets a counter. A tool that is missing, fails or takes too long costs its part of the reading, which says so; of counters what was
printed until then counts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence

from aegis_parsers import parse
from aegis_parsers.schema import Parsed

from aegis_netmon.fabricpoll import Reading, of_perfquery, read
from aegis_netmon.series import Poll, at_cap
from aegis_netmon.topology import End, guid

PORTS = ("ibnetdiscover", "-p")
NODES = ("ibnetdiscover",)
DATA = ("ibqueryerrors", "--counters")
ERRORS = ("ibqueryerrors", "--threshold-file", "/dev/null")
"""A site's own thresholds would hide counts, and what is not listed is taken for zero."""
ROUTES = ("dump_fts",)
LINKS = ("iblinkinfo", "-l")
GRACE = 5.0
"""Seconds in which a tool that was killed must be gone; one of another user cannot be killed and is not waited for."""
MOST_WIDE = 64
"""Ports that are asked one by one in a sweep."""


def stuck(name: str, value: int) -> bool:
    """Whether a classic error counter can go no higher; a busy port's waiting always does."""
    return name != "port_xmit_wait" and at_cap(name, value, False)


class NoFabric(RuntimeError):
    """The graph could not be read at all; the message names the tool and what it said."""


class FabricReader:
    """Reads the fabric of one port of this machine."""

    def __init__(self, prefix: Sequence[str] = (), budget: float = 60.0, env: dict[str, str] | None = None) -> None:
        self.prefix, self.budget, self.env = tuple(prefix), budget, env
        self.running: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._wide: set[End] = set()
        self._narrow: set[End] = set()

    def read(self, at: float | None = None) -> Reading:
        """One sweep. `at`: its time in seconds (default: when the counters had been read). NoFabric if there is no graph."""
        deadline = time.monotonic() + self.budget
        ports, why = self.run(PORTS, deadline)
        if ports is None or not ports.items:
            raise NoFabric(f"{' '.join(PORTS)}: {why or 'it listed no port'}")
        parts = [self.run(command, deadline, listing=command is not NODES) for command in (NODES, DATA, ERRORS)]
        reading = read(time.time() if at is None else at, ports, *(parsed for parsed, _ in parts), whole=not parts[-1][1])
        told = [f"{' '.join(command)}: {why}" for command, (_, why) in zip((NODES, DATA, ERRORS), parts, strict=True) if why]
        return Reading(reading.at, reading.fabric, self.widened(reading, deadline), (*told, *reading.partial))

    def widened(self, reading: Reading, deadline: float) -> tuple[Poll, ...]:
        """The polls, with the 64-bit counters of ports of which a classic one stands at its cap. A port whose device has none is not asked again; one
        that has them is asked in every sweep from then on, and unknown when it does not answer: its series is that of the wide counter."""
        polls = []
        for poll in reading.polls:
            end = poll.guid, poll.port
            device = reading.fabric.devices.get(poll.guid)
            capped = any(value is not None and stuck(name, value) for name, value in poll.values.items())
            if device is None or device.lid is None or end in self._narrow or not (end in self._wide or (capped and len(self._wide) < MOST_WIDE)):
                polls.append(poll)
                continue
            parsed, _ = self.run(("perfquery", "-x", str(device.lid), str(poll.port)), deadline)
            wide = next((one for one in of_perfquery(poll.at, None, parsed, {device.lid: poll.guid}) if one.wide), None)
            if wide is not None:
                self._wide.add(end)
                polls.append(wide)
            elif end not in self._wide:
                if parsed is not None:
                    self._narrow.add(end)
                polls.append(poll)
        return tuple(polls)

    def run(self, command: Sequence[str], deadline: float, *, listing: bool = False) -> tuple[Parsed | None, str]:
        """What a tool printed, or why not. ibqueryerrors ends with 1 when there are errors: that is no failure. `listing`: each line of it stands for
        itself, so that the whole lines of a tool that was cut off count, and why it was. One that a signal ended is asked once more: the tools of
        infiniband-diags can die of a fabric that changes while they read it."""
        for _ in range(2):
            parsed, why, crashed = self._run(command, deadline, listing)
            if not crashed or self._stopped:
                break
        return parsed, why

    def _run(self, command: Sequence[str], deadline: float, listing: bool) -> tuple[Parsed | None, str, bool]:
        """As `run`, once; and whether a signal ended the tool (128 + its number, where a wrapper tells it)."""
        left = deadline - time.monotonic()
        if left <= 0:
            return None, f"the budget of {self.budget:g} s was spent before it", False
        try:
            running = subprocess.Popen([*self.prefix, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.env, start_new_session=True)
        except OSError as error:
            return None, error.strerror or str(error), False
        self.running = running
        try:
            if self._stopped:
                raise subprocess.TimeoutExpired(command, left)
            out, err = running.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            kill(running)
            try:
                out, _ = running.communicate(timeout=GRACE)
            except subprocess.TimeoutExpired:
                return None, f"no answer within the budget of {self.budget:g} s, and it does not end: left to itself", False
            head, _, _ = out.rpartition(b"\n")
            why = f"no answer within the budget of {self.budget:g} s"
            return (parse(command[0], head), f"{why}: cut off", False) if listing and head.strip() else (None, why, False)
        finally:
            self.running = None
        if running.returncode not in (0, 1) or not out.strip():
            last = err.decode("utf-8", "replace").strip().split("\n")[-1]
            return None, f"ended with {running.returncode}: {last[:200]}", running.returncode < 0 or running.returncode > 128
        return parse(command[0], out), "", False

    def routes(self) -> tuple[Parsed | None, str]:
        """The switches' tables, or why not: one question per switch, so asked seldom."""
        return self.run(ROUTES, time.monotonic() + self.budget)

    def below(self) -> dict[End, str]:
        """Ports whose link could be faster and others of the listing are, with what the tool says; asked as seldom as the routes."""
        parsed, _ = self.run(LINKS, time.monotonic() + self.budget)
        found = {}
        for finding in parsed.findings if parsed is not None else ():
            device, _, port = finding.item.rpartition(" port ")
            if finding.code == "ib_link_degraded" and device.startswith("0x") and port.isdigit():
                found[guid(device), int(port)] = finding.evidence
        return found

    def stop(self) -> None:
        """From another thread: the tool that runs now ends, and no other is begun."""
        self._stopped = True
        if (running := self.running) is not None:
            kill(running)


def kill(running: subprocess.Popen[bytes]) -> None:
    """The tool and what it was started by: `ibsim-run` and `sudo` have it as a child. One of another user ends by itself."""
    try:
        os.killpg(running.pid, signal.SIGKILL)
    except OSError:
        pass
