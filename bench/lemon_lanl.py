"""Do nodes that are flagged go on failing? LANL systems 18, 19 and 20, walked forward: flag on 28 days, count the next 28.

Counts only, Gamma prior fitted to each window, flag when P(rate > 5 x fleet) > 0.9: the detector `shrinkage` with its own thresholds. Printed with
all nodes and without those of a role (node 0 and multiples of 32). Claim: the flagged fail at 10, 15 and 8 times the fleet's rate, without role nodes
at 3.5, 7 and 6 times.
usage: python bench/lemon_lanl.py [--data DIR] [--times 5] [--certain 0.9]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from aegis_lemon.detect import Thresholds
from aegis_lemon.detect.rates import shrunk
from aegis_lemon.detect.score import Bools, Floats, Prediction, walk_forward
from aegis_lemon.history.lanl import ROLE_EVERY, outages
from aegis_lemon.history.rows import Imported

SYSTEMS = {"18": (1024, 10.0, 3.5), "19": (1024, 15.0, 7.0), "20": (512, 8.0, 6.0)}
"""System -> nodes, and the ratios that are promised with and without role nodes."""


def predict(path: Path, system: str, thresholds: Thresholds, roles: bool) -> Prediction:
    """`roles` leaves role nodes in."""
    nodes = SYSTEMS[system][0]
    rows = [row for row in outages(path, system, Imported()) if row.node < nodes]
    keep = np.ones(nodes, bool)
    if not roles:
        keep[::ROLE_EVERY] = False
    number = np.cumsum(keep) - 1
    first = min(row.start for row in rows)
    rows = [row for row in rows if keep[row.node]]
    days = np.array([(row.start - first) / 86_400 for row in rows])
    at = np.array([number[row.node] for row in rows])
    return walk_forward(days, at, int(keep.sum()), flag(thresholds))


def flag(thresholds: Thresholds) -> Callable[[Floats, float], Bools]:
    return lambda count, window: shrunk(count, np.full(len(count), window), thresholds.times)[1] > thresholds.certain


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("AEGIS_SHARED_DATA", "../shared/data")))
    parser.add_argument("--times", type=float, default=Thresholds().times)
    parser.add_argument("--certain", type=float, default=Thresholds().certain)
    args = parser.parse_args()
    path = args.data / "traces" / "lanl_failures_1996_2005.csv.xz"
    if not path.is_file():
        print(f"not measured: there is no {path}")
        return 1
    print("system  nodes      flagged  next 28 days / fleet  promised  caught")
    short = False
    for system, (nodes, with_roles, without) in SYSTEMS.items():
        for roles, promised in ((True, with_roles), (False, without)):
            found = predict(path, system, Thresholds(times=args.times, certain=args.certain), roles)
            short |= found.ratio < promised
            name = f"{nodes}" if roles else f"{nodes - nodes // ROLE_EVERY} (no roles)"
            print(f"{system:>6}  {name:<15}{found.flagged:5.1f}  {found.ratio:19.1f}x  {promised:7.1f}x  {found.caught:6.1%}")
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
