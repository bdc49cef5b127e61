"""One activity at a time: a new one begins when the one before has let go, and that one is told to at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Activity:
    """`failed(error)` is called when the work of the present activity raises; a cancelled one says nothing."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    def do(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Make `work` the activity."""
        before = self._task
        if before is not None:
            before.cancel()

        async def activity() -> None:
            cancelled = False
            while before is not None and not before.done():
                try:
                    await asyncio.wait((before,))
                except asyncio.CancelledError:
                    cancelled = True  # the next one waits for us, and we for the one before
            if cancelled:
                raise asyncio.CancelledError
            try:
                await work()
            except Exception as error:
                log.exception("the order could not be carried out")
                self._failed(error)

        self._task = asyncio.create_task(activity())
