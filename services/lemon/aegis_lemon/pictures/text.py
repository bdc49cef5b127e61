"""Figures as text for a terminal. Pure: a value in, a string out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotext

from .figure import Axis, Bars, Cells, Figure

WIDTH, HEIGHT = 76, 18
SHADES = " .:-=+*#%@"
MARKS = {"line": "braille", "steps": "braille", "dashed": "braille", "points": "o", "crosses": "x"}


def text(figure: Figure) -> str:
    """Without colours, so that it can be piped."""
    drawn = (
        bars(figure.bars, figure.x.title) if figure.bars is not None else cells(figure, figure.cells) if figure.cells is not None else curves(figure)
    )
    return f"{figure.title}\n{drawn}"


def bars(shown: Bars, unit: str, width: int = 40) -> str:
    """A line for each bar; the parts one after the other, each with its sign."""
    totals = [sum(values[index] for values in shown.parts.values()) for index in range(len(shown.names))]
    most, name = max(totals, default=0.0), max((len(name) for name in shown.names), default=0)
    lines = []
    for index, label in enumerate(shown.names):
        drawn = ""
        for number, values in enumerate(shown.parts.values()):
            drawn += "#=+-"[number % 4] * round(width * values[index] / most) if most > 0 else ""
        lines.append(f"{label:<{name}}  {drawn:<{width}}  {totals[index]:.4g}")
    legend = ", ".join(f"{'#=+-'[number % 4]} {part}" for number, part in enumerate(shown.parts)) if len(shown.parts) > 1 else ""
    return "\n".join([*lines, f"{'':<{name}}  {unit}" + (f"; {legend}" if legend else "")])


def cells(figure: Figure, shown: Cells) -> str:
    """A sign for each cell, darker for more; of a fine grid every so many."""
    flat = [value for column in shown.value for value in column]
    low, high = min(flat, default=0.0), max(flat, default=0.0)
    columns = range(0, len(shown.value), max(1, math.ceil(len(shown.value) / WIDTH)))
    count = len(shown.value[0]) if shown.value else 0
    rows = range(0, count, 1 if shown.rows else max(1, math.ceil(count / HEIGHT)))
    names = [shown.rows[row] if shown.rows else f"{shown.y[row]:.3g}" for row in rows]
    wide = max((len(name) for name in names), default=0)
    lines = []
    for name, row in zip(names, rows, strict=True):
        signs = (SHADES[round((len(SHADES) - 1) * (shown.value[column][row] - low) / (high - low))] if high > low else " " for column in columns)
        lines.append(f"{name:>{wide}} |{''.join(signs)}|")
    if not shown.rows:
        lines.reverse()
    ends = f"{figure.x.title}: {shown.x[0]:.3g} to {shown.x[-1]:.3g}" if len(shown.x) else ""
    return "\n".join([*lines, f"{'':>{wide}}  {ends}; ' ' {low:.3g} to '@' {high:.3g}"])


def _scaled(values: Sequence[float], axis: Axis) -> list[float]:
    return [math.log10(value) if axis.log else float(value) for value in values]


def _ticks(values: Sequence[float]) -> tuple[list[float], list[str]]:
    """Whole powers of ten between the ends, and the ends themselves where there are few."""
    low, high = min(values), max(values)
    powers = [float(power) for power in range(math.ceil(low), math.floor(high) + 1)]
    found = powers if len(powers) > 1 else sorted({low, *powers, high})
    return found, [f"{10**value:.3g}" for value in found]


def curves(figure: Figure) -> str:
    """Lines and points in one frame."""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(WIDTH, HEIGHT)
    seen: tuple[list[float], list[float]] = ([], [])
    for one in figure.series:
        kept = [i for i, x in enumerate(one.x) if (x > 0 or not figure.x.log) and (one.y[i] > 0 or not figure.y.log)]
        if not kept:
            continue
        x, y = _scaled([one.x[i] for i in kept], figure.x), _scaled([one.y[i] for i in kept], figure.y)
        seen[0].extend(x)
        seen[1].extend(y)
        draw = plotext.plot if one.kind in ("line", "steps", "dashed") else plotext.scatter
        draw(x, y, label=one.name, marker=MARKS[one.kind])
    if not seen[0]:
        return "nothing to show"
    if figure.x.log:
        plotext.xticks(*_ticks(seen[0]))
    if figure.y.log:
        plotext.yticks(*_ticks(seen[1]))
    plotext.xlabel(figure.x.title)
    plotext.ylabel(figure.y.title)
    return "\n".join(line.rstrip() for line in plotext.uncolorize(plotext.build()).splitlines())
