"""Who is bad, by tests of two workers at a time: the judge over all pairings of a round. Pure.

A pair that passed clears both its members; a pair that failed holds at least one who is bad. An explanation is a set of at most two workers, none of
them cleared, that holds a member of each failed pair. Who is in every explanation is named; who is in some but not in all is only suspected; where
two are not enough, a failed pair with one member that is not cleared names that one. So nobody who is well is ever named while at most two are bad.
A test of one worker alone is a pair of itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from aegis_proto.messages import CheckResult

SLOW = 0.8
"""Share of the peers' median below which a pairing is slow (docs/agent.md, "Checks")."""
MOST_PAIRS = 8
PREFIX = "pair."
CHECKS = ("allreduce", "performance")
"""Checks whose values are pairings."""
MOST_UNKNOWN = 64
"""Workers among whom explanations of two are looked for; of more, only what is certain is named."""


@dataclass(frozen=True, slots=True)
class Named:
    """`bad`: named. `suspected`: one of these is, or more; the tests cannot say which."""

    bad: frozenset[int] = frozenset()
    suspected: frozenset[int] = frozenset()


def told(results: Iterable[CheckResult], index: int, workers: int) -> tuple[tuple[int, float], ...]:
    """(partner, share) of each pairing that worker `index` reports; what is not one is left out."""
    out: dict[int, float] = {}
    for result in results:
        if result.CheckType not in CHECKS:
            continue
        for key, value in result.values.items():
            text = key.removeprefix(PREFIX)
            if key.startswith(PREFIX) and text.isascii() and text.isdigit() and len(text) <= 6 and int(text) < workers and math.isfinite(value):
                out[int(text)] = round(min(max(value, 0.0), 9.999), 3)
    return tuple(sorted(out.items())[:MOST_PAIRS])


def outcomes(pairs: Mapping[int, Sequence[tuple[int, float]]], passes: float) -> dict[frozenset[int], bool]:
    """Pair -> it passed, as both its members say: a share of at least `passes`, and no failure."""
    out: dict[frozenset[int], bool] = {}
    for index, tested in pairs.items():
        for partner, share in tested:
            pair = frozenset((index, partner))
            out[pair] = out.get(pair, True) and share >= passes and share > 0
    return out


def judge(outcome: Mapping[frozenset[int], bool]) -> Named:
    """Who is bad by these tests."""
    good = {member for pair, passed in outcome.items() if passed for member in pair}
    open_pairs = [pair - good for pair, passed in outcome.items() if not passed]
    open_pairs = [pair for pair in open_pairs if pair]  # two cleared ones that failed together: it was their time, or their link
    if not open_pairs:
        return Named()
    certain = frozenset(member for pair in open_pairs if len(pair) == 1 for member in pair)
    unknown = sorted(frozenset().union(*open_pairs))
    if len(certain) <= 2 and len(unknown) <= MOST_UNKNOWN:
        small = [frozenset(group) for n in (1, 2) for group in combinations(unknown, n)]
        explanations = [group for group in small if all(pair & group for pair in open_pairs)]
        minimal = [group for group in explanations if not any(other < group for other in explanations)]
        if minimal:
            named = frozenset.intersection(*minimal)
            return Named(named, frozenset().union(*minimal) - named)
    return Named(certain, frozenset().union(*(pair for pair in open_pairs if not pair & certain)))
