"""Batches of lines on disk, oldest first, within a limit. Blocking: one thread may put while another takes.

Owns its folder: what an earlier agent left there is removed, since its numbers went with it.
"""

from __future__ import annotations

import shutil
import struct
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SPOOL_DIR = "spool"
LIMIT = 256 << 20
"""Bytes on disk."""
_HEAD = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Piece:
    """The lines of one message: how many, and their JSON without the brackets."""

    lines: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    lines: int
    size: int


class Spool:
    """`put` and `take`; OSError when the disk refuses a write."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self._folder, self._limit = folder, limit
        self.files: deque[_File] = deque()
        self._n = 0
        self._lock = threading.Lock()
        shutil.rmtree(folder, ignore_errors=True)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def put(self, pieces: Sequence[Piece]) -> int:
        """Append; lines that had to be given up for it, the oldest."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._n += 1
        path = self._folder / f"{self._n:08d}"
        data = b"".join(_HEAD.pack(piece.lines, len(piece.data)) + piece.data for piece in pieces)
        try:
            path.write_bytes(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        lost = 0
        with self._lock:
            self.files.append(_File(path, sum(piece.lines for piece in pieces), len(data)))
            while self.size > self._limit and len(self.files) > 1:
                oldest = self.files.popleft()
                oldest.path.unlink(missing_ok=True)
                lost += oldest.lines
        return lost

    def take(self) -> tuple[list[Piece], int]:
        """(the pieces of the oldest file, which is gone then; lines that could not be read)."""
        with self._lock:
            if not self.files:
                return [], 0
            file = self.files.popleft()
        pieces: list[Piece] = []
        try:
            data = file.path.read_bytes()
            file.path.unlink(missing_ok=True)
        except OSError:
            return [], file.lines
        at = 0
        while at + _HEAD.size <= len(data):
            lines, size = _HEAD.unpack_from(data, at)
            at += _HEAD.size + size
            if at > len(data):
                break
            pieces.append(Piece(lines, data[at - size : at]))
        return pieces, file.lines - sum(piece.lines for piece in pieces)

    def clear(self) -> None:
        """Nothing of it is needed any more."""
        self.files.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
