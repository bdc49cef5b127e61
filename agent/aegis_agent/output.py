"""Output of the user's processes: through the agent to its own stdout and stderr, line by line with a prefix, and as it is into a log file per rank.

Binary safe. A slow or dead reader of the agent's output never holds the training up: a bounded buffer stands between, and what does not fit is left
out there, with a line that says how much (the log file has it). Keeps the last lines of stderr, for the report of a failure.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aegis_agent.logroad import Feed

BUFFER = 4 << 20
"""Bytes that may wait for a slow reader."""
CHUNK = 65536
LONGEST_LINE = 65536
"""A line is cut here for display; log files keep it whole."""
TAIL = 200
"""Last lines of stderr that are kept: the user's frame of a deep traceback stands far above its end."""
PARTIAL_AFTER = 1.0
"""Seconds after which an unfinished line (a prompt, a progress bar) is shown."""
LOG_LIMIT = 256 << 20
"""Bytes of one log file; then it becomes `.1` and a new one begins."""
KEPT_RUNS = 8
"""Log folders of earlier incarnations that are kept."""


def with_time(prefix: bytes) -> bytes:
    """`[w0/r1 i2] ` as `[w0/r1 i2 t1795984000123] `: ms since 1970, now."""
    return b"%b t%d] " % (prefix[:-2], time.time_ns() // 1_000_000)


class Sink:
    """A file descriptor of ours behind a bounded buffer and a thread, so that a write that blocks blocks nobody."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.left_out = 0  # bytes not shown
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._writing = False
        self._dead = False

    def write(self, data: bytes) -> None:
        with self._changed:
            if self._dead:
                return
            if self._size + len(data) > BUFFER:
                self.left_out += len(data)
                return
            if self.left_out:
                note = b"[aegis] %d bytes not shown: the reader of this output is too slow (the log files have them)\n" % self.left_out
                self.left_out = 0
                self._waiting.append(note)
                self._size += len(note)
            self._waiting.append(data)
            self._size += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"output-{self.fd}", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                while not self._waiting:
                    self._changed.wait()
                data = b"".join(self._waiting)
                self._waiting.clear()
                self._writing = True
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self.fd, view) :]
            except OSError:
                with self._changed:  # the reader is gone: the training goes on unseen
                    self._dead = True
                    self._waiting.clear()
                    self._size = 0
                    self._writing = False
                    self._changed.notify_all()
                return
            with self._changed:
                self._size -= len(data)

    def flush(self, timeout: float) -> bool:
        """Wait until everything is written, at most `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._dead or (not self._waiting and not self._writing), timeout)


class LogFile:
    """One log file with a bound. Errors of the disk are swallowed after the first note: logs never stop a training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._size = 0
        self._open()

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self._size = os.fstat(self._fd).st_size
        except OSError:
            self._fd = -1

    def write(self, data: bytes) -> None:
        if self._fd < 0:
            return
        try:
            os.write(self._fd, data)
            self._size += len(data)
            if self._size > LOG_LIMIT:
                os.close(self._fd)
                os.replace(self.path, f"{self.path}.1")
                self._open()
        except OSError:
            self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Stream:
    """One pipe of one child: read when there is something, written to the log file, to the road of the lines and, in whole lines with the prefix,
    to the sink."""

    def __init__(
        self, fd: int, sink: Sink, log: LogFile | None, prefix: bytes, tail: deque[str] | None, *, stamp: bool = False, feed: Feed | None = None
    ) -> None:
        self.fd = fd
        self.eof = False
        self._sink = sink
        self._log = log
        self._feed = feed
        self._prefix = prefix
        self._stamp = stamp
        self._tail = tail
        self.watch: Callable[[bytes], None] | None = None
        """Is told of every whole line, as it was printed."""
        self._rest = b""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._ready)

    def _ready(self) -> None:
        try:
            data = os.read(self.fd, CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self.close()

    def drain(self) -> None:
        """Take what lies in the pipe now; the other end may stay open in some process that lives on."""
        budget = 4 << 20
        while not self.eof and budget > 0:
            try:
                data = os.read(self.fd, CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            budget -= len(data)
            self._take(data)

    def _take(self, data: bytes) -> None:
        if self._log is not None:
            self._log.write(data)
        if self._feed is not None:
            self._feed.take(data)
        if not self._prefix:
            self._sink.write(data)
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if end:
            self._show(data[:end])
        if len(self._rest) >= LONGEST_LINE:
            self._flush()
        elif self._rest and self._timer is None:
            self._timer = self._loop.call_later(PARTIAL_AFTER, self._flush)

    def _show(self, lines: bytes) -> None:
        if self.watch is not None:
            self.watch(lines)
        if self._tail is not None:
            for line in lines[-TAIL * 1000 :].split(b"\n")[-TAIL - 1 : -1]:
                self._tail.append(line.rpartition(b"\r")[2].decode("utf-8", "replace")[:2000])
        if self._prefix:
            prefix = with_time(self._prefix) if self._stamp else self._prefix
            self._sink.write(prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n")

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._rest:
            rest, self._rest = self._rest, b""
            self._show(rest + b"\n")

    def close(self) -> None:
        if not self.eof:
            self.eof = True
            self._flush()
            if self._feed is not None:
                self._feed.end()
            self._loop.remove_reader(self.fd)
            os.close(self.fd)


def forget_old_runs(log_dir: Path, keep: int = KEPT_RUNS) -> None:
    """Remove log folders of all but the newest `keep` incarnations."""
    try:
        runs = sorted((entry for entry in log_dir.iterdir() if entry.name.isdigit()), key=lambda entry: int(entry.name))
    except OSError:
        return
    for old in runs[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
