"""Rates of counted events, with what the count can prove. Pure.

A rate is taken over at least two steps, per bits or packets carried where that is what the errors happen to: an idle link does not look healthy by
its silence. Intervals are Poisson's, exact (Garwood) up to a hundred events, by Wilson and Hilferty above (within 0.1 % there).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from aegis_netmon.series import Step

Per = Literal["second", "rcv_bits", "xmit_bits", "xmit_packets", "rcv_packets"]
LEAST_STEPS = 2
CONFIDENCE = 0.95


class Rate(NamedTuple):
    """`events` in `exposure` units. `value` is the estimate; the true rate lies in [low, high] with 95 %. With `at_least`, the count
    is a lower bound, so that `high` says nothing: it is infinite."""

    events: int
    exposure: float
    value: float
    low: float
    high: float
    at_least: bool = False


def poisson(count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Bounds of the mean of a Poisson count, two-sided.

    >>> tuple(round(bound, 3) for bound in poisson(10))
    (4.795, 18.39)
    """
    if count > 100:
        z = 1.959963984540054 if confidence == CONFIDENCE else 2.5758293035489004
        low = count * (1 - 1 / (9 * count) - z / (3 * math.sqrt(count))) ** 3
        up = count + 1
        return low, up * (1 - 1 / (9 * up) + z / (3 * math.sqrt(up))) ** 3
    return _exact(count, confidence)


@lru_cache(maxsize=512)
def _exact(count: int, confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else _solve(lambda mean: 1 - _cdf(count - 1, mean) - tail, 0.0, float(count))
    return low, _solve(lambda mean: tail - _cdf(count, mean), float(count), count + 10 * math.sqrt(count + 1) + 10)


def _cdf(count: int, mean: float) -> float:
    term = total = math.exp(-mean)
    for k in range(1, count + 1):
        term *= mean / k
        total += term
    return total


def _solve(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def rate(count: int, exposure: float, at_least: bool = False) -> Rate | None:
    """The rate of `count` events in `exposure`; None: nothing was carried, so nothing is known."""
    if exposure <= 0:
        return None
    low, high = poisson(count)
    return Rate(count, exposure, count / exposure, low / exposure, math.inf if at_least else high / exposure, at_least)


def over(steps: Sequence[Step], name: str, per: Per = "second") -> Rate | None:
    """The rate of a counter over a port's steps. None: fewer than two steps, or no exposure (an idle link, or one that does not count traffic)."""
    if len(steps) < LEAST_STEPS:
        return None
    count = sum(step.counts.get(name, 0) for step in steps)
    exposure = math.fsum(step.seconds if per == "second" else getattr(step, per) or 0 for step in steps)
    return rate(count, exposure, any(name in step.least for step in steps))


def peak(steps: Sequence[Step], name: str) -> tuple[int, Step] | None:
    """The largest rise within one step and that step: a burst shorter than a poll is all in one."""
    best = max(steps, key=lambda step: step.counts.get(name, 0), default=None)
    return None if best is None or not best.counts.get(name) else (best.counts[name], best)
