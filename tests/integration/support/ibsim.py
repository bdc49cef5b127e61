"""A simulated InfiniBand fabric: ibsim with a real OpenSM and real infiniband-diags. Debian packages ibsim-utils, opensm, infiniband-diags."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from aegis_netmon.collect import FabricReader, NoFabric
from harness.waiting import until_sync

TOOLS = ("ibsim", "ibsim-run", "opensm", "ibnetdiscover", "ibqueryerrors")
LEAVES, HOSTS = 4, 4
SPINES = ("spine1", "spine2")


def missing() -> list[str]:
    """Programs that are not here."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return [tool for tool in TOOLS if shutil.which(tool, path=path) is None]


def topology(spines: Sequence[str] = SPINES) -> str:
    """A fat-tree in ibsim's language: 4 leaves of 4 hosts, at most 6 spines, two links from each leaf to each spine."""
    lines = []
    for spine, name in enumerate(spines, 1):
        lines.append(f'Switch 16 "{name}"')
        for leaf in range(1, LEAVES + 1):
            for nth in (1, 2):
                lines.append(f'[{2 * leaf - 2 + nth}] "leaf{leaf}"[{HOSTS + 2 * spine - 2 + nth}]')
        lines.append("")
    for leaf in range(1, LEAVES + 1):
        lines.append(f'Switch 16 "leaf{leaf}"')
        lines += [f'[{host}] "node{HOSTS * (leaf - 1) + host:02} mlx5_0"[1]' for host in range(1, HOSTS + 1)]
        for spine, name in enumerate(spines, 1):
            lines += [f'[{HOSTS + 2 * spine - 2 + nth}] "{name}"[{2 * leaf - 2 + nth}]' for nth in (1, 2)]
        lines.append("")
    for node in range(1, LEAVES * HOSTS + 1):
        leaf, host = divmod(node - 1, HOSTS)
        lines += [f'Hca 1 "node{node:02} mlx5_0"', f'[1] "leaf{leaf + 1}"[{host + 1}]', ""]
    return "\n".join(lines)


class SimFabric:
    """The running simulation: `say` gives it a command of ibsim's console; `reader` reads the fabric as a host of it."""

    def __init__(self, console: IO[str], env: dict[str, str]) -> None:
        self.console, self.env = console, env
        self.reader = FabricReader(("ibsim-run",), budget=30.0, env=env)

    def say(self, command: str) -> None:
        self.console.write(command + "\n")
        self.console.flush()

    def set(self, device: str, port: int, counter: str, value: int) -> None:
        """A counter of a port, as the hardware would have it (it clamps)."""
        self.say(f'PerformanceSet "{device}"[{port}] PortCounters.{counter}={value}')

    def unlink(self, device: str, port: int) -> None:
        self.say(f'Unlink "{device}"[{port}]')

    def relink(self, device: str, port: int) -> None:
        self.say(f'ReLink "{device}"[{port}]')


@contextmanager
def fabric(folder: Path, spines: Sequence[str] = SPINES) -> Iterator[SimFabric]:
    """The fat-tree with its subnet manager, until every port answers; gone afterwards."""
    (folder / "net").write_text(topology(spines))
    env = {**os.environ, "IBSIM_SOCKNAME": f"aegis-{uuid.uuid4().hex[:8]}", "OSM_CACHE_DIR": str(folder), "OSM_TMP_DIR": str(folder)}
    env["PATH"] = os.pathsep.join([env.get("PATH", ""), "/usr/sbin", "/sbin"])
    running: list[subprocess.Popen[str]] = []
    with open(folder / "ibsim.log", "w") as said, open(folder / "opensm.out", "w") as out:
        try:
            sim = subprocess.Popen(["ibsim", "-s", "net"], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=said, stderr=said, text=True)
            running.append(sim)
            assert sim.stdin is not None
            made = SimFabric(sim.stdin, env)
            until_sync(lambda: "sim>" in (folder / "ibsim.log").read_text() or listed(made), 30.0, "ibsim to listen")
            manager = ["ibsim-run", "opensm", "-e", "-f", str(folder / "opensm.log"), "-R", "minhop"]
            running.append(
                subprocess.Popen(manager, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True, start_new_session=True)
            )
            until_sync(lambda: whole(made, len(spines)), 60.0, "every port of the fabric to answer")
            yield made
        finally:
            for process in reversed(running):
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(10.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10.0)


def listed(made: SimFabric) -> bool:
    try:
        return bool(made.reader.read(0.0).fabric.links)
    except NoFabric:
        return False


def whole(made: SimFabric, spines: int) -> bool:
    try:
        reading = made.reader.read(0.0)
    except NoFabric:
        return False
    return not reading.partial and len(reading.fabric.links) == LEAVES * (HOSTS + 2 * spines)
