"""Batches of lines on disk, oldest first, within a limit. Blocking: one thread may put while another takes.

Owns its folder. What an agent of the same worker left there, since it was killed or had to leave, is taken over: `sending` says which piece was
on its way and under which numbers, so that it goes again under the same ones and the store drops what it has. What somebody else left is removed.
A file is named by its place and by how many lines it has: `00000007.512`; so what cannot be read any more is counted all the same.
"""

from __future__ import annotations

import logging
import re
import shutil
import stat
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import msgspec
from aegis_proto.logs import MAX_BATCH

log = logging.getLogger(__name__)

SPOOL_DIR = "spool"
LIMIT = 256 << 20
"""Bytes on disk."""
OWNER_FILE, SENDING_FILE = "owner", "sending"
_HEAD = struct.Struct("<II")
_NAME = re.compile(r"(\d{8})\.(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Piece:
    """The lines of one message: how many, and their JSON without the brackets. `at`: its place in the file that was taken last; `boot` and `first`:
    under which numbers an earlier agent has begun to send it."""

    lines: int
    data: bytes
    at: int = field(default=-1, compare=False)
    boot: str = field(default="", compare=False)
    first: int = field(default=0, compare=False)


class Sending(msgspec.Struct, frozen=True):
    """What is on its way: piece `at` of `file`, as lines `first` and following of `boot`."""

    file: str
    at: int
    boot: str
    first: int


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    lines: int
    size: int


class Spool:
    """`put` and `take`; OSError when the disk refuses a write. `owner`: whose lines these are; "" takes nothing over."""

    def __init__(self, folder: Path, limit: int = LIMIT, owner: str = "") -> None:
        self._folder, self._limit, self._owner = folder, limit, owner
        self.files: deque[_File] = deque()
        self._n = 0
        self._lock = threading.Lock()
        self._taken: _File | None = None
        self._left: Sending | None = None
        self.lost = 0
        """Lines of an earlier agent of this worker that cannot be read any more."""
        if owner:
            self._adopt()
        if not self.files:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def taken(self) -> bool:
        """A file was taken and is not `done`."""
        return self._taken is not None

    def _adopt(self) -> None:
        """One file that cannot be read is counted and costs no other."""
        try:
            if (self._folder / OWNER_FILE).read_text() != self._owner:
                return
            found = sorted((match, path) for path in self._folder.iterdir() if (match := _place(path)))
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            log.warning("what is in the spool of the lines cannot be known, and is given up: %s", error)
            return
        try:
            self._left = msgspec.json.decode((self._folder / SENDING_FILE).read_bytes(), type=Sending)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            self._left = None
        for (n, lines), path in found:
            self._n = max(self._n, n)
            try:
                seen = path.lstat()
                if not stat.S_ISREG(seen.st_mode):
                    continue
                sent = 0
                if self._left is not None and self._left.file == path.name:
                    sent = sum(lines for lines, _ in islice(_heads(path.read_bytes()), max(0, self._left.at)))
                self.files.append(_File(path, lines - sent, seen.st_size))
            except OSError as error:
                log.warning("%d lines are lost: %s", lines, error)
                self.lost += lines
                _remove(path)

    def put(self, pieces: Sequence[Piece]) -> int:
        """Append; lines that had to be given up for it, the oldest."""
        self._n += 1
        file = self._write(self._n, pieces)
        lost = 0
        with self._lock:
            self.files.append(file)
            while self.size > self._limit and len(self.files) > 1:
                oldest = self.files.popleft()
                _remove(oldest.path)
                lost += oldest.lines
        return lost

    def put_first(self, piece: Piece, boot: str, first: int) -> None:
        """Before all others: it is on its way already, under these numbers."""
        file = self._write(0, [piece])
        self._note(Sending(file.path.name, 0, boot, first))

    def _write(self, n: int, pieces: Sequence[Piece]) -> _File:
        if not self._folder.is_dir():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._folder / OWNER_FILE).write_text(self._owner)
        lines = sum(piece.lines for piece in pieces)
        path = self._folder / f"{n:08d}.{lines}"
        data = b"".join(_HEAD.pack(piece.lines, len(piece.data)) + piece.data for piece in pieces)
        try:
            path.write_bytes(data)
        except OSError:
            _remove(path)
            raise
        return _File(path, lines, len(data))

    def take(self) -> tuple[list[Piece], int]:
        """(the pieces of the oldest file, lines that could not be read). The file stays until `done`, or the next `take`."""
        self.done()
        with self._lock:
            if not self.files:
                return [], 0
            file = self._taken = self.files.popleft()
        try:
            data = file.path.read_bytes()
        except OSError:
            return [], file.lines
        pieces = [Piece(lines, data[at : at + size], n) for n, (lines, (at, size)) in enumerate(_heads(data))]
        left, self._left = self._left, None
        if left is not None and left.file == file.path.name:
            pieces = pieces[max(0, left.at) :]
            pieces[:1] = [replace(piece, boot=left.boot, first=left.first) for piece in pieces[:1]]
        return pieces, file.lines - sum(piece.lines for piece in pieces)

    def sending(self, piece: Piece, boot: str, first: int) -> None:
        """A piece of the file that was taken is about to be sent under these numbers."""
        if self._taken is not None:
            self._note(Sending(self._taken.path.name, piece.at, boot, first))

    def _note(self, sending: Sending) -> None:
        partial = self._folder / f".{SENDING_FILE}"
        partial.write_bytes(msgspec.json.encode(sending))
        partial.replace(self._folder / SENDING_FILE)

    def done(self) -> None:
        """All pieces of the file that was taken are stored."""
        taken, self._taken = self._taken, None
        if taken is not None:
            _remove(taken.path)
            _remove(self._folder / SENDING_FILE)

    def clear(self) -> None:
        """Nothing of it is needed any more."""
        self.files.clear()
        self._taken = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _place(path: Path) -> tuple[int, int] | None:
    """(place, lines) of a file of lines, by its name; None for what is none."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else None


def _remove(path: Path) -> None:
    """A file that the disk will not give up may be sent twice, by a successor: that ends nobody."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("the spool of the lines: %s", error)


def _heads(data: bytes) -> Iterator[tuple[int, tuple[int, int]]]:
    """(lines, (where, bytes)) of every whole piece; a file that was cut, or is none of ours, ends there."""
    at = 0
    while at + _HEAD.size <= len(data):
        lines, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if at + size > len(data) or size > MAX_BATCH or lines > size:
            return
        yield lines, (at, size)
        at += size
