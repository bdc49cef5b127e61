"""What the workers of a job printed, read from the slots of the stack of this machine. Reads only.

An agent writes `[w0/r1 i2 t1795984000123] line` for its command (the time in ms), and for itself `[w0 aegis t1795984000123] line` and lines without a
prefix, into `<base>/nodes/<node>/slots/<slot>/agent.log`; a new attempt begins a new file and the old one becomes `agent.log.1`.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

LINE = re.compile(r"\[(w\d+)(?:/r(\d+))? (?:i(\d+)|aegis)(?: t(\d{1,15}))?\] ?(.*)\Z", re.S)


@dataclass(frozen=True)
class LogLine:
    """One line of a worker; `rank` -1 where a nested launcher names its ranks itself, `incarnation` -1 for the agent's own words;
    `at` ms since 1970, 0 where the line does not say."""

    worker: str
    rank: int
    incarnation: int
    message: str
    at: int = 0

    @property
    def text(self) -> str:
        """As it is shown."""
        if self.incarnation < 0:
            return f"[{self.worker} agent] {self.message}"
        return f"[{self.worker}{f'/r{self.rank}' if self.rank >= 0 else ''} i{self.incarnation}] {self.message}"


def parse(line: str, pod: str) -> LogLine:
    """A line of agent.log; control characters are made visible (a tenant's output is not trusted with a terminal). Of a line that was written over
    itself (a progress bar) the last state counts."""
    found = LINE.match(line)
    if found is None:
        return LogLine(pod, -1, -1, cleaned(line))
    worker, rank, incarnation, at = found[1], int(found[2] or -1), int(found[3] or -1), int(found[4] or 0)
    return LogLine(worker, rank, incarnation, cleaned(found[5]), at)


def cleaned(text: str) -> str:
    """Harmless in a terminal: control characters made visible; of a line that was written over itself, its last state."""
    return "".join(char if char.isprintable() or char == "\t" else f"\\x{ord(char):02x}" for char in text.rstrip("\r").rpartition("\r")[2])


class Dated:
    """Lines of one worker in the order in which they were written; one that does not say its time has that of the line before it."""

    def __init__(self, pod: str) -> None:
        self.pod, self._at = pod, 0

    def take(self, texts: Iterable[str]) -> Iterator[LogLine]:
        for text in texts:
            line = parse(text, self.pod)
            if line.at:
                self._at = line.at
            yield line if line.at else replace(line, at=self._at)


def in_time_order(workers: Iterable[Iterable[LogLine]], last: int = 0) -> list[LogLine]:
    """Lines of several workers as one, by their times; the `last` ones only (0: all)."""
    kept = [deque(lines, maxlen=last or None) for lines in workers]
    merged = sorted((line for lines in kept for line in lines), key=lambda line: line.at)
    return merged[-last:] if last else merged


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
        self._slots: dict[Path, tuple[Dated, _Follow]] = {}

    def _discover(self) -> None:
        for folder, pod in _slots(self.base, self.job):
            if folder not in self._slots and (folder / "agent.log").exists():
                self._slots[folder] = (Dated(pod), _Follow(folder / "agent.log"))

    def read(self) -> Iterator[LogLine]:
        for lines in self.workers():
            yield from lines

    def workers(self) -> Iterator[Iterator[LogLine]]:
        """As `read`, worker by worker."""
        self._discover()
        for dated, follow in self._slots.values():
            yield dated.take(follow.lines())

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


def stored(base: Path, job: str, since: float, *, rotated_only: bool = False) -> Iterator[Iterator[LogLine]]:
    """Everything that is still there, slot by slot, earlier attempts first. Rotated files count when they were written after `since` (seconds since
    1970, the job's beginning): the ones before are of other jobs. `rotated_only`: without the files that still grow."""
    for folder, pod in _slots(base, job):
        rotated = [path for path in folder.glob("agent.log.*") if path.suffix[1:].isdigit() and path.stat().st_mtime >= since]
        paths = [*sorted(rotated, key=lambda path: -int(path.suffix[1:])), *(() if rotated_only else (folder / "agent.log",))]
        yield Dated(pod).take(_texts(paths))


def _texts(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            with path.open(errors="replace", newline="\n") as file:
                for line in file:
                    yield line.rstrip("\n")
        except OSError:
            continue
