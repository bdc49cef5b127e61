"""The kernel's log of this boot, from /dev/kmsg or a file, as lines "[seconds.micros] message". Reads only; never waits.

A container may not read it: then that is said and nothing is judged by it. A ring that has turned over does not reach back to the boot: that is
said too.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
import weakref
from typing import NamedTuple

RECORD = re.compile(r"^(?P<level>\d+),(?P<seq>\d+),(?P<us>\d+),[^;]*;(?P<text>[^\n]*)")
STAMP = re.compile(r"^\[ *(?P<s>\d+\.\d+)\]")
BOOT = re.compile(r"(?:^|[\]:] ) *Linux version \d+\.")
"""A kernel's first line: what a file holds before the last of them is of earlier boots."""
MOST_BYTES = 32 << 20
"""Read at most; of a longer file the last ones."""


class KernelLog(NamedTuple):
    """`why`: why there is none, or ""; `whole`: it reaches back to the start of this boot."""

    lines: tuple[str, ...]
    why: str = ""
    whole: bool = True


def read(path: str = "/dev/kmsg") -> KernelLog:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return KernelLog((), f"kernel log {path}: {error.strerror}", False)
    records: list[str] = []
    size = 0
    begins_later = False
    try:
        told = os.fstat(fd)
        a_file = stat.S_ISREG(told.st_mode)
        if a_file and told.st_size > MOST_BYTES:
            os.lseek(fd, -MOST_BYTES, os.SEEK_END)
            begins_later = True
        while size < MOST_BYTES:
            try:
                chunk = os.read(fd, 65536)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while we read: the next read goes on behind it
                    continue
                if error.errno != errno.EAGAIN:
                    return KernelLog((), f"kernel log {path}: {error.strerror}", False)
                break
            if not chunk:
                break
            size += len(chunk)
            records.append(chunk.decode("utf-8", "replace"))
    finally:
        os.close(fd)
    lines = []
    first: int | None = None
    for line in "".join(records).split("\n")[begins_later:]:
        match = RECORD.match(line)
        if match:
            first = int(match["seq"]) if first is None else first
            lines.append(f"[{int(match['us']) / 1e6:12.6f}] {match['text']}")
        elif line and not line.startswith(" "):  # continuation lines hold keys and values of the record
            lines.append(line)
    boot = next((n for n in range(len(lines) - 1, -1, -1) if BOOT.search(lines[n])), None) if a_file else None
    return KernelLog(tuple(lines[boot:]), "", not first and not (begins_later and boot is None))


class Tail:
    """What the kernel's log says from now on. `lines` gives what is new, at most MOST_NEW, and never waits; nothing where it may not be read."""

    MOST_NEW = 2000

    def __init__(self, path: str = "/dev/kmsg") -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        else:
            weakref.finalize(self, os.close, self._fd)
            os.lseek(self._fd, 0, os.SEEK_END)

    def lines(self) -> list[str]:
        found: list[str] = []
        while self._fd >= 0 and len(found) < self.MOST_NEW:
            try:
                chunk = os.read(self._fd, 65536)
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before we read it
                    continue
                break
            if not chunk:
                break
            found += [match["text"] if (match := RECORD.match(line)) else line for line in chunk.decode("utf-8", "replace").split("\n") if line]
        return found


def age(line: str) -> float | None:
    """Seconds since a stamped line was written; None without a stamp."""
    match = STAMP.match(line)
    return time.clock_gettime(time.CLOCK_MONOTONIC) - float(match["s"]) if match else None
