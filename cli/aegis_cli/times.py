"""Times as people and as programs read them: the one rule.

People: local time of the machine on which the command runs. A line of a running story has the time of day; where the day matters, date and offset
stand too. Programs (-o json, -o yaml, --report): RFC 3339 in UTC with milliseconds, whatever the field is called on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from aegis_proto.times import rfc3339

MILLISECONDS = frozenset({"checkpointAt", "createdAt", "phaseSince", "since", "swept", "timeStamp", "TimeStamp", "ts", "until"})
"""Fields of the answers that hold ms since 1970; 0 says that there is no such time."""


def of_text(text: str) -> float | None:
    """RFC 3339 -> seconds since 1970; None for what is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def clock(seconds: float) -> str:
    """Seconds since 1970 -> local time of day, `21:15:00`."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")


def clock_of(text: str) -> str:
    """RFC 3339 -> local time of day; dashes for what is no time."""
    seconds = of_text(text)
    return "--:--:--" if seconds is None else clock(seconds)


def moment(seconds: float) -> str:
    """Seconds since 1970 -> `2026-11-29 21:15:00+01:00`: local, with its offset."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")


def moment_of(text: str) -> str:
    """RFC 3339 -> as `moment`; what is no time stays as it is."""
    seconds = of_text(text)
    return text if seconds is None else moment(seconds)


def for_programs(body: Any) -> Any:
    """Builtins with every known field of milliseconds as RFC 3339, null where there is no such time."""
    if isinstance(body, Mapping):
        return {
            key: (rfc3339(value) if value else None) if key in MILLISECONDS and type(value) is int else for_programs(value)
            for key, value in body.items()
        }
    return [for_programs(item) for item in body] if isinstance(body, list | tuple) else body
