"""The main of every service: configuration in, logs and metrics out, signals, and an end within the grace.

A service is one async function that runs until `service.stopping` is set:

    async def start(service: Service) -> None:
        bus = await Bus.connect(...)
        service.health["bus"] = lambda: bus.connected
        service.spawn(watch(bus))
        await service.stopping.wait()
        await bus.close()

    def main() -> None:
        sys.exit(run_service("master", start, config))
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from prometheus_client import Gauge, Histogram

from aegis_bus import errors, logs
from aegis_bus.config import Config
from aegis_bus.connection import Bus
from aegis_bus.http import HttpServer

log = logging.getLogger(__name__)

LAG = Histogram("aegis_loop_lag_seconds", "How late the event loop ran a timer", buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 30))
READY = Gauge("aegis_service_ready", "1 while all health checks of the service pass", ["service"])

EXIT_OK, EXIT_FAILED, EXIT_NOT_ALLOWED, EXIT_UNREACHABLE = 0, 1, 4, 5


class LoopLag:
    """Measures how late the event loop is. `last_at`: loop time of the last lag above `threshold` (-inf: none so far); `on_lag` is told of it."""

    def __init__(self, threshold: float = 1.0, interval: float = 0.5) -> None:
        self.threshold, self.interval = threshold, interval
        self.last_at = float("-inf")
        self.on_lag: Callable[[], None] = lambda: None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self.interval
            await asyncio.sleep(self.interval)
            lag = max(0.0, loop.time() - due)
            LAG.observe(lag)
            if lag > self.threshold:
                self.last_at = loop.time()
                log.warning("event loop was blocked (or this machine paused) for %.1f s", lag)
                self.on_lag()


class Service:
    """What `start` is given."""

    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        self.config = config
        self.stopping = asyncio.Event()
        """Set by SIGTERM, SIGINT or a failed task: finish what is begun, take nothing new, return."""
        self.health: dict[str, Callable[[], bool]] = {}
        """Named checks of `/healthz`."""
        self.lag = LoopLag()
        self.http_port = 0
        self.failure: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Run beside `start`. A task that raises ends the service (exit code 1); all are cancelled at the end."""
        task = asyncio.create_task(work, name=name or None)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=error)
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the service with exit code 1: whoever keeps it running starts it again."""
        self.failure = self.failure or error
        self.stopping.set()

    def checks(self) -> dict[str, bool]:
        result = {}
        for name, check in self.health.items():
            try:
                result[name] = bool(check())
            except Exception:
                log.exception("health check %s failed", name)
                result[name] = False
        result["running"] = not self.stopping.is_set()
        READY.labels(self.name).set(all(result.values()))
        return result

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


Start = Callable[[Service], Awaitable[None]]


async def require_suitable(bus: Bus, patience: float = 10.0) -> None:
    """E120 when the server is too old, or has no JetStream for this account, and that does not change within `patience` seconds (one that just
    starts has none yet). A server that is away, or does not let us ask, proves nothing: then the service starts, and waits as it always does."""
    deadline = time.monotonic() + patience
    while True:
        try:
            await bus.require_jetstream()
            return
        except errors.ServerUnsuitable:
            if time.monotonic() >= deadline:
                raise
        except errors.BusError as error:
            log.info("the server was not asked for JetStream: %s", error)
            return
        await asyncio.sleep(0.5)


async def serve(name: str, start: Start, config: Config) -> int:
    """Run `start` to its end and return the exit code.

    After the first signal it has `service.drainGrace` seconds; then, or at a second signal, it is cancelled.
    """
    service = Service(name, config)
    loop = asyncio.get_running_loop()
    hurry = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        log.info("%s: %s", number.name, "stopping at once" if service.stopping.is_set() else "stopping")
        (hurry if service.stopping.is_set() else service.stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    http = HttpServer(service.checks)
    await http.start(config.service.listen, config.service.port)
    service.http_port = http.port
    log.info("%s started: pid %d, http://%s:%d/metrics", name, os.getpid(), config.service.listen, http.port)
    service.spawn(service.lag.run(), "loop lag")
    main = asyncio.ensure_future(start(service))
    stop = asyncio.create_task(service.stopping.wait())
    try:
        await asyncio.wait([main, stop], return_when=asyncio.FIRST_COMPLETED)
        began = time.monotonic()
        if not main.done():
            rush = asyncio.create_task(hurry.wait())
            await asyncio.wait([main, rush], timeout=config.service.drain_grace, return_when=asyncio.FIRST_COMPLETED)
            rush.cancel()
        if not main.done():
            log.error("%s did not stop within %.1f s: cancelled", name, time.monotonic() - began)
            main.cancel()
            await asyncio.wait([main], timeout=2.0)
            return EXIT_FAILED
        return _exit_code(name, main, service)
    finally:
        stop.cancel()
        await service._cancel_tasks()
        await http.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        log.info("%s ended", name)


def _exit_code(name: str, main: asyncio.Future[None], service: Service) -> int:
    if main.cancelled():
        return EXIT_FAILED
    error = main.exception()
    if error is None:
        return EXIT_FAILED if service.failure is not None else EXIT_OK
    if isinstance(error, errors.BusError):
        log.error("%s: %s", name, error)
        if isinstance(error, errors.NameTaken):
            return EXIT_FAILED
        return EXIT_NOT_ALLOWED if isinstance(error, errors.NotAllowed | errors.CredentialsRefused) else EXIT_UNREACHABLE
    log.error("%s failed", name, exc_info=error)
    return EXIT_FAILED


def run_service(name: str, start: Start, config: Config) -> int:
    """Set up logging, run the service, return its exit code.

    0 ended in time, 1 failed or did not end within the grace, 4 not allowed, 5 bus unreachable.
    """
    logs.configure(name, config.logs.level, config.service.replica)
    try:
        return asyncio.run(serve(name, start, config))
    except OSError as error:
        log.error("%s: %s", name, error)
        return EXIT_FAILED
    finally:
        sys.stderr.flush()
