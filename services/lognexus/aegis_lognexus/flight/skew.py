"""Entry skew: who comes late to operations that all complete. The matrix rank x operation of lateness in seconds.

Two clocks differ by a constant; a slow rank does not come late to every single operation. So a rank's smallest skew is taken as its clock's
offset, and its lateness is what is left.

A rank late by the same time at every operation cannot be told from a wrong clock, but for one case: where that time is about the time between two
operations, the others do next to nothing but wait for it; a clock that is off by just so much would be a coincidence, and clocks of machines that are
kept are off by milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aegis_lognexus.flight.table import Group

MAX_COLUMNS = 512
MIN_OPERATIONS = 5
MIN_LATENESS = 0.005  # s; below, it is scheduling noise
NOISE = 4.0  # x by how much ranks are usually early at the most
OFTEN = 0.6  # of the operations have one of the late ranks as the last
MIN_SHARE = 0.25  # of the usual time between two operations
STEADY_LATENESS = 0.05  # s; below, a clock may be off by it
STEADY_SHARE = (0.8, 1.05)  # of the usual time between two operations: the others wait for it all the time
MAX_SHARE = 1.2  # nobody can be later than that: the others wait for it, so the time between two operations grows with it


@dataclass(frozen=True, slots=True)
class Lateness:
    """lateness: s, one row per rank of `ranks`, one column per operation (the last `MAX_COLUMNS` that all entered), own clock offset removed.
    skew: s, usual time of each rank after the middle one, by their clocks. early: s, by how much it was earlier than usual at the most: chance."""

    gid: int
    ranks: tuple[int, ...]
    lateness: npt.NDArray[np.float64]
    interval: float  # s, usual time between two operations
    skew: npt.NDArray[np.float64]
    early: npt.NDArray[np.float64]

    def late(self) -> dict[int, float]:
        """{rank: usual lateness, s} of the ranks that hold the others up, a minority."""
        usual = np.median(self.lateness, axis=1)
        limit = max(NOISE * float(np.median(self.early)), MIN_LATENESS, MIN_SHARE * self.interval)
        found = (usual > limit) & (usual <= MAX_SHARE * self.interval)
        # One operation entered early may be chance, or how the run began; unless the others do next to nothing but wait.
        prompt = (self.lateness <= self.lateness.min(axis=1, keepdims=True) + usual[:, None] / 4).sum(axis=1)
        at = np.nonzero(found & ((prompt > 1) | (usual >= STEADY_SHARE[0] * self.interval)))[0].tolist()
        if not at or len(at) * 2 >= len(usual) or float(np.isin(self.lateness.argmax(axis=0), at).mean()) < OFTEN:
            return {}
        return {self.ranks[i]: float(usual[i]) for i in at}

    def steady(self) -> dict[int, float]:
        """{rank: lateness, s} of a minority that all the others wait for, by the same time at each operation."""
        low, high = (share * self.interval for share in STEADY_SHARE)
        at = np.nonzero((self.skew >= max(low, STEADY_LATENESS)) & (self.skew <= high))[0].tolist()
        rest = np.abs(np.delete(self.skew, at))
        if not at or len(at) * 2 >= len(self.skew) or float(rest.max()) > (1 - STEADY_SHARE[0]) * self.interval:
            return {}
        return {self.ranks[i]: float(self.skew[i]) for i in at}


def lateness(g: Group) -> Lateness | None:
    """None where fewer than three members share five operations."""
    if g.created.size == 0:
        return None
    rows = np.nonzero((g.created > 0).any(axis=1))[0]
    if len(rows) < 3:
        return None
    complete = np.nonzero((g.created[rows] > 0).all(axis=0))[0][-MAX_COLUMNS:]
    if len(complete) > MIN_OPERATIONS and g.base + int(complete[0]) <= 1:
        complete = complete[1:]  # the first of all tells when each rank was started
    if len(complete) < MIN_OPERATIONS:
        return None
    entered = g.created[np.ix_(rows, complete)]
    entered = (entered - entered.min()).astype(np.float64) / 1e9
    skew = entered - np.median(entered, axis=0)
    late = skew - skew.min(axis=1, keepdims=True)
    late -= np.minimum(np.median(late, axis=0), late.min(axis=0) + 1e9)
    interval = float(np.median(np.diff(np.median(entered, axis=0)))) if len(complete) > 1 else 0.0
    usual = np.median(skew, axis=1)
    return Lateness(g.gid, tuple(g.rows[rows].tolist()), late, max(interval, 0.0), usual, usual - skew.min(axis=1))


def first_of(g: Group, late: Mapping[int, float]) -> set[int]:
    """Those of the late ranks that are late only because they wait for another of them in this group: they enter it well before that one does."""
    rows = np.array([row for rank in late if (row := g.row(rank)) >= 0], np.int64)
    if g.created.size == 0 or len(rows) < 2:
        return set()
    both = np.nonzero((g.created[rows] > 0).all(axis=0))[0][-MAX_COLUMNS:]
    if len(both) < MIN_OPERATIONS:
        return set()
    entered = g.created[np.ix_(rows, both)]
    before = np.median((entered.max(axis=0) - entered).astype(np.float64) / 1e9, axis=1)
    return {rank for row, ahead in zip(rows.tolist(), before.tolist(), strict=True) if ahead * 2 > late[rank := int(g.rows[row])]}
