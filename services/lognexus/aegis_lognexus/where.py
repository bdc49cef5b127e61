"""Where the workers of a job are, and which ranks they have. Reads the head and the pods of a job in CTL, never its specification: that holds what a
user put into the environment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aegis_bus.connection import Bus
from aegis_bus.jobstore import decode_head, decode_shard
from aegis_proto import shards, subjects
from aegis_proto.ids import pod_index
from aegis_proto.state import Head

MOST_RANKS = 1024
"""Local ranks of one worker."""


@dataclass(frozen=True, slots=True)
class Places:
    """`nodes[i]` is where worker i is, "" where nobody is placed."""

    head: Head
    nodes: tuple[str, ...]


async def places(bus: Bus, job: str) -> Places | None:
    """None when there is no such job. BusError; `Unreadable` for a state that a newer version wrote."""
    item = await bus.get("CTL", subjects.job_state(job))
    if item is None or item.marker:
        return None
    head = decode_head(job, item.data)
    nodes: list[str] = []
    for k in range(shards.count(head.workerNum)):
        shard = await bus.get("CTL", subjects.job_pods(job, k))
        if shard is None or shard.marker:  # between the last commit of a job and its end
            nodes += [""] * shards.places(head.workerNum, k)
        else:
            nodes += [pod.node for pod in decode_shard(head, k, shard)]
    return Places(head, tuple(nodes))


def local_ranks(seen: Iterable[tuple[str, int]]) -> int:
    """Ranks per worker, from ranks that were seen at workers (`w2`, 5): the smallest number with which all of them are where they were seen.

    1 when nothing tells. Ranks lie in the order of workers, equally many at each.
    """
    pairs: set[tuple[int, int]] = set()
    for pod, rank in seen:
        try:
            if rank >= 0:
                pairs.add((pod_index(pod), rank))
        except ValueError:
            continue
    least = max((len({rank for index, rank in pairs if index == i}) for i in {index for index, _ in pairs}), default=1)
    return next((n for n in range(least, MOST_RANKS + 1) if all(rank // n == index for index, rank in pairs)), 1)
