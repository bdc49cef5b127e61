"""Why a flag is withheld: common causes, one user's code, and too many at once. Pure; thresholds as data.

Each guard gives the nodes that it withholds, with a reason a person understands. A withheld node keeps its score.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aegis_lemon.history.observe import Observed

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Guards:
    """`cap` is a share of all nodes with a floor of 1; 0 is no cap. `users` distinct users, then job families, must have been hit, where the history
    names them and at least `user_failures` failures name the node. A rack or switch counts with `group` members, `group_failing` of them failing."""

    roles: bool = True
    groups: bool = True
    users: int = 2
    user_failures: float = 3.0
    by_chance: float = 0.05
    """Failures of one user accuse the user when chance, by the user's share of all node-days, makes that rarer than this."""
    group: int = 4
    group_failing: int = 3
    group_excess: float = 3.0
    """A rack or switch that fails less than so many times as often as the fleet excuses nobody."""
    cap: float = 0.0
    stratum: int = 4
    """Roles with fewer nodes are compared with the fleet."""


def strata(observed: Observed, guards: Guards) -> list[NDArray[np.int64]]:
    """Nodes to be compared with each other: one set for each role of enough nodes, the rest together. A head node is no lemon for being one."""
    everyone = np.arange(len(observed.names))
    if not guards.roles:
        return [everyone]
    by_role: dict[str, list[int]] = defaultdict(list)
    for node, role in enumerate(observed.role):
        by_role[role].append(node)
    small = [node for members in by_role.values() if len(members) < guards.stratum for node in members]
    found = [np.asarray(members) for members in by_role.values() if len(members) >= guards.stratum]
    if small and found:
        largest = max(range(len(found)), key=lambda index: len(found[index]))
        found[largest] = np.sort(np.append(found[largest], small))
    return found or [everyone]


def group_rates(count: Floats, exposure: Floats, groups: Sequence[str], guards: Guards) -> Floats:
    """Failures per node-day of the rest of each node's rack or switch, its worst tenth (at least one) left out; 0 where that is nothing unusual.

    Leaving out the worst keeps other lemons in the rack from excusing the first.
    """
    fleet = float(count.sum()) / max(1e-9, float(exposure.sum()))
    members: dict[str, list[int]] = defaultdict(list)
    for node, group in enumerate(groups):
        if group:
            members[group].append(node)
    rates = np.zeros(len(count))
    for nodes in members.values():
        bound = count[nodes].sum() / max(1e-9, exposure[nodes].sum()) * len(nodes) / max(1, len(nodes) - 2)
        if len(nodes) < guards.group or bound < guards.group_excess * fleet:
            continue
        for node in nodes:
            others = sorted((other for other in nodes if other != node), key=lambda other: count[other])
            others = others[: len(others) - max(1, len(others) // 10)]
            rate = count[others].sum() / max(1e-9, exposure[others].sum())
            if (count[others] > 0.5).sum() >= guards.group_failing and rate >= guards.group_excess * fleet:
                rates[node] = rate
    return rates


def withheld_by_users(observed: Observed, flagged: Bools, guards: Guards) -> dict[int, str]:
    """Nodes whose failures all belong to one user, or one family of jobs, where that is no chance.

    Who runs most of all jobs meets most lemons alone.
    """
    reasons = {}
    for node in np.flatnonzero(flagged & (observed.hard >= guards.user_failures)):
        for who, share, what in (
            (observed.users[node], observed.user_share, "user"),
            (observed.families[node], observed.family_share, "job family"),
        ):
            name = next(iter(who), "")
            if 0 < len(who) < guards.users and share.get(name, 0.0) ** observed.hard[node] < guards.by_chance:
                reasons[int(node)] = f"all its failures are of one {what}: {name}"
    return reasons


def withheld_by_cap(score: Floats, flagged: Bools, guards: Guards, nodes: int) -> dict[int, str]:
    """Flags beyond the cap, lowest scores first."""
    if guards.cap <= 0:
        return {}
    allowed = max(1, int(guards.cap * nodes))
    order = sorted(np.flatnonzero(flagged), key=lambda node: -score[node])
    return {int(node): f"beyond the cap of {allowed} nodes at a time" for node in order[allowed:]}
