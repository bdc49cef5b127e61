"""From batches of a job's workers to the lines that are kept: each once, parts joined, holes counted. No files, no clock of its own.

Lines of one source (a start of an agent, a rank, a kind) come in the order of their numbers, so the last number of each tells what is new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from time import gmtime, strftime

import msgspec
from aegis_proto.logs import LogBatch, LogLine, StoredLine

LONGEST = 4 << 20
"""Characters of one joined line; the rest of it is cut, and it says so."""
PENDING = 64 << 20
"""Characters of unfinished lines of all sources together; then the oldest is ended as it is."""
STARTS = 4
"""Starts of one pod that are remembered: an older one says nothing any more."""
SOURCES = 1024
"""Ranks and kinds of one start that are told apart; lines of further ones are not kept, and counted as missing."""
LAST_MS = 253_402_300_799_999
"""31 December 9999."""


class Start(msgspec.Struct):
    """One start of one agent: `next`, the number expected next; `last`, the number of the last line kept, per source `<rank><kind>`."""

    next: int = 1
    last: dict[str, int] = {}


class Progress(msgspec.Struct):
    """pod -> boot -> Start; lines that workers gave up (`dropped`), and numbers that never came (`missing`)."""

    pods: dict[str, dict[str, Start]] = {}
    dropped: int = 0
    missing: int = 0

    def start(self, pod: str, boot: str) -> Start:
        boots = self.pods.setdefault(pod, {})
        found = boots.get(boot)
        if found is None:
            found = boots[boot] = Start()
            while len(boots) > STARTS:
                del boots[next(iter(boots))]
        return found

    def keep(self, line: StoredLine) -> None:
        """A line that is in the files: read at recovery, or just written."""
        start = self.start(line.worker, line.boot)
        start.last[f"{line.rank}{line.kind}"] = line.n
        start.next = max(start.next, line.n + 1)


@dataclass
class _Part:
    """A line that goes on. `seq`: message of the stream in which it began."""

    seq: int
    first: LogLine
    texts: list[str] = field(default_factory=list)
    length: int = 0
    cut: int = 0
    n: int = 0
    node: str = ""
    attempt: int = 0

    def add(self, text: str, n: int) -> None:
        self.n = n
        room = max(0, LONGEST - self.length)
        self.texts.append(text[:room])
        self.length += min(len(text), room)
        self.cut += max(0, len(text) - room)

    def text(self) -> str:
        return "".join(self.texts) + (f" [cut: {self.cut} characters more]" if self.cut else "")


@lru_cache(maxsize=256)
def _second(second: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S", gmtime(second))


def time_of(ms: int) -> str:
    """RFC 3339 with milliseconds, UTC; what lies outside the years 1970 to 9999 is moved to their edge."""
    second, rest = divmod(max(0, min(ms, LAST_MS)), 1000)
    return f"{_second(second)}.{rest:03d}Z"


class Joiner:
    """The sources of one job. `take` gives the lines that are complete; `pending_seq` is the oldest message that a replay would still need."""

    def __init__(self, job: str, progress: Progress) -> None:
        self.job, self.progress = job, progress
        self._parts: dict[tuple[str, str, str], _Part] = {}

    @property
    def pending(self) -> int:
        return sum(part.length for part in self._parts.values())

    def pending_seq(self) -> int | None:
        return min((part.seq for part in self._parts.values()), default=None)

    def take(self, pod: str, batch: LogBatch, seq: int) -> list[StoredLine]:
        """Lines of one message of the stream, in their order. What was kept before is left out."""
        start = self.progress.start(pod, batch.boot)
        last = start.last
        if batch.first + len(batch.lines) > start.next or (batch.dropped and not batch.lines and batch.first >= start.next):
            if batch.first > start.next > 1:
                self.progress.missing += batch.first - start.next
            self.progress.dropped += max(0, batch.dropped) if batch.first >= start.next else 0
        out: list[StoredLine] = []
        job, boot, node, attempt = self.job, batch.boot, batch.node, batch.attempt
        for n, line in enumerate(batch.lines, batch.first):
            source = f"{line.rank}{line.kind}"
            if n <= last.get(source, 0):
                continue
            if source not in last and len(last) >= SOURCES:
                self.progress.missing += 1
                continue
            key = (pod, boot, source)
            part = self._parts.get(key) if self._parts else None
            if part is not None and n <= part.n:
                continue
            if part is not None and line.part == 0:  # its end never came
                out.append(self._end(key))
                part = None
            if part is None and not line.more:
                last[source] = n
                out.append(StoredLine(time_of(line.at), job, pod, line.rank, line.incarnation, line.kind, node, attempt, boot, n, line.at, line.text))
                continue
            if part is None:
                part = self._parts[key] = _Part(seq, line, node=node, attempt=attempt)
            part.add(line.text, n)
            if not line.more:
                out.append(self._end(key))
        start.next = max(start.next, batch.first + len(batch.lines))
        return out

    def end_oldest(self) -> list[StoredLine]:
        """Give up waiting for the rest of the line that waits longest."""
        if not self._parts:
            return []
        return [self._end(min(self._parts, key=lambda key: self._parts[key].seq))]

    def end_before(self, seq: int) -> list[StoredLine]:
        """Give up waiting for the rest of lines that began before this message."""
        return [self._end(key) for key in [key for key, part in self._parts.items() if part.seq < seq]]

    def _end(self, key: tuple[str, str, str]) -> StoredLine:
        pod, boot, source = key
        part = self._parts.pop(key)
        line = part.first
        self.progress.start(pod, boot).last[source] = part.n
        return StoredLine(
            time_of(line.at), self.job, pod, line.rank, line.incarnation, line.kind, part.node, part.attempt, boot, part.n, line.at, part.text()
        )
