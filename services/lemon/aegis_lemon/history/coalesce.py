"""Failures to episodes: one fault that shows several times counts once. Pure.

Same node within `gap` seconds of the episode's first failure, or before the node is back in service, is one episode. The hour is not a sliding one: a
node that kills a job every twenty minutes for a day is not one fault. A run that was there at the first failure and went on for minutes did not die
of it: its own end is another one. Failures of several nodes of one rack or switch within minutes are one fault of
what they share: they weigh 1/k each.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

GAP = 3600.0
SURVIVED = 300.0
"""Seconds after a failure of its node in which a run dies of that, if it does (schema.AFTER_END)."""
COMMON_WITHIN, COMMON_NODES = 600.0, 3
"""Seconds and nodes that make a common cause of a rack or switch."""


@dataclass(frozen=True)
class Failure:
    """`kind` multi or single (by the nodes of the job that failed) or node (no job); `weight` below 1 when shared with a rack; `cause` in the words
    of whoever told it, "" when nobody did; `began`: start of the run that failed."""

    node: int
    time: float
    kind: str = "node"
    user: str = ""
    family: str = ""
    weight: float = 1.0
    cause: str = ""
    began: float = math.inf


def merge_outages(outages: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Intervals in order of time, overlapping ones joined."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(outages):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def back_at(outages: Sequence[tuple[float, float]], starts: Sequence[float], low: float, high: float) -> float:
    """End of the last outage that covers or begins in [low, high]; `high` if there is none."""
    index = bisect_right(starts, high) - 1
    return max(high, outages[index][1]) if index >= 0 and outages[index][1] > low else high


def _outlived(first: Failure, failure: Failure) -> bool:
    return failure.began < first.time and failure.time > first.time + SURVIVED


def episodes(failures: Sequence[Failure], outages: dict[int, list[tuple[float, float]]] | None = None, gap: float = GAP) -> list[Failure]:
    """First failure of each episode, in order of time. A job's failure names the kind, and the first that has one the cause."""
    by_node: dict[int, list[Failure]] = defaultdict(list)
    for failure in failures:
        by_node[failure.node].append(failure)
    found: list[Failure] = []
    for node, mine in by_node.items():
        merged = merge_outages((outages or {}).get(node, []))
        starts = [start for start, _ in merged]
        open_until = float("-inf")
        for failure in sorted(mine, key=lambda f: f.time):
            if failure.time < open_until and not _outlived(found[-1], failure):
                first = found[-1]
                if first.kind == "node" and failure.kind != "node":
                    found[-1] = replace(failure, time=first.time, cause=first.cause or failure.cause)
                elif not first.cause and failure.cause:
                    found[-1] = replace(first, cause=failure.cause)
                continue
            found.append(failure)
            open_until = back_at(merged, starts, failure.time, failure.time + gap)
    return sorted(found, key=lambda f: f.time)


def share_common(found: Sequence[Failure], groups: Sequence[str], within: float = COMMON_WITHIN, nodes: int = COMMON_NODES) -> list[Failure]:
    """The same with weight 1/k where k nodes of one group (rack, switch; "" is none) failed within `within` seconds of each other."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, failure in enumerate(found):
        if groups[failure.node]:
            members[groups[failure.node]].append(index)
    shared = list(found)
    for indices in members.values():
        begin = 0
        while begin < len(indices):
            end = begin
            while end < len(indices) and found[indices[end]].time <= found[indices[begin]].time + within:
                end += 1
            distinct = len({found[index].node for index in indices[begin:end]})
            if distinct >= nodes:
                for index in indices[begin:end]:
                    shared[index] = replace(shared[index], weight=min(shared[index].weight, 1 / distinct))
                begin = end
            else:
                begin += 1
    return shared
