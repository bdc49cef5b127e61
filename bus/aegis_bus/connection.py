"""The verbs of the road: core messages, requests, and JetStream's publish, batch and reads, on a connection that is kept up (`supervisor`).

A writer always learns one of three things: done (a PubAck), not done (`Rejected`, `NotAllowed`, `Unreachable`), unknown (`UnknownResult`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from aegis_bus import errors, jetstream, metrics
from aegis_bus.jetstream import PubAck, Stored
from aegis_bus.link import Headers, Link, LinkLost, Reply
from aegis_bus.subscription import Handler, Msg, Subscription
from aegis_bus.supervisor import Supervisor

__all__ = ["Bus", "Handler", "Msg", "PubAck", "Stored", "Subscription"]

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_CORE = 4096
"""Core messages that may wait for the socket."""


class Bus(Supervisor):
    """A connection and what can be said over it. Made by `connect`."""

    # --- core messages ---------------------------------------------------------------------------------------------------------

    def core(self, subject: str, data: bytes, reply: str = "", via: Link | None = None) -> bool:
        """Core publish, at most once. False (and dropped) when not connected, too large, or too many wait for the socket."""
        link = via if via is not None and via.alive else self._link
        if link is None or not link.alive or len(data) > self._payload_limit(link) or len(self._core) >= MAX_CORE:
            metrics.DROPPED.labels(self.service).inc()
            return False

        async def send() -> None:
            try:
                await link.send(subject, data, reply=reply)
            except (LinkLost, ValueError) as error:
                metrics.DROPPED.labels(self.service).inc()
                log.debug("core message on %s dropped: %s", subject, error)

        task = asyncio.create_task(send())
        self._core.add(task)
        task.add_done_callback(self._core.discard)
        return True

    async def request(self, subject: str, data: bytes, timeout: float = 5.0) -> bytes:
        """Core request. `Unreachable` when nobody listens, `NotAllowed`, `UnknownResult` when no answer came in time."""
        return (await self.call(subject, data, timeout=timeout)).data

    async def subscribe(self, subject: str, handler: Handler, queue: str = "", workers: int = 1, timeout: float = 5.0) -> Subscription:
        """Core subscription that survives reconnects. `NotAllowed` when the right is missing, `Unreachable` without a connection in time.

        What is published while there is no connection is missed; around a renewal a message may come twice (not in a queue group).
        """
        if workers > 1 and not inspect.iscoroutinefunction(handler):
            raise TypeError(f"the handler of {subject} is called as messages arrive: it has no workers")
        deadline = time.monotonic() + timeout
        sub = Subscription(self, subject, queue, handler, workers)
        self._subs.add(sub)
        try:
            while True:
                await self.wait_connected(max(0.0, deadline - time.monotonic()))
                try:
                    await sub.attach(cast(Link, self._link))
                    return sub
                except LinkLost:
                    if time.monotonic() >= deadline:
                        raise self._why_not() from None
        except BaseException:
            await sub.unsubscribe()
            raise

    # --- calls over the present link -----------------------------------------------------------------------------------------

    async def call(self, subject: str, data: bytes, headers: Headers | None = None, timeout: float = 5.0, over: int | None = None) -> Reply:
        """One request, one answer; waits for a connection within `timeout`. Errors as `request`; no second try.

        `over`: only over the connection of this `generation`, else `Unreachable` and nothing is sent.
        """
        return await self._on_link(subject, timeout, lambda link, left: self.single(link, subject, data, headers, left), over)

    async def call_many(self, subject: str, data: bytes, timeout: float = 5.0) -> list[Reply]:
        """One request, many answers up to a status (Direct Get of several)."""

        return await self._on_link(subject, timeout, lambda link, left: link.call_many(subject, data, left))

    async def single(self, link: Link, subject: str, data: bytes, headers: Headers | None, timeout: float) -> Reply:
        """One request over this very link."""
        self.check_size(link, subject, data, headers)
        reply = await link.call(subject, data, headers, timeout)
        if reply.status == "503":
            raise errors.Unreachable(f"E101 nobody answers on {subject} (no such service or stream, or it is just starting)")
        return reply

    def check_size(self, link: Link, subject: str, data: bytes, headers: Headers | None) -> None:
        """`Rejected`, before anything is sent, when the server would close the connection for the size of this message."""
        size = len(data) + 14
        if headers:
            size += sum([len(key) + len(value) + 4 for key, value in headers.items()])
        if size > self._payload_limit(link):
            raise errors.Rejected(f"{subject}: {size} bytes, the bus takes {self._payload_limit(link)}; not sent")

    async def present_link(self, subject: str, timeout: float, over: int | None) -> Link:
        """The connection as it is, after waiting for one; `Unreachable` when it is not the one of generation `over`."""
        if not self.connected:
            await self.wait_connected(timeout)
        if over is not None and self.generation != over:
            raise errors.Unreachable(f"E101 {subject}: meant for connection {over}, this is {self.generation}; not sent")
        return cast(Link, self._link)

    async def _on_link(self, subject: str, timeout: float, work: Callable[[Link, float], Awaitable[T]], over: int | None = None) -> T:
        deadline = time.monotonic() + timeout
        while True:
            link = await self.present_link(subject, max(0.0, deadline - time.monotonic()), over)
            try:
                return await work(link, max(0.001, deadline - time.monotonic()))
            except LinkLost as lost:
                if lost.sent:
                    metrics.UNKNOWN.labels(self.service).inc()
                    raise errors.UnknownResult(f"{subject}: the connection was lost before the answer came") from None
                await asyncio.sleep(0.005)
            except TimeoutError:
                metrics.UNKNOWN.labels(self.service).inc()
                raise errors.UnknownResult(f"{subject}: no answer within {timeout:g} s") from None

    def _payload_limit(self, link: Link) -> int:
        return min(link.max_payload, jetstream.payload_limit(self.identity.tags))

    # --- JetStream -------------------------------------------------------------------------------------------------------------

    def next_msg_id(self) -> str:
        """An id nobody else can guess or collide with: `<random of this process>-<n>`."""
        self._published += 1
        return f"{self._boot}-{self._published}"

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        msg_id: str | None = None,
        expect: int | None = None,
        ttl: float | None = None,
        timeout: float = 5.0,
        over: int | None = None,
    ) -> PubAck:
        """Store one message. With a `msg_id` ("auto" = a fresh one) a lost answer is asked for again within `timeout`: stored once all the same.

        `expect`: the last sequence of this subject must be this (0 = none) or `WrongLastSequence`. `ttl`: seconds. `over`: as of `call`.
        """
        name = self.next_msg_id() if msg_id == "auto" else msg_id
        return await jetstream.publish(self, subject, data, msg_id=name, expect=expect, ttl=ttl, timeout=timeout, over=over)

    async def batch(
        self,
        messages: Sequence[jetstream.Part],
        timeout: float = 5.0,
        ttl: float | None = None,
        rollup: bool = False,
        over: int | None = None,
    ) -> PubAck:
        """Store all messages (subject, data or what makes it, expected last sequence or None) or none.

        The PubAck names the last sequence; the others precede it without a gap.

        `rollup`: what was stored before on the same subjects is dropped, so that a `ttl` leaves nothing behind. `over`: as of `call`.
        """
        async with self._batches:
            return await jetstream.batch(self, messages, timeout=timeout, ttl=ttl, rollup=rollup, over=over)

    async def js_api(self, verb: str, body: dict[str, Any] | None = None, timeout: float = 5.0) -> dict[str, Any]:
        """A request of the JetStream API: `js_api("STREAM.INFO.CTL")`; its answer as JSON, its errors as ours."""
        return await jetstream.api(self, verb, body, timeout)

    async def require_jetstream(self) -> None:
        """E120 unless the server is 2.12 or newer and JetStream is on for this account. Needs the right `$JS.API.INFO`."""
        await jetstream.require(self)

    async def get(self, stream: str, subject: str, leader: bool = False, timeout: float = 5.0) -> Stored | None:
        """Last message of a subject, None when there is none. `leader`: the stream's leader answers, never a lagging replica."""
        return await jetstream.get(self, stream, subject, leader, timeout)

    async def get_seq(self, stream: str, seq: int, timeout: float = 5.0) -> Stored | None:
        """The message with this sequence."""
        return await jetstream.get_seq(self, stream, seq, timeout)

    async def get_many(self, stream: str, filters: Sequence[str], timeout: float = 5.0) -> list[Stored]:
        """Last messages of all subjects that match, as of one moment, in stream order."""
        return await jetstream.get_many(self, stream, filters, timeout)
