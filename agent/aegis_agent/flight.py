"""Flight records of the collectives: how a run is told to keep and write them, and how what it wrote reaches the store (stream BLOBS).

The agent sets torch's variables for the command; the user's own values win, under either name. What a rank writes into the folder of its run is sent
when the file has come to rest: after a mark (each rank is asked by its pipe, `evidence`) and when the run has ended. Loss is allowed; nothing waits
for it. Owns `<state>/flight/`; writes `aegis.job.<j>.blob.<pod>.<id>`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aegis_bus.errors import BusError
from aegis_proto.phases import OrderPhase

from aegis_agent import blobs
from aegis_agent.companions import Companion
from aegis_agent.env import FLIGHT_DUMP
from aegis_agent.handover import FLIGHT_DIR

if TYPE_CHECKING:
    from aegis_agent.runner import Run
    from aegis_agent.worker import Worker

log = logging.getLogger(__name__)

LOOK = 0.25
"""Seconds between two looks at a file; one that did not change between them is whole."""
WAIT = 60.0
"""Seconds for which files of ranks that were asked are waited for: slow storage writes late (LlamaFactory 8261)."""
ENDED_WAIT = 2.0
SLACK = 5_000_000_000
"""Nanoseconds by which the clock of a file system may be behind ours."""
KEPT = 2
"""Folders of earlier runs that are kept."""
MOST_BYTES = 64 << 20
"""Bytes of one file that is read at all."""
_RANK = re.compile(r"(\d{1,6})$")


@dataclass(frozen=True, slots=True)
class Found:
    """A file that has come to rest."""

    path: Path
    rank: int
    size: int
    mtime: int


def prefix_of(environ: Mapping[str, str], names: tuple[str, ...], own: str) -> str:
    """Where a run writes (or listens): the user's own value, else ours."""
    return next((environ[name] for name in names if environ.get(name)), own)


def rank_of(name: str) -> int:
    """The rank in the end of a file's name, -1 when there is none."""
    found = _RANK.search(name)
    return int(found[1]) if found else -1


def look(prefix: str) -> dict[Path, Found]:
    """Records that are there now. A pipe is none, a name without a rank neither."""
    if not prefix:
        return {}
    out: dict[Path, Found] = {}
    where = Path(prefix)
    try:
        for path in where.parent.glob(f"{where.name}*"):
            stat = path.lstat()
            if path.is_file() and not path.is_symlink() and (rank := rank_of(path.name)) >= 0:
                out[path] = Found(path, rank, stat.st_size, stat.st_mtime_ns)
    except OSError:
        pass
    return out


class Flight(Companion):
    """Sends what the ranks of a run wrote, each file once."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._sent: dict[Path, tuple[int, int]] = {}
        self._since = 0
        """mtime of what may be of this run: a place that the user names is that of all runs."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: set[asyncio.Task[None]] = set()
        """Those of them that look at what a run has left."""

    def run_started(self, run: Run) -> None:
        self._since = time.time_ns() - SLACK
        if self.worker.exec.state_dir is not None:
            own = self.worker.exec.state_dir / FLIGHT_DIR
            self._sent = {path: seen for path, seen in self._sent.items() if own not in path.parents}
            forget(own, run.plan.incarnation)

    async def close(self) -> None:
        await asyncio.gather(*self._ended, return_exceptions=True)

    def ordered(self, phase: OrderPhase) -> None:
        run = self.worker.exec.run
        if phase is OrderPhase.HANG and run is not None and run.alive:
            self._begin(run, WAIT)

    def run_ended(self, run: Run) -> None:
        task = self._begin(run, ENDED_WAIT, quiet=True)
        self._ended.add(task)
        task.add_done_callback(self._ended.discard)

    def _begin(self, run: Run, wait: float, *, quiet: bool = False) -> asyncio.Task[None]:
        task = asyncio.create_task(self._collect(run, wait, quiet))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _collect(self, run: Run, wait: float, quiet: bool) -> None:
        """For `wait` seconds; with `quiet`, only until nothing changes any more."""
        environ = {**self.worker.exec.environ, **run.plan.user}
        prefix = prefix_of(environ, FLIGHT_DUMP, run.plan.dump_prefix)
        until = asyncio.get_running_loop().time() + wait
        before = await asyncio.to_thread(look, prefix)
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(LOOK)
            now = await asyncio.to_thread(look, prefix)
            for path, found in now.items():
                if before.get(path) == found and found.mtime >= self._since and self._sent.get(path) != (found.size, found.mtime):
                    self._sent[path] = (found.size, found.mtime)
                    await self._send(run, found)
            if quiet and now == before:
                return
            before = now

    async def _send(self, run: Run, found: Found) -> None:
        try:
            data = await asyncio.to_thread(_read, found.path)
            await blobs.send(self.worker, "flight", data, run.plan.incarnation, name=f"rank_{found.rank}", rank=found.rank)
            self.worker.exec.say(f"flight record of rank {found.rank} sent ({len(data)} bytes)")
        except (OSError, ValueError) as error:
            self.worker.exec.say(f"flight record of rank {found.rank} not sent: {error}")
        except BusError as error:
            log.info("flight record of rank %d not sent: %s", found.rank, error)


def _read(path: Path) -> bytes:
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, at most {MOST_BYTES} are read")
    return path.read_bytes()


def forget(folder: Path, incarnation: int) -> None:
    """Remove the folders of runs before the last ones."""
    try:
        old = sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit() and int(entry.name) < incarnation)
    except OSError:
        return
    for number in old[:-KEPT]:
        shutil.rmtree(folder / str(number), ignore_errors=True)
