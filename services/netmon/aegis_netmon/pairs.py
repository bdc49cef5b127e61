"""Who is to blame when a pair of nodes is slow: triangulation over measured pairs. Pure.

A node that is slow in every pair is slow itself. A pair whose nodes are fast with others is a matter of the way between them: two routes that
collide, or a link. With too few pairs the answer is which to measure next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
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
    of: dict[str, list[Pair]] = {}
    for pair in bandwidth:
        for node in pair:
            of.setdefault(node, []).append(pair)
    nodes: dict[str, float] = {}
    while True:
        best = max(({n for pair in slow for n in pair} - set(nodes)), key=lambda n: (share(n, of[n], slow, nodes), n), default=None)
        if best is None or count(best, of[best], nodes) < 2 or share(best, of[best], slow, nodes) < MOST:
            break
        nodes[best] = round(median(bandwidth[pair] for pair in of[best]) / usual, 3)
    rest = sorted(pair for pair in slow if not set(pair) & set(nodes))
    fast = {node for pair, value in bandwidth.items() if pair not in slow and value > 0 for node in pair}
    names = sorted({node for pair in bandwidth for node in pair})
    unclear = {pair: to_measure(pair, bandwidth, names) for pair in rest if not set(pair) <= fast}
    return PairVerdict(usual, nodes, tuple(pair for pair in rest if pair not in unclear), unclear)


def count(node: str, own: Sequence[Pair], known: Mapping[str, float]) -> int:
    """Pairs of a node with those that are not yet blamed. `own`: all its pairs."""
    return sum(other(node, pair) not in known for pair in own)


def share(node: str, own: Sequence[Pair], slow: set[Pair], known: Mapping[str, float]) -> float:
    """Share of those pairs that are slow."""
    left = [pair for pair in own if other(node, pair) not in known]
    return sum(pair in slow for pair in left) / len(left) if left else 0.0


def other(node: str, pair: Pair) -> str:
    return pair[1] if pair[0] == node else pair[0]


def to_measure(pair: Pair, bandwidth: Mapping[Pair, float], names: list[str]) -> tuple[Pair, ...]:
    """Pairs that would tell: each node with one that the other is not measured against yet."""
    wanted = ((node, name) for node in pair for name in names if name not in pair and (node, name) not in bandwidth and (name, node) not in bandwidth)
    return tuple(islice(wanted, 4))
