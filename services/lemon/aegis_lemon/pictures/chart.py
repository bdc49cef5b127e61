"""Figures as a page that needs nothing from the net, and as PNG: Vega-Lite, drawn by vl-convert, without a browser. Pure: values in, bytes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

import vl_convert

from .figure import Axis, Bars, Cells, Figure, Series

INK, FLAG, MUTED = "#31688e", "#d1495b", "#9aa5b1"
COLORS = (INK, FLAG, "#edae49", "#66a182", "#8d96a3", "#6d597a", "#2e4057")
WIDTH, HEIGHT, ROW = 420, 260, 16
"""Pixels; ROW is the height of a row that has a name."""
Spec = dict[str, Any]


def _axis(field: str, axis: Axis, **more: Any) -> Spec:
    scale = {"type": "log", "nice": False} if axis.log else {"zero": False}
    return {"field": field, "type": "quantitative", "title": axis.title, "scale": scale, **more}


def _color(name: str, names: Sequence[str]) -> Spec:
    scale = {"domain": list(names), "range": [COLORS[index % len(COLORS)] for index in range(len(names))]}
    return {"datum": name, "type": "nominal", "scale": scale, "legend": {"title": None, "orient": "bottom"} if len(names) > 1 else None}


def _series(figure: Figure, one: Series) -> list[Spec]:
    shown: list[Spec] = [
        {
            "x": float(x),
            "y": float(one.y[index]),
        }
        | ({"low": float(one.low[index]), "high": float(one.high[index])} if one.low else {})
        | ({"label": one.labels[index]} if one.labels else {})
        for index, x in enumerate(one.x)
        if (x > 0 or not figure.x.log) and (one.y[index] > 0 or not figure.y.log)
    ]
    marks: dict[str, Spec] = {
        "line": {"type": "line"},
        "steps": {"type": "line", "interpolate": "step-after"},
        "dashed": {"type": "line", "strokeDash": [6, 4]},
        "points": {"type": "point", "filled": True, "size": 50},
        "crosses": {"type": "point", "shape": "cross", "size": 60, "angle": 45, "filled": True},
    }
    tips = [{"field": name, "type": "nominal" if name == "label" else "quantitative"} for name in ("label", "x", "y") if shown and name in shown[0]]
    encoding: Spec = {
        "x": _axis("x", figure.x),
        "y": _axis("y", figure.y),
        "color": _color(one.name, [each.name for each in figure.series]),
        "tooltip": tips,
    }
    layers: list[Spec] = []
    if one.low:
        ends = {**encoding, "y": {**_axis("low", figure.y), "title": figure.y.title}, "y2": {"field": "high"}}
        layers.append({"data": {"values": shown}, "mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": ends})
    return [*layers, {"data": {"values": shown}, "mark": marks[one.kind], "encoding": encoding}]


def _bars(figure: Figure, bars: Bars) -> list[Spec]:
    rows = [{"name": name, "part": part, "value": float(values[i])} for part, values in bars.parts.items() for i, name in enumerate(bars.names)]
    parts = list(bars.parts)
    encoding = {
        "y": {"field": "name", "type": "nominal", "sort": list(bars.names), "title": figure.y.title or None},
        "x": {"field": "value", "type": "quantitative", "title": figure.x.title, "stack": "zero"},
        "color": {
            "field": "part",
            "type": "nominal",
            "scale": {"domain": parts, "range": [COLORS[index % len(COLORS)] for index in range(len(parts))]},
            "legend": {"title": None, "orient": "bottom"} if len(parts) > 1 else None,
        },
        "tooltip": [{"field": name, "type": "nominal" if name != "value" else "quantitative"} for name in ("name", "part", "value")],
    }
    return [{"data": {"values": rows}, "mark": {"type": "bar"}, "encoding": encoding}]


def _cells(figure: Figure, cells: Cells) -> list[Spec]:
    rows = []
    for i, column in enumerate(cells.value):
        for j, value in enumerate(column):
            place = {"row": cells.rows[j]} if cells.rows else {"y": float(cells.y[j]), "y2": float(cells.y[j + 1])}
            rows.append({"x": float(cells.x[i]), "x2": float(cells.x[i + 1]), "value": float(value), **place})
    scale: Spec = {"type": "threshold", "domain": list(cells.steps), "scheme": "viridis"} if cells.steps else {"range": ["#f4f5f7", "#f2c57c", FLAG]}
    y: Spec = {"field": "row", "type": "nominal", "sort": list(cells.rows), "title": figure.y.title or None} if cells.rows else _axis("y", figure.y)
    encoding = {
        "x": _axis("x", figure.x),
        "x2": {"field": "x2"},
        "y": y,
        **({} if cells.rows else {"y2": {"field": "y2"}}),
        "color": {"field": "value", "type": "quantitative", "scale": scale, "title": None},
        "tooltip": [{"field": "value", "type": "quantitative", "format": ".3f"}],
    }
    return [{"data": {"values": rows}, "mark": {"type": "rect"}, "encoding": encoding}]


def spec(figure: Figure) -> Spec:
    """One figure as Vega-Lite."""
    layers = [
        *(_cells(figure, figure.cells) if figure.cells is not None else ()),
        *(_bars(figure, figure.bars) if figure.bars is not None else ()),
        *(layer for one in figure.series for layer in _series(figure, one)),
    ]
    named = len(figure.cells.rows) if figure.cells is not None else 2 * len(figure.bars.names) if figure.bars is not None else 0
    return {
        "title": {"text": figure.title, "anchor": "start", "limit": 2 * WIDTH},
        "width": WIDTH,
        "height": max(60, named * ROW) if named else HEIGHT,
        "layer": layers,
    }


def together(figures: Sequence[Figure], columns: int = 2) -> Spec:
    """All of them side by side, scales and colours each its own."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "config": {"font": "sans-serif", "view": {"stroke": MUTED}},
        "columns": columns,
        "concat": [spec(figure) for figure in figures],
        "resolve": {"scale": {"color": "independent", "x": "independent", "y": "independent"}},
    }


def png(figures: Sequence[Figure]) -> bytes:
    """One picture with all of them."""
    return vl_convert.vegalite_to_png(together(figures), scale=1.5)


def page(title: str, figures: Sequence[Figure]) -> str:
    """One HTML page with the scripts inside."""
    script = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    style = "body{font-family:system-ui,sans-serif;max-width:1280px;margin:2em auto}"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style><script>{script}</script>'
    body = json.dumps(together(figures)).replace("</", "<\\/")
    draw = f'<script>vegaEmbed("#pictures", {body}, {{"actions": true}});</script>'
    return f'<!doctype html><html lang=en><head>{head}</head><body><h1>{escape(title)}</h1><div id="pictures"></div>{draw}</body></html>\n'
