"""Expected ETTR over a grid of failure rates and save times: the figure that says which of the two to buy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .setting import DAY, Setting, SettingError

Floats = NDArray[np.float64]
LEAST, MOST = 1e-9, 1e12
"""Failures per 1000 node-days, and seconds, between which every point is a number."""


@dataclass(frozen=True)
class Contour:
    """`ettr[i][j]` and `interval[i][j]` (seconds) at rf[i] (per 1000 node-days) and write[j] (seconds)."""

    rf: Floats
    write: Floats
    ettr: Floats
    interval: Floats

    def boundary(self, target: float) -> list[tuple[float, float | None]]:
        """(rf, longest save that still reaches the target on this grid, or None), one per rf."""
        reached = [np.nonzero(row >= target)[0] for row in self.ettr]
        return [(float(rf), float(self.write[found[-1]]) if len(found) else None) for rf, found in zip(self.rf, reached, strict=True)]


def axis(low: float, high: float, points: int) -> Floats:
    """Evenly spaced on the logarithm."""
    if not LEAST <= low < high <= MOST or points < 2:
        raise SettingError(f"axis from {low:g} to {high:g} in {points} points: expected {LEAST:g} <= low < high <= {MOST:g} and at least 2 points")
    grid: Floats = np.geomspace(low, high, points)
    return grid


def exact_interval(cost: Floats, mttf: Floats) -> Floats:
    """The exact minimiser for arrays: Newton on t - M (1 - e^-((t+w)/M)) = 0 from Young's value, which lies above the root."""
    x = cost / mttf
    small = x < 1e-9  # the root meets the rounding there; the higher order is exact
    y = np.where(small, 1e-9, x)
    t = np.minimum(np.sqrt(2 * y), 1.0)
    for _ in range(50):
        power = np.exp(-(t + y))
        t = t - (t - 1 + power) / (1 - power)
    t = np.where(small, np.sqrt(2 * x) * (1 + np.sqrt(x / 2) / 3 + x / 18) - x, t)
    result: Floats = np.where(cost > 0, t * mttf, 0.0)
    return result


def contour(setting: Setting, rf: Any, write: Any, method: str = "exact") -> Contour:
    """The grid; `rf` and `write` are sequences of positive numbers, the rest comes from `setting`. `method` young or exact picks the interval."""
    rates, writes = np.asarray(rf, float), np.asarray(write, float)
    if rates.ndim != 1 or writes.ndim != 1 or not (rates > 0).all() or not (writes > 0).all():
        raise SettingError("contour: expected two lists of positive numbers")
    if method not in ("young", "exact"):
        raise SettingError(f'contour method "{method}": expected young or exact')
    rate = (setting.nodes * rates / 1000 / DAY)[:, None]
    cost = (writes + setting.slowdown * setting.persist)[None, :]
    mttf = 1 / rate
    dt = exact_interval(np.broadcast_to(cost, (len(rates), len(writes))), mttf) if method == "exact" else np.sqrt(2 * cost * mttf)
    dt = np.maximum(dt, setting.persist)
    with np.errstate(over="ignore"):
        wall = np.expm1(rate * (dt + cost)) * np.exp(rate * (setting.restart + setting.persist)) * (1 + rate * setting.queue)
        ettr = rate * dt / wall
    return Contour(rates, writes, np.where(np.isfinite(wall), ettr, 0.0), dt)
