"""Ages and durations, as people read them."""

from __future__ import annotations


def age(value: float) -> str:
    """Seconds -> `44s`, `6m`, `3h12m`, `2d4h`: at most two units."""
    whole = int(max(value, 0))
    for unit, size, small, small_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60)):
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size}{unit}" + (f"{rest}{small}" if rest else "")
    return f"{whole // 60}m" if whole >= 60 else f"{whole}s"


def clock(value: float) -> str:
    """Seconds -> `00:41:07`."""
    whole = int(max(value, 0))
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
