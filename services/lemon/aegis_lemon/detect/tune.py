"""Tuning over a history: its curve where the truth is known, and the prediction test that needs none. Reads a `History`; otherwise pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from aegis_lemon.history import History, observe
from aegis_lemon.history.observe import DAY, WINDOW

from .guards import Guards
from .rank import DetectError, Ranking, Thresholds, rank
from .rates import split_blame
from .score import Point, Prediction, cheapest, curve, predict


@dataclass(frozen=True)
class Tuned:
    """`points` and `best` need a truth; `prediction` needs a history of at least two windows."""

    detector: str
    ranking: Ranking
    points: list[Point]
    best: Point | None
    prediction: Prediction | None


def _flags(ranking: Ranking, names: list[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    flagged = {node.node for node in ranking.flagged}
    return np.array([name in flagged for name in names], np.bool_)


def forward(
    history: History, detector: str, guards: Guards | None = None, thresholds: Thresholds | None = None, window: float = WINDOW
) -> Prediction | None:
    """Flag on each window, look at the next: None when the history is too short for one step."""
    steps = []
    for now in np.arange(history.first + window, history.last - window + DAY / 2, window):
        chosen = rank(observe(history, window, float(now)), detector, guards, thresholds)
        after = observe(history, window, float(now) + window)
        failures = split_blame(after.hard, after.exposure, after.blame)
        steps.append((_flags(chosen, history.names), failures, after.exposure))
    return predict(steps) if steps else None


def tune(
    history: History, detector: str = "blame", lemons: Collection[str] | None = None, costs: tuple[float, float] = (10.0, 1.0), window: float = WINDOW
) -> Tuned:
    """`lemons` is the truth where it is known; `costs` are those of a lemon kept and of a good node drained."""
    ranking = rank(observe(history, window), detector)
    points: list[Point] = []
    if lemons is not None:
        unknown = sorted(set(lemons) - set(history.names))
        if unknown:
            raise DetectError(f"{len(unknown)} lemons are not in the history: {', '.join(unknown[:5])}")
        score = np.array([node.score for node in ranking.nodes])
        points = curve(score, np.array([node.node in lemons for node in ranking.nodes]), *costs)
    return Tuned(detector, ranking, points, cheapest(points) if points else None, forward(history, detector, window=window))
