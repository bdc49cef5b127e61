"""The files of one job: append, rotate, make durable, and come back after a crash. Owns the job's folder while the process lives."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from aegis_proto.logs import LogBatch, StoredLine

from aegis_lognexus.store.blocks import (
    BLOCK,
    FIRST,
    BlockMaker,
    chunks,
    encode_block,
    encode_lines,
    index_of,
    read_index,
    segment,
    segment_numbers,
    whole_lines,
)
from aegis_lognexus.store.joining import Joiner, Progress

log = logging.getLogger(__name__)


class State(msgspec.Struct):
    """`state.json`: everything before (segment, offset) is durable and counted in `progress`."""

    segment: int = FIRST
    offset: int = 0
    progress: Progress = msgspec.field(default_factory=Progress)


def write_atomically(path: Path, data: bytes, durable: bool = True) -> None:
    """A file is its old content or its new one, whenever the process dies."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


class JobLog:
    """One job. `take` remembers lines, `flush` writes them, `sync` makes them durable. OSError when the disk refuses: the rest is kept."""

    def __init__(self, folder: Path, job: str, segment_bytes: int) -> None:
        self.folder, self.job, self._limit = folder, job, segment_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._state = load_state(folder)
        self._number = FIRST
        self._fd = self._index = -1
        self._size = 0
        self._block = BlockMaker(0)
        self._buffer: list[StoredLine] = []
        self._saved = True
        self._recover()
        self.joiner = Joiner(job, self._state.progress)
        self.last_write = 0.0

    @property
    def progress(self) -> Progress:
        return self._state.progress

    @property
    def position(self) -> tuple[int, int]:
        """(segment, offset) behind the last line written."""
        return self._number, self._size

    @property
    def dirty(self) -> bool:
        return bool(self._buffer) or not self._saved

    def take(self, pod: str, batch: LogBatch, seq: int) -> list[StoredLine]:
        """The lines of a message that are new, in order; written by the next `flush`."""
        lines = self.joiner.take(pod, batch, seq)
        self.keep(lines)
        return lines

    def keep(self, lines: Sequence[StoredLine]) -> None:
        self._buffer += lines
        self._saved = False

    def flush(self) -> int:
        """Write what was taken. Bytes written."""
        lines, self._buffer = self._buffer, []
        done = written = 0
        try:
            for chunk in chunks(lines):
                data = encode_lines(chunk)
                if self._size and self._size + len(data) > self._limit:
                    self._rotate()
                _write(self._fd, data)
                self._size += len(data)
                written += len(data)
                done += len(chunk)
                self._block.add(chunk, len(data))
                if self._block.size >= BLOCK:
                    self._end_block()
        except OSError:
            self._buffer[:0] = lines[done:]
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        return written

    def sync(self) -> None:
        """Durable: the lines first, then the state that says so."""
        self.flush()
        if self._saved:
            return
        os.fdatasync(self._fd)
        self._state.segment, self._state.offset = self._number, self._size
        write_atomically(self.folder / "state.json", msgspec.json.encode(self._state), durable=False)
        self._saved = True

    def close(self) -> None:
        for fd in (self._fd, self._index):
            if fd >= 0:
                os.close(fd)
        self._fd = self._index = -1

    # --- files -------------------------------------------------------------------------------------------------------------------

    def _open(self, number: int) -> None:
        self.close()
        path = segment(self.folder, number)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o640)
        self._index = os.open(index_of(path), flags, 0o640)
        self._number, self._size = number, os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        if self._block.size:
            self._end_block()
        os.fdatasync(self._fd)
        self._open(self._number + 1)
        self._block = BlockMaker(0)

    def _end_block(self) -> None:
        _write(self._index, encode_block(self._block.made()))
        self._block = BlockMaker(self._size)

    def _recover(self) -> None:
        """Cut the last file behind its last whole line, complete the index, and read which numbers were kept since the state was saved."""
        numbers = segment_numbers(self.folder)
        if not numbers:
            self._open(FIRST if self._state.offset == 0 else self._state.segment + 1)
            return
        for number in numbers:
            last = number == numbers[-1]
            if number < self._state.segment and not last:
                continue
            path = segment(self.folder, number)
            size = path.stat().st_size
            blocks = read_index(path, size)
            indexed = blocks[-1].offset + blocks[-1].size if blocks else 0
            known = self._state.offset if number == self._state.segment else 0 if number > self._state.segment else size
            whole, maker = self._read_back(path, min(indexed, known), indexed, known)
            _cut_index(path, len(blocks))
            if last:
                if whole < size:
                    log.warning("%s: %d bytes behind the last whole line were cut", path, size - whole)
                    os.truncate(path, whole)
                self._open(number)
                self._block = maker
            elif maker.size:
                with index_of(path).open("ab") as index:
                    index.write(encode_block(maker.made()))

    def _read_back(self, path: Path, start: int, indexed: int, known: int) -> tuple[int, BlockMaker]:
        """(end of the last whole line, the block behind the index). Lines behind `known` count as kept."""
        maker = BlockMaker(indexed)
        end = start
        for at, line, size in whole_lines(path, start):
            if at >= known:
                self._state.progress.keep(line)
                self._saved = False
            if at >= indexed:
                maker.add([line], size)
            end = at + size
        return end, maker


def load_state(folder: Path) -> State:
    """Of the job whose folder this is; an empty one where nothing readable is."""
    path = folder / "state.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return State()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("%s is not readable (%s): the files are read again from their beginning", path, error)
        return State()


def _cut_index(path: Path, entries: int) -> None:
    """Leave only the first `entries` lines of the index."""
    index = index_of(path)
    try:
        data = index.read_bytes()
    except FileNotFoundError:
        return
    kept = b"".join(line + b"\n" for line in data.split(b"\n")[:entries])
    if kept != data:
        write_atomically(index, kept, durable=False)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
