"""Times as text: the one form in which programs read them. On the wire a time is ms since 1970, except in `JobEvent.time`."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(ms: int) -> str:
    """Milliseconds since 1970 -> `2026-11-29T20:15:00.123Z`."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(text: str) -> float | None:
    """RFC 3339 -> seconds since 1970; None where it is no time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
