"""Two pictures as SVG text: bandwidth of one job against the bit error rate of a link (as figure 12a), and of many jobs at once, sorted (12b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 360, 70, 40, 60
COLORS = ("#c44e52", "#dd8452", "#4c72b0", "#55a868", "#8172b3")


def bars(title: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], top: float) -> str:
    """Groups of bars: one group per label, one bar per series. `top`: the value of a full bar (Gbit/s)."""
    slot = (WIDTH - LEFT - 20) / max(len(labels), 1)
    width = 0.8 * slot / max(len(series), 1)
    parts = frame(title, top, [*series])
    for n, label in enumerate(labels):
        parts.append(text(LEFT + slot * (n + 0.5), HEIGHT - BOTTOM + 18, label, "middle"))
        for k, values in enumerate(series.values()):
            x, y = LEFT + slot * (n + 0.1) + width * k, height(values[n], top)
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" fill="{COLORS[k % len(COLORS)]}">'
                f"<title>{escape(label)}: {values[n]:.0f} Gbit/s</title></rect>"
            )
    return "\n".join([*parts, "</svg>"])


def curves(title: str, series: Mapping[str, Sequence[float]], top: float) -> str:
    """Each series sorted from its worst group to its best, as a line."""
    parts = frame(title, top, [*series])
    parts.append(text(LEFT + (WIDTH - LEFT - 20) / 2, HEIGHT - BOTTOM + 18, "groups, worst first", "middle"))
    for k, values in enumerate(series.values()):
        step = (WIDTH - LEFT - 20) / max(len(values) - 1, 1)
        points = " ".join(f"{LEFT + step * n:.1f},{height(value, top):.1f}" for n, value in enumerate(sorted(values)))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[k % len(COLORS)]}" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>"])


def frame(title: str, top: float, names: Sequence[str]) -> list[str]:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 20, title, "start"),
    ]
    for tenth in range(0, 5):
        value = top * tenth / 4
        y = height(value, top)
        parts += [f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 20}" y2="{y:.1f}" stroke="#ddd"/>', text(LEFT - 6, y + 4, f"{value:.0f}", "end")]
    parts.append(text(14, TOP - 8, "Gbit/s per host", "start"))
    for k, name in enumerate(names):
        x = LEFT + 150 * k
        parts += [
            f'<rect x="{x}" y="{HEIGHT - 22}" width="12" height="12" fill="{COLORS[k % len(COLORS)]}"/>',
            text(x + 18, HEIGHT - 12, name, "start"),
        ]
    return parts


def height(value: float, top: float) -> float:
    return TOP + (HEIGHT - BOTTOM - TOP) * (1 - min(max(value, 0.0) / top, 1.0))


def text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
