"""Pictures: HTML pages that need nothing from the net (plotly's script is inside). Pure: figures and text, no files.

Each is a figure of Kokolis et al. (HPCA 2025): the CDFs of the seven signals are fig. 11, the contour fig. 10, time to failure by size fig. 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from aegis_lemon.detect.daymap import failure_days
from aegis_lemon.history.observe import DAY, Observed
from aegis_lemon.history.schema import SIGNALS

if TYPE_CHECKING:
    from aegis_lemon.detect import Ranking
    from aegis_lemon.ettr.contour import Contour
    from aegis_lemon.history.sizes import SizeClass

INK, FLAG, MUTED = "#31688e", "#d1495b", "#9aa5b1"


def signal_cdfs(observed: Observed, ranking: Ranking) -> Any:
    """Share of nodes at or below each value of the seven signals; flagged nodes are marked on the curve."""
    figure = make_subplots(rows=2, cols=4, subplot_titles=SIGNALS, vertical_spacing=0.18)
    flagged = {node.node for node in ranking.flagged}
    marked = np.array([name in flagged for name in observed.names])
    for index, name in enumerate(SIGNALS):
        values = observed.signals[name]
        order = np.sort(values)
        share = np.arange(1, len(order) + 1) / max(1, len(order))
        place = {"row": index // 4 + 1, "col": index % 4 + 1}
        figure.add_scatter(x=order, y=share, mode="lines", line={"color": INK, "shape": "hv"}, showlegend=False, hoverinfo="skip", **place)
        at = values[marked]
        figure.add_scatter(
            x=at,
            y=np.searchsorted(order, at, side="right") / max(1, len(order)),
            mode="markers",
            marker={"color": FLAG, "size": 7, "symbol": "x"},
            text=[name for name, is_marked in zip(observed.names, marked, strict=True) if is_marked],
            hovertemplate="%{text}: %{x}<extra></extra>",
            name="flagged",
            showlegend=index == 0,
            **place,
        )
    figure.update_yaxes(range=[0, 1.02])
    figure.update_layout(title=f"The seven signals over {len(observed.names)} nodes, {observed.window / DAY:.0f} days: share of nodes at or below")
    return figure


def failure_map(observed: Observed, ranking: Ranking, most: int = 60) -> Any:
    """Node by day: when each of the worst nodes failed."""
    names, counts = failure_days(observed, ranking, most)
    flagged = {node.node for node in ranking.flagged}
    labels = [f"{name} *" if name in flagged else name for name in names]
    figure = go.Figure(go.Heatmap(z=counts[::-1], y=labels[::-1], colorscale=[[0, "#f4f5f7"], [0.2, "#f2c57c"], [1, FLAG]], hoverongaps=False))
    figure.update_layout(
        title="Failures that name their node, by day of the window (* flagged)", height=200 + 16 * max(1, len(names)), xaxis_title="day"
    )
    return figure


def mttf_by_size(sizes: Sequence[SizeClass], rf: float) -> Any:
    """Time to failure against nodes of the job, with 90 % intervals, and what one rate for all would give."""
    shown = [size for size in sizes if size.mttf is not None]
    hours = np.array([size.mttf or 0.0 for size in shown]) / 3600
    high = np.array([size.mttf_high or size.mttf or 0.0 for size in shown]) / 3600
    low = np.array([size.mttf_low for size in shown]) / 3600
    nodes = [size.nodes for size in shown]
    figure = go.Figure()
    bars = {"type": "data", "symmetric": False, "array": high - hours, "arrayminus": hours - low, "color": MUTED}
    figure.add_scatter(x=nodes, y=hours, error_y=bars, mode="markers", marker={"color": INK, "size": 9}, name="measured")
    if rf > 0 and nodes:
        line = np.geomspace(min(nodes), max(nodes), 50)
        figure.add_scatter(
            x=line, y=24 / (line * rf / 1000), mode="lines", line={"color": FLAG, "dash": "dash"}, name=f"1 / (N r_f), r_f = {rf:.2f} / 1000"
        )
    figure.update_xaxes(type="log", title="nodes of the job")
    figure.update_yaxes(type="log", title="hours to failure")
    figure.update_layout(title="Mean time to failure by size of job")
    return figure


def contour_figure(grid: Contour, target: float, title: str) -> Any:
    """Expected ETTR over failure rate and save time; the line is where the target is met."""
    bands = {"start": 0.5, "end": 0.98, "size": 0.04, "showlabels": True}
    figure = go.Figure(go.Contour(x=grid.rf, y=grid.write, z=grid.ettr.T, contours=bands, colorscale="Viridis", colorbar={"title": "ETTR"}))
    edge = {"type": "constraint", "operation": "=", "value": target}
    figure.add_contour(x=grid.rf, y=grid.write, z=grid.ettr.T, contours=edge, line={"color": FLAG, "width": 3}, showscale=False, name=f"{target:g}")
    figure.update_xaxes(type="log", title="failures per 1000 node-days")
    figure.update_yaxes(type="log", title="seconds that a save takes")
    figure.update_layout(title=title)
    return figure


def page(title: str, figures: Sequence[Any]) -> str:
    """One HTML page with the script inside, once."""
    parts = []
    for index, figure in enumerate(figures):
        figure.update_layout(template="plotly_white", font={"family": "system-ui, sans-serif"})
        parts.append(figure.to_html(full_html=False, include_plotlyjs=index == 0))
    style = "body{font-family:system-ui,sans-serif;max-width:1280px;margin:2em auto}"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
