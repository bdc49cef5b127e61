"""Virtual time: an event loop that jumps from one timer to the next, and processes that can be killed, stopped and continued between any two awaits.

Owns the clock of a simulated world. No thread, no file, no real sleep. Every callback belongs to the process in whose context it was made
(`PROCESS`); that of a killed process never runs again, that of a stopped one waits.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import sys
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec
import structlog

START = 1_800_000_000.0
"""Wall clock of the world at virtual time 0, seconds since 1970."""


class Process:
    """An operating system process of the world. `skew`: seconds by which its machine's wall clock is wrong."""

    def __init__(self, name: str, skew: float = 0.0) -> None:
        self.name = name
        self.skew = skew
        self.alive = True
        self.frozen = False
        self.backlog: list[Handle] = []
        self.steps = 0
        self.die_at_step = -1
        self.on_death: list[Callable[[], None]] = []
        self.cut_until = 0.0
        """Virtual time until which the network of its machine passes nothing."""

    def __repr__(self) -> str:
        return f"<{self.name}>"


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Handle(msgspec.Struct, eq=False):
    """A callback that waits: what `call_soon` and `call_at` return. (A Struct: thousands are made in every world.)"""

    callback: Callable[..., Any]
    args: tuple[Any, ...]
    context: Context
    _when: float
    gone: bool = False

    def cancel(self) -> None:
        self.gone = True

    def cancelled(self) -> bool:
        return self.gone

    def when(self) -> float:
        return self._when


class Loop(asyncio.AbstractEventLoop):
    """What tasks, futures and timeouts of asyncio ask of a loop, on virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.callbacks = 0
        self.errors: list[str] = []
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._far: dict[int, list[tuple[float, int, Handle]]] = {}
        """Timers from `_near` on, by their second: most are cancelled before it comes, and those never enter the heap."""
        self._near = 1.0
        self._n = 0
        self._stop = False
        self.create_future = functools.partial(asyncio.Future, loop=self)  # type: ignore[method-assign, assignment]
        self._graves: list[Handle] = []
        """Callbacks of dead processes: kept, so that no coroutine of theirs is closed (and cleans up) while the world goes on."""

    # --- what asyncio asks -------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(callback, args, context if context is not None else copy_context(), self.now)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.post(when, context if context is not None else copy_context(), callback, args)

    def post(self, when: float, context: Context, callback: Callable[..., Any], args: tuple[Any, ...]) -> Handle:
        """`call_at`, for those who know their context and do it thousands of times."""
        handle = Handle(callback, args, context, when)
        self._n += 1
        if when < self._near:
            heappush(self._timers, (when, self._n, handle))
        else:
            self._far.setdefault(int(when), []).append((when, self._n, handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        when = self.now + delay if delay > 0.0 else self.now
        handle = Handle(callback, args, context if context is not None else copy_context(), when)
        self._n += 1
        if when < self._near:
            heappush(self._timers, (when, self._n, handle))
        else:
            self._far.setdefault(int(when), []).append((when, self._n, handle))
        return handle

    def _approach(self) -> bool:
        """The next second that has timers comes into the heap; False when there is none."""
        if not self._far:
            return False
        second = min(self._far)
        self._near = second + 1.0
        self._timers += [timer for timer in self._far.pop(second) if not timer[2].gone]
        heapify(self._timers)
        return True

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    get_debug = bool  # type: ignore[assignment]
    """False, as fast as it goes: asked for each future."""

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            self.errors.append(f"{context.get('message')}: {type(error).__name__}: {error}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def _timer_handle_cancelled(self, handle: Any) -> None:
        pass

    # --- the world's side ----------------------------------------------------------------------------------------------------------

    def spawn(self, process: Process | None, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """A task of `process`; everything it makes belongs to that process too."""
        context = copy_context()
        context.run(PROCESS.set, process)
        return context.run(self.create_task, work, name=name, context=context)

    def context_of(self, process: Process | None) -> Context:
        context = copy_context()
        context.run(PROCESS.set, process)
        return context

    def stop(self) -> None:
        self._stop = True

    def run(self, until: float = float("inf")) -> None:
        """Run callbacks in order of time until `stop`, until nothing is left to do, or until virtual time `until`."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        self._stop = False
        ready, timers, process_in = self._ready, self._timers, PROCESS
        try:
            while not self._stop:
                if ready:
                    handle = ready.popleft()
                    if handle.gone:
                        continue
                elif timers:
                    when, _, handle = timers[0]
                    if when > until and not handle.gone:
                        self.now = until
                        return
                    heappop(timers)
                    if handle.gone:
                        continue
                    self.now = when if when > self.now else self.now
                elif self._approach():
                    continue
                else:
                    return
                context = handle.context
                process = context.get(process_in)
                if process is not None:
                    if not process.alive:
                        self._graves.append(handle)
                        continue
                    if process.frozen:
                        process.backlog.append(handle)
                        continue
                    process.steps += 1
                    if process.steps == process.die_at_step:
                        kill(process)
                        self._graves.append(handle)
                        continue
                self.callbacks += 1
                try:
                    context.run(handle.callback, *handle.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"callback {handle.callback}", "exception": error})
        finally:
            events._set_running_loop(before)

    def run_until_complete(self, future: Any) -> Any:
        """As asyncio's, on virtual time; RuntimeError when nothing is left to do and it is not done."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            task = asyncio.ensure_future(future, loop=self)
            task.add_done_callback(lambda _: self.stop())
        finally:
            events._set_running_loop(before)
        self.run()
        if not task.done():
            raise RuntimeError("nothing is left to do, and it is not done")
        return task.result()

    def clear(self) -> None:
        """Forget everything that waits: the world is over."""
        self._quietly(lambda: None)

    def collect(self) -> None:
        """Free what worlds left, without letting the coroutines of their dead say anything."""
        self._quietly(gc.collect)

    def _quietly(self, work: Callable[[], Any]) -> None:
        before, hook = events._get_running_loop(), sys.unraisablehook
        events._set_running_loop(self)
        sys.unraisablehook = lambda _: None
        logs = structlog.get_config()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        logging.disable(logging.CRITICAL)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for waiting in (self._ready, self._timers, self._far, self._graves):
                    waiting.clear()
                work()
                self._ready.clear()
        finally:
            logging.disable(logging.NOTSET)
            structlog.configure(**logs)
            sys.unraisablehook = hook
            events._set_running_loop(before)

    def resume(self, process: Process) -> None:
        """SIGCONT: everything that came meanwhile, in its order."""
        process.frozen = False
        self._ready.extend(process.backlog)
        process.backlog = []


def kill(process: Process) -> None:
    """SIGKILL: nothing of it runs any more, no cleanup either."""
    if not process.alive:
        return
    process.alive = False
    for told in process.on_death:
        told()
