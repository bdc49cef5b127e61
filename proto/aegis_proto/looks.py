"""What an agent saw of a run that stands still, in two looks (BLOBS, kinds `stacks` and `ras`): two, since what moves between them is slow and what
does not is stuck.

Reads and writes nothing. Taken in the pod: evidence for people, it accuses nobody.
"""

from __future__ import annotations

import msgspec

from aegis_proto import WIRE_VERSION


class RankStack(msgspec.Struct, frozen=True, omit_defaults=True):
    """The main thread of one process at the last look. `where`: innermost frame of the user's own code; `frames`: innermost first."""

    pid: int
    waiting: bool  # inside a collective
    where: str
    frames: tuple[str, ...] = ()
    rank: int = -1  # in the job; -1: of none
    moved: bool | None = None  # since the look before; None: there was none


class Stacks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one worker. `seconds`: between the looks, 0 when there was one."""

    at: int  # ms, by the worker's clock
    seconds: float = 0.0
    stacks: tuple[RankStack, ...] = ()
    missing: tuple[str, ...] = ()
    v: int = WIRE_VERSION


class RasLooks(msgspec.Struct, frozen=True, omit_defaults=True):
    """What NCCL's RAS port of a worker answered, JSON or text, once a look."""

    at: int  # ms, by the worker's clock
    seconds: float = 0.0
    texts: tuple[str, ...] = ()
    v: int = WIRE_VERSION
