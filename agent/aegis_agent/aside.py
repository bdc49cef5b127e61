"""Work that may never return, on a thread of its own that nobody waits for: not the event loop, and not the end of the process.

A file system or a driver that is gone holds its caller for ever; the threads of an executor are joined at the end, these are not.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def aside(name: str, work: Callable[[], T], seconds: float | None = None) -> T:
    """What `work` gives, or raises; TimeoutError when it has not ended within `seconds` (None: any time): then it goes on by itself, and is
    forgotten."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if told.done():
            return
        if error is not None:
            told.set_exception(error)
        else:
            told.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, problem = None, None
        try:
            result = work()
        except BaseException as error:
            problem = error
        try:
            loop.call_soon_threadsafe(tell, result, problem)
        except RuntimeError:
            pass  # the loop has ended

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wait_for(told, seconds)
