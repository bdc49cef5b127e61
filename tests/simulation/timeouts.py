"""`asyncio.timeout` with less to it: the same contract (see its documentation), without coroutines of its own. Worlds enter thousands of them."""

from __future__ import annotations

import asyncio
from asyncio import events, tasks
from types import TracebackType
from typing import Any

from simulation.loop import Loop

_DONE: asyncio.Future[None] = Loop().create_future()
"""An awaitable that has nothing to wait for."""
_DONE.set_result(None)


class Timeout:
    """The part of `asyncio.Timeout` that Aegis uses: entered once, left once."""

    __slots__ = ("_cancelling", "_delay", "_expired", "_task", "_timer")

    def __init__(self, delay: float | None) -> None:
        self._delay = delay
        self._expired = False
        self._timer: Any = None

    def __aenter__(self) -> asyncio.Future[None]:
        loop = events._get_running_loop()
        assert loop is not None
        task = tasks._current_tasks.get(loop)  # type: ignore[attr-defined]
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        if self._delay is not None:
            self._timer = loop.call_later(self._delay, self._expire) if self._delay > 0 else loop.call_soon(self._expire)
        return _DONE

    def _expire(self) -> None:
        self._timer = None
        self._expired = True
        self._task.cancel()

    def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> asyncio.Future[None]:
        if self._timer is not None:
            self._timer.cancel()
        elif self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            # Nobody else has asked to cancel: it is the time that is up.
            raise TimeoutError from error
        return _DONE


timeout = Timeout
"""As `asyncio.timeout`."""
