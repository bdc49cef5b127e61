"""A folder of checkpoints as the layouts read it: names, sizes, times, the first and last bytes of a file.

Bounded; never opens what is not a plain file. `DiskTree` reads a disk; a test may give any object of the same shape.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MOST_NAMES = 20_000
"""Entries of one folder that are read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`mark` changes whenever the file is written anew: (inode, size, mtime in ns)."""

    name: str
    folder: bool
    size: int = 0
    mark: tuple[int, int, int] = (0, 0, 0)


class Tree(Protocol):
    """Paths are relative to the folder, "" is the folder itself."""

    def names(self, path: str = "") -> list[Entry]:
        """What the folder `path` holds; [] when it cannot be read."""
        ...

    def head(self, path: str, size: int) -> bytes:
        """The first bytes of a file; b"" when it cannot be read."""
        ...

    def tail(self, path: str, size: int) -> bytes:
        """The last bytes of a file."""
        ...


class DiskTree:
    """A folder on a disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self, path: str = "") -> list[Entry]:
        found: list[Entry] = []
        try:
            with os.scandir(self.root / path) as entries:
                for entry in entries:
                    if len(found) >= MOST_NAMES:
                        break
                    try:
                        told = entry.stat()
                    except OSError:
                        continue
                    mark = (told.st_ino, told.st_size, told.st_mtime_ns)
                    found.append(Entry(entry.name, stat.S_ISDIR(told.st_mode), told.st_size, mark))
        except OSError:
            return []
        return found

    def head(self, path: str, size: int) -> bytes:
        return self._read(path, size, os.SEEK_SET)

    def tail(self, path: str, size: int) -> bytes:
        return self._read(path, size, os.SEEK_END)

    def _read(self, path: str, size: int, whence: int) -> bytes:
        try:
            fd = os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return b""
        try:
            told = os.fstat(fd)
            if not stat.S_ISREG(told.st_mode):
                return b""
            if whence == os.SEEK_END:
                os.lseek(fd, -min(size, told.st_size), os.SEEK_END)
            return os.read(fd, size)
        except OSError:
            return b""
        finally:
            os.close(fd)
