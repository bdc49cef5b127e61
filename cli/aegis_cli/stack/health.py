"""Is a part of the stack well? Asked at its health page."""

from __future__ import annotations

import urllib.error
import urllib.request


def healthy(port: int) -> bool:
    """The health page of a service says yes."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
