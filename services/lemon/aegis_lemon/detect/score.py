"""How good a detector is: precision, recall, curves with intervals, the cheapest threshold, and whether flagged nodes go on failing. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def wilson(hits: int, of: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of a share: 34 of 40 is 0.71 to 0.93."""
    if of == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + level / 2)
    p, n = hits / of, float(of)
    middle, half = (p + z * z / (2 * n)) / (1 + z * z / n), z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Point:
    """A threshold (flag at or above) and what it gives; intervals are Wilson's."""

    threshold: float
    flagged: int
    precision: float
    precision_low: float
    precision_high: float
    recall: float
    recall_low: float
    recall_high: float
    false_positive_rate: float
    cost: float


def curve(score: Floats, lemon: Bools, miss: float = 10.0, alarm: float = 1.0) -> list[Point]:
    """One point per distinct score, strictest first: ROC and precision-recall in one. `miss` and `alarm` cost a lemon kept and a node drained."""
    lemons, healthy = int(lemon.sum()), int((~lemon).sum())
    points = []
    for threshold in np.unique(score)[::-1]:
        flag = score >= threshold
        true, false = int((flag & lemon).sum()), int((flag & ~lemon).sum())
        precision, recall = wilson(true, true + false), wilson(true, lemons)
        points.append(
            Point(
                float(threshold), true + false, true / max(1, true + false), *precision, true / max(1, lemons), *recall, false / max(1, healthy),
                miss * (lemons - true) + alarm * false,
            )
        )  # fmt: skip
        if threshold <= 0:
            break
    return points


def cheapest(points: Sequence[Point]) -> Point:
    """The threshold of least cost; the stricter one of two."""
    return min(points, key=lambda point: (point.cost, point.flagged))


def precision_recall(flagged: Bools, lemon: Bools) -> tuple[float, float]:
    """Of the flagged, the share that are lemons; of the lemons, the share that is flagged. Nothing flagged is precision 1."""
    true = int((flagged & lemon).sum())
    return (true / int(flagged.sum()) if flagged.any() else 1.0), true / max(1, int(lemon.sum()))


@dataclass(frozen=True)
class Prediction:
    """Over `steps`: nodes flagged per step, their rate in the next window over the fleet's, and the share of the next failures that they had."""

    steps: int
    flagged: float
    ratio: float
    caught: float


def walk_forward(
    days: Floats, nodes: NDArray[np.int64], count: int, flag: Callable[[Floats, float], Bools], *, window: float = 28.0, ahead: float = 28.0
) -> Prediction:
    """Flag on the trailing window, score on the next. `days` and `nodes` are failures; `flag(failures per node, window)` answers per node."""
    flagged, hit, total, steps, last = 0.0, 0.0, 0.0, 0, float(days.max()) if len(days) else 0.0
    for now in np.arange(window, last - ahead, ahead):
        before = np.bincount(nodes[(days >= now - window) & (days < now)], minlength=count)[:count].astype(float)
        after = np.bincount(nodes[(days >= now) & (days < now + ahead)], minlength=count)[:count]
        chosen = flag(before, window)
        steps, flagged, hit, total = steps + 1, flagged + chosen.sum(), hit + after[chosen].sum(), total + after.sum()
    if not steps or not flagged or not total:
        return Prediction(steps, flagged / max(1, steps), 0.0, 0.0)
    return Prediction(steps, flagged / steps, (hit / flagged) / (total / (count * steps)), hit / total)


def predict(steps: Sequence[tuple[Bools, Floats, Floats]]) -> Prediction:
    """From (flagged, failures, node-days) per step, the latter two of the next window: rates, so that a drained node does not look good."""
    flagged = float(sum(chosen.sum() for chosen, _, _ in steps))
    hit, hit_days = (sum(float(values[index][values[0]].sum()) for values in steps) for index in (1, 2))
    total, days = (sum(float(values[index].sum()) for values in steps) for index in (1, 2))
    if not flagged or hit_days <= 0 or total <= 0:
        return Prediction(len(steps), flagged / max(1, len(steps)), 0.0, 0.0)
    return Prediction(len(steps), flagged / len(steps), (hit / hit_days) / (total / days), hit / total)
