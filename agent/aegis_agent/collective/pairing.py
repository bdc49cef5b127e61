"""Who is tested with whom, and what is known afterwards. Pure.

A pair passes only if both its members are well: one passed pair clears two. A failed pair says that one of the two is not. Whoever is not cleared is
paired next with somebody who is (that names the bad one), and where nobody is, with another who is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Pair = tuple[int, int]

ROUNDS = 4
"""Pairings after a failed test of all. Two name any single bad worker of four or more; the rest are for small and doubly broken jobs."""


def pairing(members: Sequence[int], turn: int) -> list[Pair]:
    """Pairing number `turn` of `members`, disjoint: a round robin, so that in n - 1 turns (n, when odd) everybody meets everybody.

    With an odd number one sits out, another one in each turn.
    """
    ring = [*members] if len(members) % 2 == 0 else [*members, -1]
    n = len(ring)
    if n < 2:
        return []
    turn %= n - 1
    moved = [ring[0], *(ring[1 + (i + turn) % (n - 1)] for i in range(n - 1))]
    pairs = [(moved[i], moved[n - 1 - i]) for i in range(n // 2)]
    return sorted((min(pair), max(pair)) for pair in pairs if -1 not in pair)


def turns(members: Sequence[int]) -> int:
    """Pairings until everybody has been in two (one, when there are only two)."""
    return {0: 0, 1: 0, 2: 1}.get(len(members), 2 + len(members) % 2)


def cleared(outcomes: dict[Pair, bool]) -> set[int]:
    """Members of a passed pair."""
    return {member for pair, passed in outcomes.items() if passed for member in pair}


def next_pairs(members: Sequence[int], outcomes: dict[Pair, bool], dead: Iterable[int] = ()) -> list[Pair]:
    """The next disjoint pairs; empty when no further pair would tell anything. `dead`: who does not answer any more."""
    there = [member for member in members if member not in set(dead)]
    if not outcomes:
        return pairing(there, 0)
    good = cleared(outcomes)
    named = {member for pair, passed in outcomes.items() if not passed for member in pair if member not in good and good & set(pair)}
    unknown = [member for member in there if member not in good and member not in named]
    tried: set[frozenset[int]] = {frozenset(pair) for pair in outcomes}
    free = [member for member in there if member in good]
    pairs: list[Pair] = []
    left: list[int] = []
    for member in unknown:
        partner = next((other for other in free if frozenset((member, other)) not in tried), None)
        if partner is None:
            left.append(member)
        else:
            free.remove(partner)
            pairs.append((min(member, partner), max(member, partner)))
    while left:
        member = left.pop(0)
        partner = next((other for other in left if frozenset((member, other)) not in tried), None)
        if partner is not None:
            left.remove(partner)
            pairs.append((member, partner))
    return sorted(pairs)
