"""The growing end of a log file, over rotation and truncation."""

from __future__ import annotations

import os
from pathlib import Path

BLOCK = 1 << 16


class Tail:
    """Reads what was appended to `path` since the last call; starts at the present end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            stat = path.stat()
            self._inode, self._offset = stat.st_ino, stat.st_size
        except FileNotFoundError:
            self._inode, self._offset = 0, 0

    def read(self) -> bytes:
        """At most 64 KB; b"" when there is nothing new."""
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._offset:
                    self._inode, self._offset = stat.st_ino, 0
                file.seek(self._offset)
                data = file.read(BLOCK)
        except FileNotFoundError:
            return b""
        self._offset += len(data)
        return data
