"""Who is to blame when a pair of nodes is slow: triangulation over measured pairs. Pure.

A node that is slow in every pair is slow itself. A pair whose nodes are fast with others is a matter of the way between them: two routes that
collide, or a link. With too few pairs the answer is which to measure next.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import msgspec

SLOW = 0.8
"""Share of the usual bandwidth below which a pair is slow (10 % noise between pairs is common; ours)."""
MOST = 0.8
"""Share of a node's pairs that must be slow to call the node slow."""

Pair = tuple[str, str]


class PairVerdict(msgspec.Struct, frozen=True):
    """`nodes`: slow nodes with their factor of the usual; `routes`: slow pairs of fast nodes; `unclear`: slow pairs, with what to measure next."""

    usual: float
    nodes: Mapping[str, float]
    routes: tuple[Pair, ...]
    unclear: Mapping[Pair, tuple[Pair, ...]]


def judge(bandwidth: Mapping[Pair, float]) -> PairVerdict:
    """Bandwidth per pair of nodes, in any unit; each pair once, in either order."""
    if not bandwidth:
        return PairVerdict(0.0, {}, (), {})
    values = sorted(bandwidth.values())
    usual = median(values[len(values) // 2 :])
    slow = {pair for pair, value in bandwidth.items() if value < SLOW * usual}
    nodes: dict[str, float] = {}
    while True:
        best = max(({n for pair in slow for n in pair} - set(nodes)), key=lambda n: (share(n, bandwidth, slow, nodes), n), default=None)
        if best is None or count(best, bandwidth, nodes) < 2 or share(best, bandwidth, slow, nodes) < MOST:
            break
        nodes[best] = round(median(value for pair, value in bandwidth.items() if best in pair) / usual, 3)
    rest = sorted(pair for pair in slow if not set(pair) & set(nodes))
    fast = {node for pair, value in bandwidth.items() if pair not in slow and value > 0 for node in pair}
    names = sorted({node for pair in bandwidth for node in pair})
    unclear = {pair: to_measure(pair, bandwidth, names) for pair in rest if not set(pair) <= fast}
    return PairVerdict(usual, nodes, tuple(pair for pair in rest if pair not in unclear), unclear)


def count(node: str, bandwidth: Mapping[Pair, float], known: Mapping[str, float]) -> int:
    """Pairs of a node with those that are not yet blamed."""
    return sum(node in pair and not (set(pair) - {node}) & set(known) for pair in bandwidth)


def share(node: str, bandwidth: Mapping[Pair, float], slow: set[Pair], known: Mapping[str, float]) -> float:
    """Share of those pairs that are slow."""
    own = [pair for pair in bandwidth if node in pair and not (set(pair) - {node}) & set(known)]
    return sum(pair in slow for pair in own) / len(own) if own else 0.0


def to_measure(pair: Pair, bandwidth: Mapping[Pair, float], names: list[str]) -> tuple[Pair, ...]:
    """Pairs that would tell: each node with one that the other is not measured against yet."""
    others = [name for name in names if name not in pair]
    wanted = [(node, other) for node in pair for other in others if (node, other) not in bandwidth and (other, node) not in bandwidth]
    return tuple(wanted[:4])
