"""Following a job until it ends: asks the master, brings the model forward, shows it live or line by line. Used by `run`, `attach` and `wait`.

A bus that is away is told and waited for: the training goes on without us.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Protocol

from aegis_bus.errors import BusError
from aegis_proto.api import JobDetail, JobRequest
from aegis_proto.messages import JobEvent
from aegis_proto.phases import Phase
from rich.console import Console
from rich.live import Live
from rich.text import Text

from aegis_cli import model as models
from aegis_cli import screen, why
from aegis_cli.client import Client
from aegis_cli.errors import CliError
from aegis_cli.output import Output
from aegis_cli.signals import Signals, leave, terminals
from aegis_cli.stack.client import lock_free
from aegis_cli.stack.output import LogLine, WorkerOutput, in_time_order

ASK_EVERY = 0.25
HURRIED = 5.0
"""Seconds that the processes of a job that was killed may take to be seen gone."""
PENDING_NOTE = 30.0
"""Seconds of Pending after which the reason is printed unasked."""


class Surface(Protocol):
    """Where a followed job is shown."""

    def show(self, model: models.Model) -> None: ...
    def event(self, event: JobEvent) -> None: ...
    def line(self, line: LogLine) -> None: ...
    def note(self, text: str) -> None: ...
    def hang_up(self) -> None: ...
    def close(self) -> None: ...


class Lines:
    """For pipes and CI: workers' output on stdout, one line per event on stderr."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.terminals = terminals()

    def show(self, model: models.Model) -> None:
        pass

    def event(self, event: JobEvent) -> None:
        self.out.note(screen.plain(event))

    def line(self, line: LogLine) -> None:
        if not self.out.machine:
            print(line.text, flush=True)

    def note(self, text: str) -> None:
        self.out.note(text)

    def hang_up(self) -> None:
        leave(self.terminals)

    def close(self) -> None:
        pass


class Silent(Lines):
    """For `wait`: notes only."""

    def event(self, event: JobEvent) -> None:
        pass

    def line(self, line: LogLine) -> None:
        pass


class Terminal:
    """The live screen at the bottom of the terminal; what happened scrolls away above it and stays as the record."""

    def __init__(self, out: Output) -> None:
        self.console: Console = out.out
        self.terminals = terminals()
        self.live = Live(console=self.console, auto_refresh=False, transient=False, redirect_stderr=False, redirect_stdout=False)
        self.live.start()

    def show(self, model: models.Model) -> None:
        width, height = self.console.size
        self.live.update(screen.view(model, width, max(min(height - 1, 24), 3)), refresh=True)

    def event(self, event: JobEvent) -> None:
        pass  # the screen has it

    def line(self, line: LogLine) -> None:
        self.console.print(Text(line.text), soft_wrap=True)

    def note(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):  # where it is still there, the cursor comes back
            self.live.stop()
        leave(self.terminals)

    def close(self) -> None:
        self.live.stop()


def surface(out: Output) -> Surface:
    """Live on a terminal; lines without one, with CI set, or for programs."""
    if sys.stdout.isatty() and not os.environ.get("CI") and not out.machine and not out.quiet:
        return Terminal(out)
    return Lines(out)


