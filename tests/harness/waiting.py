"""Wait for a condition, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any


async def until(condition: Callable[[], Any], timeout: float = 10.0, what: str = "") -> Any:
    """Return the first true value of `condition()` (plain or async); AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or condition}; last value {value!r}")
        await asyncio.sleep(0.01)


def until_sync(condition: Callable[[], Any], timeout: float = 10.0, what: str = "") -> Any:
    """The same outside of an event loop."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or condition}; last value {value!r}")
        time.sleep(0.01)
    return value
