"""Messages and subscriptions of a `Bus`: a subscription belongs to the bus and moves from one connection to the next."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec
from nats.aio.msg import Msg as NatsMsg

from aegis_bus import errors, metrics
from aegis_bus.link import Headers, Link, headers_of

if TYPE_CHECKING:
    from aegis_bus.connection import Bus

log = logging.getLogger(__name__)

QUEUE = 65536
"""Messages a subscription holds for its handler before it drops (and counts) new ones."""


class Msg(msgspec.Struct, frozen=True):
    """A received core message."""

    subject: str
    data: bytes
    headers: Headers
    reply: str
    _bus: Bus
    _link: Link | None = None

    async def respond(self, data: bytes) -> bool:
        """Answer a request; False when there is nobody to answer or no connection.

        The right to answer belongs to the connection on which the request came: that one is used while it lives.
        """
        return bool(self.reply) and self._bus.core(self.reply, data, via=self._link)


Handler = Callable[[Msg], Awaitable[None]] | Callable[[Msg], None]
"""Runs in a task of the bus; a plain function is called as the message arrives, before the next is read, and must be short."""


class Subscription:
    """A core subscription that outlives connections.

    A handler that waits runs in tasks of the bus: one message after another, or `workers` side by side.
    A task is made when a message would have to wait for it, and stays.
    """

    def __init__(self, bus: Bus, subject: str, queue: str, handler: Handler, workers: int) -> None:
        self.subject = subject
        self.queue = queue
        self.refused: errors.NotAllowed | None = None
        """Set when a later connection may not subscribe any more."""
        self._bus = bus
        self._handler = handler
        self._inbox: asyncio.Queue[Msg] = asyncio.Queue(QUEUE)
        self._link: Link | None = None
        self._remote: Any = None
        self._workers = workers
        self._busy = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def _call(self, link: Link, msg: NatsMsg) -> None:
        try:
            self._handler(self._msg(link, msg))
        except Exception:
            self._failed()

    async def _on_msg(self, link: Link, msg: NatsMsg) -> None:
        try:
            self._inbox.put_nowait(self._msg(link, msg))
        except asyncio.QueueFull:
            metrics.SLOW.labels(self._bus.service).inc()
        if len(self._tasks) < self._workers and self._inbox.qsize() + self._busy > len(self._tasks):
            self._tasks.append(asyncio.create_task(self._run(), name=f"sub {self.subject}"))

    async def _run(self) -> None:
        while True:
            msg = await self._inbox.get()
            self._busy += 1
            try:
                await cast(Awaitable[None], self._handler(msg))
            except Exception:
                self._failed()
            finally:
                self._busy -= 1
                self._inbox.task_done()

    def _msg(self, link: Link, msg: NatsMsg) -> Msg:
        return Msg(msg.subject, bytes(msg.data), headers_of(msg), msg.reply, self._bus, link)

    def _failed(self) -> None:
        metrics.HANDLER_ERRORS.labels(self._bus.service).inc()
        log.exception("handler of %s failed", self.subject)

    async def attach(self, link: Link) -> None:
        """Subscribe on a new link, then leave the old one: nothing is missed between."""
        old, remote = self._link, self._remote
        on_msg = self._on_msg if inspect.iscoroutinefunction(self._handler) else self._call
        self._remote = await link.subscribe(self.subject, self.queue, functools.partial(on_msg, link))
        self._link, self.refused = link, None
        if old is not None:
            await old.drain(remote)

    async def detach(self) -> None:
        """Leave the bus; what has already arrived still goes to the handler."""
        self._bus._subs.discard(self)
        link, self._link = self._link, None
        if link is not None:
            await link.drain(self._remote)

    async def drain(self) -> None:
        """Nothing more arrives; return when what waits is handled."""
        await self.detach()
        await self._inbox.join()

    async def unsubscribe(self) -> None:
        """Stop: nothing more arrives; what waits is dropped."""
        self._workers = 0
        for task in self._tasks:
            task.cancel()
        await self.detach()
