"""A picture as values: axes, curves, bars, cells. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["line", "steps", "dashed", "points", "crosses"]


@dataclass(frozen=True)
class Axis:
    """`log`: logarithmic; only values above 0 are drawn then."""

    title: str
    log: bool = False


@dataclass(frozen=True)
class Series:
    """A curve or points; `low` and `high` are the ends of error bars, `labels` what a point is called."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Kind = "line"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, one for each name; the parts of one lie behind each other."""

    names: Sequence[str]
    parts: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Cells:
    """`value[i][j]` between x[i] and x[i+1], y[j] and y[j+1]. `rows`: names of the rows, then y is not used. `steps`: bands of the scale."""

    x: Sequence[float]
    value: Sequence[Sequence[float]]
    y: Sequence[float] = ()
    rows: Sequence[str] = ()
    steps: Sequence[float] = ()


@dataclass(frozen=True)
class Figure:
    """One picture."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series] = ()
    bars: Bars | None = None
    cells: Cells | None = None
