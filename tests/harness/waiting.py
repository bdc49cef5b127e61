"""Wait for a condition, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


def _text(timeout: float, what: str | Callable[[], str], value: object) -> str:
    return f"not within {timeout} s: {what if isinstance(what, str) else what()}; last value {value!r}"


async def until(condition: Callable[[], Any], timeout: float = 10.0, what: str | Callable[[], str] = "") -> Any:
    """Return the first true value of `condition()` (plain or async); AssertionError after `timeout` seconds. `what`: said then, asked then."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(_text(timeout, what or str(condition), value))
        await asyncio.sleep(0.01)


def until_sync(condition: Callable[[], Any], timeout: float = 10.0, what: str | Callable[[], str] = "") -> Any:
    """The same outside of an event loop."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_text(timeout, what or str(condition), value))
        time.sleep(0.01)
    return value
