"""What each picture shows. Pure: from findings to figures.

Most are figures of Kokolis et al. (HPCA 2025): the CDFs of the seven signals 11, expected against measured ETTR 9, the contour 10, time to failure by
size 7, goodput loss 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from aegis_lemon.detect.daymap import failure_days
from aegis_lemon.ettr.against import Against
from aegis_lemon.history.causes import GROUPS, CauseGroup
from aegis_lemon.history.loss import LossClass, second_share
from aegis_lemon.history.observe import DAY, Observed
from aegis_lemon.history.schema import SIGNALS

from .figure import Axis, Bars, Cells, Figure, Series

if TYPE_CHECKING:
    from aegis_lemon.detect import Ranking
    from aegis_lemon.ettr.contour import Contour
    from aegis_lemon.history.sizes import SizeClass

MOST_CELLS = 60


def signal_cdfs(observed: Observed, ranking: Ranking) -> list[Figure]:
    """Share of nodes at or below each value of the seven signals; flagged nodes are marked on the curve."""
    flagged = {node.node for node in ranking.flagged}
    marked = np.array([name in flagged for name in observed.names])
    names = [name for name in observed.names if name in flagged]
    figures = []
    for name in SIGNALS:
        values = observed.signals[name]
        order = np.sort(values)
        steps = np.unique(order)
        share = np.searchsorted(order, steps, side="right") / max(1, len(order))
        at = values[marked]
        crosses = Series("flagged", at.tolist(), (np.searchsorted(order, at, side="right") / max(1, len(order))).tolist(), "crosses", labels=names)
        title = f"{name}: {len(observed.names)} nodes, {observed.window / DAY:.0f} days"
        curve = Series("nodes", steps.tolist(), share.tolist(), "steps")
        figures.append(Figure(title, Axis(name), Axis("share of nodes at or below"), (curve, crosses)))
    return figures


def failure_map(observed: Observed, ranking: Ranking, most: int = 60) -> Figure:
    """Node by day: when each of the worst nodes failed."""
    names, counts = failure_days(observed, ranking, most)
    flagged = {node.node for node in ranking.flagged}
    labels = [f"{name} *" if name in flagged else name for name in names]
    cells = Cells(list(range(counts.shape[1] + 1)), counts.T.tolist(), rows=labels)
    return Figure("Failures that name their node, by day of the window (* flagged)", Axis("day"), Axis(""), cells=cells)


def mttf_by_size(sizes: Sequence[SizeClass], rf: float) -> Figure:
    """Time to failure against nodes of the job, with 90 % intervals, and what one rate for all would give."""
    shown = [size for size in sizes if size.mttf is not None]
    nodes, hours = [size.nodes for size in shown], [(size.mttf or 0.0) / 3600 for size in shown]
    low = [size.mttf_low / 3600 for size in shown]
    high = [(size.mttf_high or size.mttf or 0.0) / 3600 for size in shown]
    series = [Series("measured", nodes, hours, "points", low, high)]
    if rf > 0 and nodes:
        line = np.geomspace(min(nodes), max(nodes), 30)
        series.append(Series(f"1 / (N r_f), r_f = {rf:.2f} / 1000", line.tolist(), (24 / (line * rf / 1000)).tolist(), "dashed"))
    return Figure("Mean time to failure by size of job", Axis("nodes of the job", log=True), Axis("hours to failure", log=True), series)


def ettr_by_size(rows: Sequence[Against], rf: float) -> Figure:
    """Expected and measured, with the measured one's interval."""
    gpus = [row.seen.gpus for row in rows]
    values = [row.measured.value for row in rows]
    low = [row.measured.value if row.measured.low is None else row.measured.low for row in rows]
    high = [row.measured.value if row.measured.high is None else row.measured.high for row in rows]
    series = (
        Series("measured", gpus, values, "points", low, high, [row.group for row in rows]),
        Series(f"expected, r_f = {rf:.2f} / 1000", gpus, [row.expected for row in rows], "dashed"),
    )
    return Figure("ETTR by size of job", Axis("GPUs", log=True), Axis("ETTR"), series)


def contour_figure(grid: Contour, target: float, title: str) -> Figure:
    """Expected ETTR over failure rate and save time; the line is where the target is met."""
    every = max(1, len(grid.rf) // MOST_CELLS), max(1, len(grid.write) // MOST_CELLS)
    rf, write = grid.rf[:: every[0]], grid.write[:: every[1]]
    value = grid.ettr[:: every[0], :: every[1]]
    edge = [(rate, longest) for rate, longest in grid.boundary(target) if longest is not None]
    line = Series(f"{target:g}", [rate for rate, _ in edge], [longest for _, longest in edge])
    cells = Cells(_edges(rf), value.tolist(), _edges(write), steps=[round(step, 2) for step in np.arange(0.5, 0.99, 0.04)])
    return Figure(title, Axis("failures per 1000 node-days", log=True), Axis("seconds that a save takes", log=True), (line,), cells=cells)


def _edges(middles: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    """Of cells around points that are evenly spaced on the logarithm."""
    step = float(middles[1] / middles[0]) ** 0.5 if len(middles) > 1 else 1.1
    edges: list[float] = [float(middles[0]) / step, *(middles * step).tolist()]
    return edges


def causes_figure(groups: Sequence[CauseGroup]) -> Figure:
    """Failures by the specification's four groups, and those of which nobody told."""
    names = [GROUPS[group.group][0] for group in groups]
    return Figure("Failures by cause", Axis("failures"), Axis(""), bars=Bars(names, {"failures": [group.failures for group in groups]}))


def loss_figure(rows: Sequence[LossClass]) -> Figure:
    """GPU-hours lost by size of job: of the jobs that failed, and of those that made room when they came back."""
    parts = {"failed": [row.first for row in rows], "preempted for one that came back": [row.second for row in rows]}
    title = f"Goodput lost to failures, by nodes of the job ({second_share(list(rows)):.0%} of second order)"
    return Figure(title, Axis("GPU-hours"), Axis("nodes"), bars=Bars([f"{row.low}-{row.high}" for row in rows], parts))
