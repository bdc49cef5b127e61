"""The specification's rules A and B over the seven signals: thresholds as data. Pure.

The paper prints no thresholds; these are the specification's. `recent_weight` is its weighting of the last 7 of 28
days: a count of that week counts so often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aegis_lemon.history.observe import Observed


@dataclass(frozen=True)
class Rules:
    """Rule A: multi-node failures above `multi` and XIDs above `xid`. Rule B: single-node failure rate above `rate` and a recent failure."""

    multi: float = 2.0
    xid: float = 5.0
    rate: float = 0.20
    recent_weight: float = 2.0


def weighted(observed: Observed, name: str, weight: float) -> NDArray[np.float64]:
    """A counting signal with its recent part counted `weight` times."""
    found: NDArray[np.float64] = observed.signals[name] + (weight - 1) * observed.recent_signals[name]
    return found


def apply_rules(observed: Observed, rules: Rules) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(rule A, rule B) per node."""
    multi = weighted(observed, "multi_node_node_fails", rules.recent_weight)
    xids = weighted(observed, "xid_cnt", rules.recent_weight)
    rule_a: NDArray[np.bool_] = (multi > rules.multi) & (xids > rules.xid)
    rule_b: NDArray[np.bool_] = (observed.signals["single_node_node_failure_rate"] > rules.rate) & (observed.recent > 0)
    return rule_a, rule_b
