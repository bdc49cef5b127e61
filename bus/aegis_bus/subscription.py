"""Messages and subscriptions of a `Bus`: a subscription belongs to the bus and moves from one connection to the next."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from nats.aio.msg import Msg as NatsMsg

from aegis_bus import errors, metrics
from aegis_bus.link import Headers, Link, as_reply

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


Handler = Callable[[Msg], Awaitable[None]]


class Subscription:
    """A core subscription that outlives connections. Its handler runs in tasks of the bus: one message after another, or `workers` side by side.

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

    async def _on_msg(self, link: Link, msg: NatsMsg) -> None:
        reply = as_reply(msg)
        try:
            self._inbox.put_nowait(Msg(msg.subject, reply.data, reply.headers, msg.reply, self._bus, link))
        except asyncio.QueueFull:
            metrics.SLOW.labels(self._bus.service).inc()
        if len(self._tasks) < self._workers and self._inbox.qsize() + self._busy > len(self._tasks):
            self._tasks.append(asyncio.create_task(self._run(), name=f"sub {self.subject}"))

    async def _run(self) -> None:
        while True:
            msg = await self._inbox.get()
            self._busy += 1
            try:
                await self._handler(msg)
            except Exception:
                metrics.HANDLER_ERRORS.labels(self._bus.service).inc()
                log.exception("handler of %s failed", self.subject)
            finally:
                self._busy -= 1
                self._inbox.task_done()

    async def attach(self, link: Link) -> None:
        """Subscribe on a new link, then leave the old one: nothing is missed between."""
        old, remote = self._link, self._remote
        self._remote = await link.subscribe(self.subject, self.queue, functools.partial(self._on_msg, link))
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
