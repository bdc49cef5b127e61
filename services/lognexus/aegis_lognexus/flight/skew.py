"""Entry skew: who comes late to operations that all complete. The matrix rank x operation of lateness in seconds.

Two clocks differ by a constant; a slow rank does not come late to every single operation. So a rank's smallest skew is taken as its clock's
offset, and its lateness is what is left. A rank late by exactly the same time at every operation cannot be told from a wrong clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aegis_lognexus.flight.table import Group

MAX_COLUMNS = 512
MIN_OPERATIONS = 5
MIN_LATENESS = 0.005  # s; below, it is scheduling noise
MIN_SHARE = 0.25  # of the usual time between two operations
MAX_SHARE = 1.2  # nobody can be later than that: the others wait for it, so the time between two operations grows with it


@dataclass(frozen=True, slots=True)
class Lateness:
    """lateness: s, one row per rank of `ranks`, one column per operation (the last `MAX_COLUMNS` that all entered), own clock offset removed."""

    gid: int
    ranks: tuple[int, ...]
    lateness: npt.NDArray[np.float64]
    interval: float  # s, usual time between two operations

    def late(self) -> dict[int, float]:
        """{rank: usual lateness, s} of the ranks that hold the others up, a minority."""
        usual = np.median(self.lateness, axis=1)
        middle = float(np.median(usual))
        spread = float(np.median(np.abs(usual - middle)))
        limit = middle + max(6 * spread, MIN_LATENESS, MIN_SHARE * self.interval)
        at = np.nonzero((usual > limit) & (usual <= MAX_SHARE * self.interval))[0].tolist()
        if not at or len(at) * 2 >= len(usual):
            return {}
        # Whoever comes last most of the time holds the others up; the rest of a skewed distribution is noise.
        last = np.bincount(self.lateness.argmax(axis=0), minlength=len(usual))
        share = 0.6 * self.lateness.shape[1] / len(at)
        return {self.ranks[i]: float(usual[i]) for i in at if last[i] >= share}


def lateness(g: Group) -> Lateness | None:
    """None where fewer than three members share five operations."""
    if g.created.size == 0:
        return None
    rows = np.nonzero((g.created > 0).any(axis=1))[0]
    if len(rows) < 3:
        return None
    complete = np.nonzero((g.created[rows] > 0).all(axis=0))[0][-MAX_COLUMNS:]
    if len(complete) < MIN_OPERATIONS:
        return None
    entered = g.created[np.ix_(rows, complete)]
    entered = (entered - entered.min()).astype(np.float64) / 1e9
    skew = entered - np.median(entered, axis=0)
    late = skew - skew.min(axis=1, keepdims=True)
    late -= np.minimum(np.median(late, axis=0), late.min(axis=0) + 1e9)
    interval = float(np.median(np.diff(np.median(entered, axis=0)))) if len(complete) > 1 else 0.0
    return Lateness(g.gid, tuple(g.rows[rows].tolist()), late, max(interval, 0.0))
