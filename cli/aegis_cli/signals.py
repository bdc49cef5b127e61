"""Signals to a command that watches a job: Ctrl-C, SIGTERM and SIGHUP, as wishes to end. One that its caller had ignored (nohup) stays ignored."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import TracebackType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Listener = Callable[[signal.Signals, int], None]


def name_of(number: int) -> str:
    """As people call it."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


class Signals:
    """From `with` on they no longer end this process. `first` is the number of the first one (0: none), which gives the exit code 128+n.

    A listener gets the signal and how often the end was asked for: a hang-up asks once, however often it comes and whatever comes with it.
    """

    def __init__(self) -> None:
        self.first = 0
        self.asked = 0
        self._listeners: list[Listener] = []
        self._early: list[tuple[signal.Signals, int]] = []
        self._handled: list[signal.Signals] = []

    def __enter__(self) -> Signals:
        loop = asyncio.get_running_loop()
        self._handled = [number for number in NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in self._handled:
            loop.add_signal_handler(number, self._came, number)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        loop = asyncio.get_running_loop()
        for number in self._handled:
            loop.remove_signal_handler(number)

    def _came(self, number: signal.Signals) -> None:
        self.first = self.first or number
        self.asked = max(self.asked, 1) if number is signal.SIGHUP else self.asked + 1
        if not self._listeners:
            self._early.append((number, self.asked))
        for listener in tuple(self._listeners):
            listener(number, self.asked)

    @contextlib.contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Tell `listener`, also of what came before anybody listened."""
        self._listeners.append(listener)
        early, self._early = self._early, []
        for number, asked in early:
            listener(number, asked)
        try:
            yield
        finally:
            self._listeners.remove(listener)


def terminals() -> tuple[int, ...]:
    """Which of stdin, stdout and stderr are a terminal now."""
    return tuple(fd for fd in (0, 1, 2) if os.isatty(fd))


def leave(fds: tuple[int, ...]) -> None:
    """The terminal is gone, or will be: what is still written to it goes nowhere, instead of failing."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)
