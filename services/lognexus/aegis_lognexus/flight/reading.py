"""A folder of dumps to {rank: Dump}: which file is whose, and reading each in a child process with limits.

Reads: regular files of one folder. Starts: at most `workers` children (`decode.py`), fed one path at a time; a child that dies, hangs or
meets a bad file is replaced. Writes nothing.
"""

from __future__ import annotations

import json
import os
import re
import select
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from aegis_lognexus.flight import decode
from aegis_lognexus.flight.dump import EMPTY, OK, REFUSED, TRUNCATED, UNREADABLE, Dump, broken, from_parts

FILE_DEADLINE = 90.0  # s of wall time for one file
MAX_FILES = 65_536
MAX_ENTRIES = 32_000_000  # of all files together; about 1.5 GB
MAX_ANSWER = decode.MAX_FILE_BYTES * 4  # bytes; a pickle may repeat one entry for two bytes
MAX_RANK = 1_000_000
_SKIP = frozenset({".txt", ".log", ".html", ".md", ".py", ".sh", ".csv", ".yaml", ".yml", ".tmp", ".out", ".err"})
_ENDINGS = re.compile(r"(\.(json|pkl|pickle|p|bin|dump|fr|trace|dat|pt))+$", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_RANK = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
_GLOBAL = re.compile(r"global[-_.]?rank[-_.]?(\d+)", re.IGNORECASE)
_ORDER = {OK: 0, EMPTY: 1, TRUNCATED: 2, UNREADABLE: 3, REFUSED: 4}


def ranks_of(names: Iterable[str]) -> dict[str, int]:
    """{file name: rank}. "rank" followed by a number wins, "global rank" before all; of several, or else, a number that tells the files of one
    naming style apart (`_place`).

    Names without a number (truth.json) belong to no rank and are left out.
    """
    found: dict[str, int] = {}
    styles: dict[str, list[tuple[str, list[int]]]] = defaultdict(list)
    for name in names:
        if name.startswith(".") or Path(name).suffix.lower() in _SKIP:
            continue
        stem = _ENDINGS.sub("", name)
        named = [int(x) for x in _GLOBAL.findall(stem)[:1] or _RANK.findall(stem) if len(x) < 19 and int(x) < MAX_RANK]
        if len(named) == 1:
            found[name] = named[0]
        elif named:  # of the node, of a group, and of the job
            styles[f"rank {_NUMBER.sub('#', name)}"].append((name, named))
        elif numbers := [int(x) for x in _NUMBER.findall(stem) if len(x) < 19]:
            styles[_NUMBER.sub("#", name)].append((name, numbers))
    for files in styles.values():
        at = _place(files)
        for name, numbers in files:
            if len(numbers) > at and numbers[at] < MAX_RANK:
                found[name] = numbers[at]
    return found


def _place(files: list[tuple[str, list[int]]]) -> int:
    """Which number of a naming style is the rank: the last one that differs in every file and is no larger than ranks would be (a process id is)."""
    width = len(files[0][1])
    columns = [[numbers[i] for _, numbers in files if len(numbers) > i] for i in range(width)]
    apart = [i for i in range(width - 1, -1, -1) if len(set(columns[i])) == len(files) and max(columns[i]) < MAX_RANK]
    likely = [i for i in apart if max(columns[i]) < 16 * len(files) + 64]
    return next(iter([*likely, *apart]), width - 1)


def read_folder(folder: Path, workers: int | None = None, seconds: float = float("inf")) -> dict[int, Dump]:
    """All dumps of a folder. A rank whose every file is broken is in the result with its state; a rank without a file is not. What is not read within
    `seconds`, or lies behind `MAX_ENTRIES`, counts as refused.

    Raises FileNotFoundError, NotADirectoryError, and ValueError for a folder of more than `MAX_FILES` dumps.
    """
    folder = folder.absolute()  # the children run in /
    sizes = {e.name: e.stat().st_size for e in os.scandir(folder) if e.is_file()}
    ranks = ranks_of(sizes)
    if len(ranks) > MAX_FILES:
        raise ValueError(f"{folder}: {len(ranks)} dumps, at most {MAX_FILES} are read")
    files: dict[int, list[str]] = defaultdict(list)
    for name in sorted(ranks, key=lambda n: (n.endswith(".json"), n)):  # a pickle carries stacks, its JSON twin may not
        files[ranks[name]].append(name)
    dumps: dict[int, Dump] = {}
    interned: dict[str, str] = {}
    todo = sorted(files, reverse=True)
    lock = threading.Lock()
    stop: list[BaseException] = []
    room, deadline = MAX_ENTRIES, time.monotonic() + seconds

    def work() -> None:
        nonlocal room
        child = _Child()
        try:
            while not stop:
                with lock:
                    if not todo:
                        return
                    rank = todo.pop()
                best: Dump | None = None
                for name in files[rank]:
                    if sizes[name] > decode.MAX_FILE_BYTES:
                        dump = broken(rank, REFUSED, f"larger than {decode.MAX_FILE_BYTES >> 20} MB")
                    elif not sizes[name]:
                        dump = broken(rank, TRUNCATED, "the file is empty")
                    elif room <= 0 or time.monotonic() > deadline:
                        dump = broken(rank, REFUSED, "not read in time" if room > 0 else "the set holds too many operations")
                    else:
                        dump = child.read(rank, str(folder / name), interned)
                        with lock:
                            room -= len(dump)
                    if best is None or _ORDER[dump.state] < _ORDER[best.state]:
                        best = dump
                    if best.state == OK:
                        break
                if best is not None:
                    dumps[rank] = best
        except BaseException as e:
            stop.append(e)
        finally:
            child.close()

    count = max(1, min(workers or min(os.cpu_count() or 1, 8), (len(files) + 15) // 16))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if stop:
        raise stop[0]
    return dict(sorted(dumps.items()))


class _Child:
    """One reading process; started at first use, replaced after anything unusual."""

    def __init__(self) -> None:
        self._proc: subprocess.Popen[bytes] | None = None

    def read(self, rank: int, path: str, interned: dict[str, str]) -> Dump:
        if self._proc is None or self._proc.poll() is not None:
            self.close()
            self._proc = subprocess.Popen(
                [sys.executable, "-I", decode.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
                cwd="/",
            )
        stdin, stdout = self._proc.stdin, self._proc.stdout
        assert stdin is not None and stdout is not None
        deadline = time.monotonic() + FILE_DEADLINE
        try:
            stdin.write(json.dumps(path).encode() + b"\n")
            stdin.flush()
            good, head_size, body_size = struct.unpack("<BQQ", _exactly(stdout, 17, deadline))
            head = _exactly(stdout, head_size, deadline)
            body = _exactly(stdout, body_size, deadline)
            if good:
                return from_parts(rank, *decode.unpack(head, body), interned=interned)
            answer = json.loads(head)
            self.close()
            return broken(rank, answer["state"], answer["note"])
        except TimeoutError:
            self.close()
            return broken(rank, REFUSED, f"not read within {FILE_DEADLINE:.0f} s")
        except (EOFError, OSError, ValueError, KeyError) as e:
            self.close()
            return broken(rank, REFUSED, f"the reading process was ended by its limits ({type(e).__name__})")

    def close(self) -> None:
        if self._proc is None:
            return
        self._proc.kill()
        self._proc.wait()
        for pipe in (self._proc.stdin, self._proc.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        self._proc = None


def _exactly(pipe: IO[bytes], size: int, deadline: float) -> bytes:
    if size > MAX_ANSWER:
        raise ValueError("an answer larger than any dump can give")
    parts: list[bytes] = []
    fd = pipe.fileno()
    ready = select.poll()
    ready.register(fd, select.POLLIN)
    while size:
        left = deadline - time.monotonic()
        if left <= 0 or not ready.poll(left * 1000):
            raise TimeoutError
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