class Follower:
    """One followed job. `on_signal(number, n)` is called when the end is asked for, the n-th time; what it returns is shown. None: a signal ends the
    following."""

    def __init__(
        self,
        client: Client,
        job: str,
        shown: Surface,
        output: WorkerOutput | None = None,
        *,
        signals: Signals,
        verbose: bool = False,
        keys: str = "",
    ) -> None:
        self.client, self.job, self.shown, self.output, self.verbose = client, job, shown, output, verbose
        self.signals = signals
        self.model = models.Model(job, keys=keys, now=time.time())
        self.detached = False
        self._after = 0
        self._pending_told = False
        self._away = False
        self._handlers: set[asyncio.Task[None]] = set()

    async def until(
        self, done: Callable[[models.Model], bool], on_signal: Callable[[int, int], object] | None = None, timeout: float | None = None
    ) -> models.Model:
        """Follow until `done(model)`, or until detached. E119 after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        deadline = None if timeout is None else loop.time() + timeout

        def signalled(number: signal.Signals, asked: int) -> None:
            if number is signal.SIGHUP:
                self.shown.hang_up()
            if on_signal is None:
                self.detached = True
                woken.set()
                return
            task = asyncio.ensure_future(self._handle(on_signal, number, asked))
            self._handlers.add(task)
            task.add_done_callback(self._handlers.discard)

        with self.signals.heard_by(signalled):
            while True:
                await self._step()
                if self.detached or done(self.model):
                    break
                if deadline is not None and loop.time() > deadline:
                    raise CliError("E119", f"{self.job}: still {self.model.phase} after {timeout:g} s")
                try:
                    async with asyncio.timeout(ASK_EVERY):
                        await woken.wait()
                except TimeoutError:
                    pass
            if self.model.terminal and not self.detached:
                await self._last_words()
            return self.model

    async def settle(self, timeout: float, on_hurry: Callable[[], object]) -> None:
        """After the end: until the node daemons say that the workers are gone, so that a stop keeps its grace; at most `timeout` seconds.

        When the end is asked for once more, `on_hurry` is called, and the wait goes on for a moment.
        """
        loop = asyncio.get_running_loop()
        woken, deadline = asyncio.Event(), loop.time() + timeout

        def signalled(number: signal.Signals, asked: int) -> None:
            nonlocal deadline
            if number is signal.SIGHUP:
                self.shown.hang_up()
            if asked > 1:
                on_hurry()
                deadline = min(deadline, loop.time() + HURRIED)
                woken.set()

        with self.signals.heard_by(signalled):
            while loop.time() < deadline:
                self._drain()
                try:
                    nodes = await self.client.nodes()
                except (BusError, CliError):
                    break
                if not any(slot.job == self.job and slot.state == "running" for node in nodes for slot in node.slots):
                    break
                woken.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), ASK_EVERY)
        self._drain()

    async def _handle(self, on_signal: Callable[[int, int], object], number: int, asked: int) -> None:
        try:
            answer = on_signal(number, asked)
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer:
                self.shown.note(str(answer))
        except (BusError, CliError) as error:
            self.shown.note(str(error))

    async def _step(self) -> None:
        now = time.time()
        try:
            detail = await self.client.query("job", JobRequest(job=self.job), JobDetail)
            page = await self.client.events(self.job, self._after)
        except (BusError, CliError) as error:
            if isinstance(error, CliError) and error.code in ("E103", "E104", "E107"):
                raise
            if not self._away:
                self.shown.note(f"no answer from the bus ({error}); the training goes on, and so does this command when it is back")
            self._away = True
            self.model = models.at(self.model, now, "the bus does not answer: what you see is old; the training goes on")
        else:
            self._away = False
            self._after = page.seq
            self.model = models.at(models.with_detail(self.model, detail, now), now, "")
            for stored in page.items:
                fresh = models.with_event(self.model, stored.event)
                if fresh is not self.model:
                    self.model = fresh
                    self.shown.event(stored.event)
            await self._explain_pending(now)
        self._drain()
        self.shown.show(self.model)
        if self.output is not None and lock_free(self.output.base):
            raise CliError("E123", f"the stack of this machine has ended, and {self.job} with it (aegis down, or its keeper was killed)")

    async def _explain_pending(self, now: float) -> None:
        detail = self.model.detail
        if detail is None or self.model.phase is not Phase.PENDING or now - detail.summary.createdAt / 1000 < PENDING_NOTE:
            return
        try:
            pending = await self.client.pending(self.job)
        except (BusError, CliError):
            pending = None
        reason = why.waiting(detail, pending) or "no reason known: aegis status"
        self.model = models.at(self.model, now, f"Pending: {reason}")
        if not self._pending_told:
            self._pending_told = True
            self.shown.note(f"still Pending after {PENDING_NOTE:.0f} s: {reason}; next: aegis job why {self.job}")

    def _drain(self) -> None:
        if self.output is not None:
            for line in in_time_order(self.output.workers()):
                if line.incarnation >= 0 or self.verbose:
                    self.shown.line(line)

    async def _last_words(self) -> None:
        """What the workers wrote at the very end, and the events that came with it: until they say the end too, at most 2 s."""
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            await self._step()
            if self.model.events and Phase(self.model.events[-1].phase).terminal:
                return
            await asyncio.sleep(0.1)
