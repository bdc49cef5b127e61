"""The whole store of one replica: jobs, the cursor of the stream, retention. One process writes a folder (a lock says whose it is)."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aegis_proto.ids import is_id
from aegis_proto.logs import LogBatch, StoredLine

from aegis_lognexus.store.blocks import index_of, segment, segment_numbers
from aegis_lognexus.store.joblog import JobLog, load_state, write_atomically
from aegis_lognexus.store.joining import PENDING

log = logging.getLogger(__name__)

FLUSH_LINES = 5_000
OPEN_JOBS = 256
"""Jobs with open files; the one written longest ago is closed for another."""


class Cursor(msgspec.Struct, frozen=True):
    """Everything up to message `seq` of LOGS is in the files, and every failure up to message `events` of EVENTS is judged; both of this `era`.
    `live`: the replicas among which the jobs were shared then; `me`: the name of this one then."""

    seq: int = 0
    era: str = ""
    events: int = 0
    live: tuple[str, ...] = ()
    me: str = ""


@dataclass(frozen=True)
class StoreSettings:
    segment_bytes: int = 64 << 20
    max_bytes: int = 20 << 30
    max_age: float = 14 * 86400.0
    """Seconds; what was written last longer ago than this goes, file by file."""
    job_share: float = 0.25
    """Of `max_bytes`, for one job: who prints most loses its own oldest lines before those of others."""


class StoreInUse(OSError):
    """Another process writes this folder."""


class LogStore:
    """`append` and `commit`; see the package. OSError when the disk refuses: then nothing is lost, since the cursor stays."""

    def __init__(self, folder: Path, settings: StoreSettings | None = None, now: Callable[[], float] = time.time) -> None:
        self.folder, self.settings, self._now = folder, settings or StoreSettings(), now
        (folder / "jobs").mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StoreInUse(f"{folder}: another process writes this store; give each replica its own folder (lognexus.store)") from None
        self._jobs: dict[str, JobLog] = {}
        self._writing = threading.Lock()
        self._unflushed = 0
        self.seq = 0
        """Last message taken."""
        self.cursor = self._read_cursor()
        self.seq, self.events = self.cursor.seq, self.cursor.events
        self.live, self.me = self.cursor.live, self.cursor.me

    def _read_cursor(self) -> Cursor:
        try:
            return msgspec.json.decode((self.folder / "cursor.json").read_bytes(), type=Cursor)
        except FileNotFoundError:
            return Cursor()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("%s/cursor.json: %s; the stream is read from its beginning", self.folder, error)
            return Cursor()

    def begin(self, era: str) -> int:
        """The message to read first. In another era sequences have begun anew; what is kept already is known by its numbers."""
        if era != self.cursor.era:
            self.cursor, self.seq, self.events = Cursor(0, era), 0, 0
        return self.cursor.seq + 1

    def job(self, job: str) -> JobLog:
        """The files of a job, opened. ValueError for what is no id."""
        found = self._jobs.pop(job, None)
        if found is None:
            if not is_id(job):
                raise ValueError(f"job {job!r} is no id")
            while len(self._jobs) >= OPEN_JOBS:
                first = next(iter(self._jobs))
                oldest = self._jobs[first]
                oldest.keep(oldest.joiner.end_before(1 << 62))
                oldest.sync()  # a disk that refuses leaves it here, with what it has to write
                oldest.close()
                del self._jobs[first]
            found = JobLog(self.folder / "jobs" / job, job, self.settings.segment_bytes)
        self._jobs[job] = found
        return found

    def append(self, job: str, pod: str, batch: LogBatch, seq: int) -> list[StoredLine]:
        """Take one message; the lines of it that are new. In memory and in the page cache until `commit`."""
        to = self.job(job)
        lines = to.take(pod, batch, seq)
        self.seq = max(self.seq, seq)
        self._unflushed += len(lines)
        if self._unflushed >= FLUSH_LINES:
            with contextlib.suppress(OSError):  # kept in memory, and tried again by the next commit, which tells
                self.flush()
        return lines

    def judged(self, seq: int) -> None:
        """Failures up to this message of EVENTS have their verdicts; said by the next `commit`."""
        self.events = seq

    def restart(self, seq: int) -> None:
        """The stream has become another, younger one: its next message is `seq`."""
        self.seq = seq - 1

    def skip(self, seq: int) -> None:
        """A message that is not kept here."""
        self.seq = max(self.seq, seq)

    def flush(self) -> None:
        """Write what was taken, so that queries and collectors see it."""
        self._unflushed = 0
        while sum(entry.joiner.pending for entry in self._jobs.values()) > PENDING:
            most = max(self._jobs.values(), key=lambda entry: entry.joiner.pending)
            most.keep(most.joiner.end_oldest())
        for entry in self._jobs.values():
            entry.flush()

    def commit(self, stale: int = 0) -> Cursor:
        """Make everything durable and move the cursor. Unfinished lines that began before message `stale` are ended as they are."""
        with self._writing:
            return self._commit(stale)

    def _commit(self, stale: int) -> Cursor:
        for entry in self._jobs.values():
            if stale:
                entry.keep(entry.joiner.end_before(stale))
            if entry.dirty:
                entry.sync()
        pending = [seq for entry in self._jobs.values() if (seq := entry.joiner.pending_seq()) is not None]
        safe = min([self.seq, *(seq - 1 for seq in pending)])
        now = Cursor(safe, self.cursor.era, self.events, self.live, self.me)
        if now != self.cursor:
            self.cursor = now
            write_atomically(self.folder / "cursor.json", msgspec.json.encode(self.cursor))
        return self.cursor

    def given_up(self, job: str) -> int:
        """Lines of a job that never came: given up by its workers, or gone from the stream."""
        entry = self._jobs.get(job)
        progress = entry.progress if entry is not None else load_state(self.folder / "jobs" / job).progress
        return progress.dropped + progress.missing

    def jobs(self) -> list[str]:
        """Jobs with files here."""
        return sorted(entry.name for entry in os.scandir(self.folder / "jobs") if entry.is_dir())

    def retain(self) -> int:
        """Drop files by age and, oldest first, by size: of a job beyond its share, then of all. Never one that is being written. Bytes dropped."""
        with self._writing:
            return self._retain()

    def _retain(self) -> int:
        entries: list[tuple[float, int, Path]] = []
        for job in self.jobs():
            folder = self.folder / "jobs" / job
            numbers = segment_numbers(folder)
            open_one = numbers[-1] if job in self._jobs and numbers else -1
            for number in numbers:
                try:
                    stat = segment(folder, number).stat()
                except FileNotFoundError:
                    continue
                if number != open_one or stat.st_mtime + self.settings.max_age < self._now():
                    entries.append((stat.st_mtime, stat.st_size, segment(folder, number)))
        held = Counter({job: entry.position[1] for job, entry in self._jobs.items()})
        for _, size, path in entries:
            held[path.parent.name] += size
        dropped = 0
        most = self.settings.max_bytes * self.settings.job_share
        for mtime, size, path in sorted(entries):
            job = path.parent.name
            if held[job] > most or mtime + self.settings.max_age < self._now():
                held[job] -= size
                dropped += size
                self._drop(path)
        for _, size, path in sorted(entry for entry in entries if entry[2].exists()):
            if held.total() <= self.settings.max_bytes:
                break
            held[path.parent.name] -= size
            dropped += size
            self._drop(path)
        return dropped

    def _drop(self, path: Path) -> None:
        """One segment; with the last one of a job that writes no more, its folder."""
        job, folder = path.parent.name, path.parent
        numbers = segment_numbers(folder)
        if numbers and path == segment(folder, numbers[-1]) and (entry := self._jobs.pop(job, None)) is not None:
            entry.sync()
            entry.close()
        path.unlink(missing_ok=True)
        index_of(path).unlink(missing_ok=True)
        if numbers == [int(path.stem)]:
            shutil.rmtree(folder, ignore_errors=True)
        log.info("%s dropped by retention", path)

    def close(self) -> None:
        """Commit, and let another process have the folder. Unfinished lines are read again from the stream: the cursor lies before them."""
        try:
            self.commit()
        finally:
            for entry in self._jobs.values():
                entry.close()
            self._jobs.clear()
            os.close(self._lock)
