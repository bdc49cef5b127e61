"""Stacks of a process as py-spy tells them: what its main thread waits for, and whether it moved between two looks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

DEPTH = 8
"""Innermost frames of a thread that say what it waits for."""
KEPT = 24
"""Innermost frames that are compared, and told."""
COLLECTIVE_FILES = ("torch/distributed/", "torch/nn/parallel/distributed.py", "deepspeed/comm/", "horovod/")
"""Where the python side of a collective lies. A frame here means that this rank waits for the others."""
COLLECTIVE_NAMES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all", "recv", "send", "wait_tensor"})


class Frame(msgspec.Struct, frozen=True):
    name: str
    filename: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        return f"{self.name} ({self.filename.rsplit('/', 1)[-1]}:{self.line})"


class Thread(msgspec.Struct, frozen=True):
    """One thread as `py-spy dump --json` tells it, innermost frame first."""

    frames: list[Frame] = []
    thread_name: str | None = None
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread of one process. `waiting`: inside of a collective; `where`: innermost frame of the user's own code, else innermost of all."""

    waiting: bool
    where: str
    frames: tuple[str, ...] = ()


def read(text: str) -> Stack | None:
    """The main thread in the output of `py-spy dump --json`, None when there is none. ValueError when it is not that."""
    try:
        threads = msgspec.json.decode(text, type=list[Thread])
    except msgspec.MsgspecError as error:
        raise ValueError(f"not the output of py-spy dump --json: {error}") from None
    main = next((thread for thread in threads if thread.thread_name == "MainThread"), threads[0] if threads else None)
    if main is None or not main.frames:
        return None
    inner = main.frames[:DEPTH]
    waiting = any(part in frame.filename for frame in inner for part in COLLECTIVE_FILES) or any(frame.name in COLLECTIVE_NAMES for frame in inner)
    own = next((frame for frame in main.frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename), main.frames[0])
    return Stack(waiting, own.where, tuple(frame.where for frame in main.frames[:KEPT]))


def grouped(stacks: Sequence[Stack]) -> str:
    """`7x wait in train (train.py:30); 1x load (data.py:9)`, the largest group first."""
    groups = Counter((stack.waiting, stack.where) for stack in stacks)
    return "; ".join(f"{count}x {'waits in ' if waiting else ''}{where}" for (waiting, where), count in groups.most_common())
