"""What the workers of a job printed, read from the slots of the stack of this machine. Reads only.

An agent writes `[w0/r1 i2] line` for its command, and lines of its own without that prefix, into `<base>/nodes/<node>/slots/<slot>/agent.log`; a new
attempt begins a new file and the old one becomes `agent.log.1`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LINE = re.compile(r"\[(w\d+)(?:/r(\d+))? i(\d+)\] ?(.*)\Z", re.S)


@dataclass(frozen=True)
class LogLine:
    """One line of a worker; `rank` -1 where a nested launcher names its ranks itself, `incarnation` -1 for the agent's own words."""

    worker: str
    rank: int
    incarnation: int
    message: str

    @property
    def text(self) -> str:
        """As it is shown."""
        if self.incarnation < 0:
            return f"[{self.worker} agent] {self.message}"
        return f"[{self.worker}{f'/r{self.rank}' if self.rank >= 0 else ''} i{self.incarnation}] {self.message}"


def parse(line: str, pod: str) -> LogLine:
    """A line of agent.log; control characters are made visible (a tenant's output is not trusted with a terminal)."""
    cleaned = "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in line.rpartition("\r")[2])
    found = LINE.match(cleaned)
    if found is None:
        return LogLine(pod, -1, -1, cleaned)
    return LogLine(found[1], int(found[2]) if found[2] else -1, int(found[3]), found[4])


class _Follow:
    """One growing log file; goes over to its successor when it is renamed, after reading it to its end."""

    def __init__(self, path: Path) -> None:
        self.path, self._file, self._rest = path, path.open("rb"), b""

    def lines(self) -> Iterator[str]:
        while True:
            yield from self._read()
            try:
                now = os.stat(self.path)
            except FileNotFoundError:
                return
            mine = os.fstat(self._file.fileno())
            if now.st_ino == mine.st_ino:
                if now.st_size < self._file.tell():
                    self._file.seek(0)
                    continue
                return
            self._file.close()
            self._file = self.path.open("rb")

    def _read(self) -> Iterator[str]:
        while block := self._file.read(1 << 16):
            *whole, self._rest = (self._rest + block).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace")

    def close(self) -> None:
        self._file.close()


class WorkerOutput:
    """The output of all workers of `job` on this machine, as it grows. `read` gives what is new since the last call."""

    def __init__(self, base: Path, job: str) -> None:
        self.base, self.job = base, job
        self._slots: dict[Path, tuple[str, _Follow]] = {}

    def _discover(self) -> None:
        for folder, pod in _slots(self.base, self.job):
            if folder not in self._slots and (folder / "agent.log").exists():
                self._slots[folder] = (pod, _Follow(folder / "agent.log"))

    def read(self) -> Iterator[LogLine]:
        self._discover()
        for pod, follow in self._slots.values():
            for line in follow.lines():
                yield parse(line, pod)

    def close(self) -> None:
        for _, follow in self._slots.values():
            follow.close()


def _slots(base: Path, job: str) -> Iterator[tuple[Path, str]]:
    """(folder, pod) of the slots that hold this job or held it last. While an agent is only starting, the log there is still its predecessor's."""
    for record in sorted(base.glob("nodes/*/slots/*/record.json")):
        try:
            held = json.loads(record.read_text())
        except (OSError, ValueError):
            continue
        if held.get("job") == job and held.get("stage") in ("running", "gone"):
            yield record.parent, str(held.get("pod", ""))


def stored(base: Path, job: str, since: float) -> Iterator[LogLine]:
    """Everything that is still there, slot by slot, earlier attempts first. Rotated files count when they were written after `since` (seconds since
    1970, the job's beginning): the ones before are of other jobs."""
    for folder, pod in _slots(base, job):
        rotated = [path for path in folder.glob("agent.log.*") if path.suffix[1:].isdigit() and path.stat().st_mtime >= since]
        for path in [*sorted(rotated, key=lambda path: -int(path.suffix[1:])), folder / "agent.log"]:
            try:
                text = path.read_text(errors="replace")
            except OSError:
                continue
            for line in text.splitlines():
                yield parse(line, pod)
