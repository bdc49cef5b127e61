"""Named points at which a test may kill this process: between "decided" and "done" nothing may be lost or happen twice.

Does nothing unless AEGIS_CRASH_AT names the point: `master.before-commit`, or `master.before-commit:3` for the third time it is passed.
Several points are separated by commas; the first one reached ends the process as kill -9 would.
"""

from __future__ import annotations

import os
import signal


def _parse(text: str) -> dict[str, int]:
    points: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, times = part.partition(":")
        points[name] = int(times) if times else 1
    return points


_left = _parse(os.environ.get("AEGIS_CRASH_AT", ""))


def crashpoint(name: str) -> None:
    """Die here, now, without cleaning up, if AEGIS_CRASH_AT says so."""
    if not _left or name not in _left:
        return
    _left[name] -= 1
    if _left[name] <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
