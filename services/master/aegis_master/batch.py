"""One turn of an owner's loop as a value, and how soon what it changed must be stored. Pure, but for `last_sequence`, which asks the bus."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec
from aegis_bus.connection import Bus
from aegis_proto.state import JobState, Transition

from aegis_master import events as ev

FLAGS = (ev.Acked, ev.PodReady, ev.PodRunning, ev.Finished, ev.SuspectChanged)
"""Events that, unless they complete something, only set a flag of a pod."""
LONGEST = 10.0
"""Seconds that a flag waits at most, however long the phase already lasts."""
SMALL = 64
"""Workers up to which flags are stored at once too: people watch, and few agents listen."""


@dataclass(slots=True)
class Batch:
    """What one turn of the loop did to the state, in memory."""

    state: JobState
    cursor: int
    taken: int = 0
    within: float = math.inf
    """Seconds within which what changed must be stored."""
    transitions: list[Transition] = field(default_factory=list)
    notes: list[ev.Note] = field(default_factory=list)


def urgency(before: JobState, event: ev.Event, after: JobState, flags: float, at: int) -> float:
    """Seconds within which this change must be stored; `at`: ms since 1970. What the next owner reads again in the stream, and nobody acts on,
    may wait: as long as the phase has lasted so far, so that a round of a large job costs a few commits however many answer it, however slowly.
    """
    ordered = after.head.order is not before.head.order or after.head.recent is not before.head.recent
    if ordered or not (isinstance(event, FLAGS) or _only_stopped(before, event, after)):
        return 0.0
    if isinstance(event, ev.Acked):
        return math.inf
    if after.head.workerNum <= SMALL:
        return 0.0
    lasted = (at - before.head.recent[-1].timeStamp) / 1000 if before.head.recent else 0.0
    return min(max(flags, lasted), LONGEST)


def _only_stopped(before: JobState, event: ev.Event, after: JobState) -> bool:
    """The child of a worker is gone, and its place is not freed by it: nobody acts on that."""
    return isinstance(event, ev.Stopped) and before.pod(event.index).gone == after.pod(event.index).gone


def fresh(before: tuple[Transition, ...], after: tuple[Transition, ...]) -> tuple[Transition, ...]:
    """The transitions that one step added at the end of `recent`."""
    if after is before or not after:
        return ()
    if not before:
        return after
    last = before[-1]
    for i in range(len(after) - 1, -1, -1):
        if after[i] is last:
            return after[i + 1 :]
    return after


async def last_sequence(bus: Bus, stream: str) -> int:
    """Last sequence of a stream, 0 when it never held anything."""
    info = msgspec.json.decode(await bus.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=5.0))
    return int(info["state"]["last_seq"])
