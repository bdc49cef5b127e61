"""The connection of a process to the bus, kept up for as long as the process lives.

`Bus` owns one `Link` at a time and makes the next one when it ends, with jitter and for ever; subscriptions belong to the bus and move along.
A writer always learns one of three things: done (a PubAck), not done (`Rejected`, `NotAllowed`, `Unreachable`), unknown (`UnknownResult`).

Theory of operation. `_supervise` sleeps until the present link ends, tells `on_closed(reason)`, gets a new JWT if the old one was refused, dials
until a server takes it, subscribes everything again and tells `on_connected()`. `renew` makes the new link first and closes the old one after,
so that no request is lost by a renewal.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import random
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from nats.aio.msg import Msg as NatsMsg

from aegis_bus import errors, jetstream, metrics
from aegis_bus.identity import Identity
from aegis_bus.jetstream import PubAck, Stored
from aegis_bus.link import Headers, Link, LinkLost, Reply, as_reply, refused

__all__ = ["Bus", "Msg", "PubAck", "Stored", "Subscription"]

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_WAIT, MAX_WAIT = 0.4, 5.0
"""Seconds: after a loss the first try comes within [0, FIRST_WAIT], later ones within twice as much each time, at most MAX_WAIT."""
DIAL_TIMEOUT = 5.0
QUEUE = 65536
"""Messages a subscription holds for its handler before it drops (and counts) new ones."""
MAX_BATCHES = 8
"""Atomic batches in flight: the server allows 50 open ones per stream for all clients together."""
MAX_CORE = 4096
ANSWER_WITHIN = 2.5
"""Seconds a replaced connection stays for the answers that only it may give (`roles.RESPOND`: 2 s)."""

OnClosed = Callable[[str], Any]
OnConnected = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Msg:
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
    """A core subscription that outlives connections. Its handler runs in tasks of the bus: one message after another, or `workers` side by side."""

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
        self._tasks = [asyncio.create_task(self._run(), name=f"sub {subject}") for _ in range(workers)]

    async def _on_msg(self, link: Link, msg: NatsMsg) -> None:
        reply = as_reply(msg)
        try:
            self._inbox.put_nowait(Msg(msg.subject, reply.data, reply.headers, msg.reply, self._bus, link))
        except asyncio.QueueFull:
            metrics.SLOW.labels(self._bus.service).inc()

    async def _run(self) -> None:
        while True:
            msg = await self._inbox.get()
            try:
                await self._handler(msg)
            except Exception:
                metrics.HANDLER_ERRORS.labels(self._bus.service).inc()
                log.exception("handler of %s failed", self.subject)
            finally:
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
        for task in self._tasks:
            task.cancel()
        await self.detach()


class Bus:
    """See the module. Made by `connect`; `connected`, `wait_connected`, `close` for its life; the rest are the verbs of the road."""

    def __init__(
        self,
        identity: Identity,
        servers: Sequence[str],
        *,
        name: str,
        tls: ssl.SSLContext | None,
        on_closed: OnClosed | None,
        on_connected: OnConnected | None,
        jwt_source: Callable[[], Awaitable[str]] | None,
    ) -> None:
        self.identity = identity
        self.name = name
        self.service = name.partition("-")[0]
        self.closed_reason = ""
        """Why there is no connection now (or why the last one ended): expired | revoked | refused | payload | lost | closed."""
        self._servers = list(servers)
        self._tls = tls
        self._on_closed, self._on_connected, self._jwt_source = on_closed, on_connected, jwt_source
        self._link: Link | None = None
        self._up = asyncio.Event()
        self._hopeless = asyncio.Event()
        self._closing = False
        self._retired: set[Link] = set()
        self._subs: set[Subscription] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._core: set[asyncio.Task[None]] = set()
        self._boot = secrets.token_hex(16)
        self._published = 0
        self._batches = asyncio.Semaphore(MAX_BATCHES)
        self._supervisor: asyncio.Task[None] | None = None
        self._tries = 0
        self._last_error: Exception | None = None
        self._renewing = asyncio.Lock()
        self._started = time.monotonic()
        self.generation = 0
        """Rises with each new connection."""

    # --- life ----------------------------------------------------------------------------------------------------------------

    @classmethod
    async def connect(
        cls,
        identity: Identity,
        servers: Sequence[str],
        *,
        name: str = "aegis",
        tls_ca: str | None = None,
        timeout: float = 10.0,
        on_closed: OnClosed | None = None,
        on_connected: OnConnected | None = None,
        jwt_source: Callable[[], Awaitable[str]] | None = None,
    ) -> Bus:
        """Connect, or raise within `timeout` seconds: `CredentialsRefused` (E102) when a server said no, else `Unreachable` (E101).

        `on_connected()` runs after every connect, the first included, when all subscriptions are in place; `on_closed(reason)` after every loss
        (reasons: see `closed_reason`). Both may be plain or async; what they raise is logged.
        `jwt_source()` is asked for a new JWT whenever the present one was refused or has expired.
        """
        tls = ssl.create_default_context(cafile=tls_ca) if tls_ca else None
        bus = cls(identity, servers, name=name, tls=tls, on_closed=on_closed, on_connected=on_connected, jwt_source=jwt_source)
        bus._supervisor = asyncio.create_task(bus._supervise(), name=f"bus {name}")
        try:
            await bus._first_connection(timeout)
        except BaseException:
            await bus.close()
            raise
        return bus

    async def _first_connection(self, timeout: float) -> None:
        """As `wait_connected`; but credentials that have expired, and that nobody renews, are not waited for."""
        hopeless = asyncio.create_task(self._hopeless.wait())
        waiting = asyncio.create_task(self.wait_connected(timeout))
        try:
            await asyncio.wait([hopeless, waiting], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise self._why_not()
            await waiting
        finally:
            hopeless.cancel()
            waiting.cancel()

    @property
    def connected(self) -> bool:
        return self._link is not None and self._link.alive and self._up.is_set()

    async def wait_connected(self, timeout: float) -> None:
        """Return when connected; `Unreachable` or `CredentialsRefused` after `timeout` seconds, saying why not."""
        try:
            async with asyncio.timeout(timeout):
                while not self.connected:
                    if self._up.is_set():  # the link has ended, the supervisor has not seen it yet
                        await asyncio.sleep(0.01)
                    else:
                        await self._up.wait()
        except TimeoutError:
            raise self._why_not() from None

    def _why_not(self) -> errors.Unreachable:
        if isinstance(self._last_error, errors.CredentialsRefused):
            return self._last_error
        error = self._last_error
        cause = os.strerror(error.errno).lower() if isinstance(error, OSError) and error.errno else str(error or "no answer")
        return errors.unreachable(self._servers, cause, self._tries, time.monotonic() - self._started)

    async def close(self, grace: float = 5.0) -> None:
        """Drain: no new messages, handlers finish, answers that are due arrive, then close. Bounded by about `grace` seconds."""
        self._closing = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        subs = list(self._subs)
        try:
            async with asyncio.timeout(grace):
                await asyncio.gather(*(sub.drain() for sub in subs))
                await asyncio.gather(*self._core, return_exceptions=True)
        except TimeoutError:
            log.warning("bus %s: handlers did not finish within %.0f s", self.name, grace)
        self._up.clear()
        for sub in subs:
            await sub.unsubscribe()
        for link in [*self._retired, *([self._link] if self._link is not None else [])]:
            await link.close("closed", grace)
        for task in list(self._tasks):
            task.cancel()
        if self.closed_reason != "closed":
            self.closed_reason = "closed"
            metrics.CONNECTED.labels(self.service).set(0)

    async def __aenter__(self) -> Bus:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def renew(self, jwt: str) -> None:
        """Go over to a new JWT: the new connection first, then the old one is drained. Not connected: the next dial uses it.

        Raises `CredentialsRefused` (and keeps the old JWT) when the server does not take it.
        """
        async with self._renewing:
            old_jwt, self.identity.jwt = self.identity.jwt, jwt
            old = self._link
            if old is None or not old.alive:
                return
            try:
                await self._adopt(await self._dial_any())
            except errors.CredentialsRefused:
                self.identity.jwt = old_jwt
                raise
            except (errors.Unreachable, LinkLost):
                return  # the old link will end too; the supervisor goes on with the new JWT
            metrics.RENEWALS.labels(self.service).inc()
            self._spawn(self._retire(old))

    async def _retire(self, link: Link) -> None:
        """Close a link that another one has replaced, when what it owes has been answered."""
        self._retired.add(link)
        await asyncio.sleep(ANSWER_WITHIN)
        await link.close("renewed", grace=5.0)
        self._retired.discard(link)

    async def _supervise(self) -> None:
        wait = 0.0
        while not self._closing:
            link = self._link
            if link is not None:
                await link.ended.wait()
                if link is not self._link:
                    continue
                self._link = None
                self._up.clear()
                self._lost(link.reason)
                await link.close(link.reason)
                wait = FIRST_WAIT
            if wait:
                await asyncio.sleep(random.uniform(0, wait))
            await self._refresh_jwt()
            try:
                async with self._renewing:
                    if self._link is None:
                        await self._adopt(await self._dial_any())
            except errors.Unreachable as error:
                if isinstance(error, errors.CredentialsRefused):
                    self.closed_reason = error.reason
                    if error.reason == "expired" and self._jwt_source is None:
                        self._hopeless.set()
                wait = min(MAX_WAIT, max(FIRST_WAIT, wait * 2))
            except LinkLost:
                wait = max(wait, FIRST_WAIT)
            except Exception:
                log.exception("bus %s: connecting failed", self.name)
                wait = min(MAX_WAIT, max(FIRST_WAIT, wait * 2))

    def _lost(self, reason: str) -> None:
        self.closed_reason = reason
        metrics.CONNECTED.labels(self.service).set(0)
        metrics.DISCONNECTS.labels(self.service, reason).inc()
        log.warning("bus %s: connection ended (%s)", self.name, reason)
        if reason in ("expired", "revoked", "refused"):
            self._last_error = refused(self.identity, reason)
        self._tell(self._on_closed, reason)

    async def _dial_any(self) -> Link:
        """One try on each server, in random order."""
        for server in random.sample(self._servers, len(self._servers)):
            self._tries += 1
            try:
                link = await Link.dial(self.identity, server, self.name, self._tls, DIAL_TIMEOUT)
            except errors.CredentialsRefused as error:
                self._last_error = error
            except Exception as error:
                self._last_error = error if str(error) else type(error)("no answer")
            else:
                return link
            metrics.DIAL_FAILURES.labels(self.service).inc()
            log.info("bus %s: %s: %s", self.name, server, self._last_error)
        raise self._why_not()

    async def _adopt(self, link: Link) -> None:
        """Put all subscriptions on a new link and make it the present one."""
        for sub in list(self._subs):
            try:
                await sub.attach(link)
            except errors.NotAllowed as error:
                sub.refused = error
                log.error("bus %s: %s", self.name, error)
            except LinkLost:
                await link.close("lost")
                raise
        self._servers += [server for server in link.servers if server not in self._servers]
        self._link = link
        self.generation += 1
        self._tries, self._last_error, self._started = 0, None, time.monotonic()
        self.closed_reason = ""
        self._up.set()
        metrics.CONNECTED.labels(self.service).set(1)
        metrics.CONNECTS.labels(self.service).inc()
        log.info("bus %s: connected", self.name)
        self._tell(self._on_connected)

    async def _refresh_jwt(self) -> None:
        if self._jwt_source is None or not (self.closed_reason in ("expired", "revoked", "refused") or self.identity.expired()):
            return
        try:
            async with asyncio.timeout(30):
                self.identity.jwt = await self._jwt_source()
        except Exception as error:
            log.warning("bus %s: no new JWT: %s", self.name, error or type(error).__name__)

    def _tell(self, callback: Callable[..., Any] | None, *args: object) -> None:
        if callback is None:
            return

        async def run() -> None:
            try:
                result = callback(*args)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                log.exception("bus %s: callback failed", self.name)

        self._spawn(run())

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        if not inspect.iscoroutinefunction(handler):
            raise TypeError(f"the handler of {subject} must be an async function")
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

    async def call(self, subject: str, data: bytes, headers: Headers | None = None, timeout: float = 5.0) -> Reply:
        """One request, one answer; waits for a connection within `timeout`. Errors as `request`; no second try."""
        return await self._on_link(subject, timeout, lambda link, left: self.single(link, subject, data, headers, left))

    async def call_many(self, subject: str, data: bytes, timeout: float = 5.0) -> list[Reply]:
        """One request, many answers up to a status (Direct Get of several)."""

        async def many(link: Link, left: float) -> list[Reply]:
            return await link.call_many(subject, data, left)

        return await self._on_link(subject, timeout, many)

    async def single(self, link: Link, subject: str, data: bytes, headers: Headers | None, timeout: float) -> Reply:
        """One request over this very link."""
        self.check_size(link, subject, data, headers)
        reply = await link.call(subject, data, headers, timeout)
        if reply.status == "503":
            raise errors.Unreachable(f"E101 nobody answers on {subject} (no such service or stream, or it is just starting)")
        return reply

    def check_size(self, link: Link, subject: str, data: bytes, headers: Headers | None) -> None:
        """`Rejected`, before anything is sent, when the server would close the connection for the size of this message."""
        size = len(data) + sum(len(key) + len(value) + 4 for key, value in (headers or {}).items()) + 14
        if size > self._payload_limit(link):
            raise errors.Rejected(f"{subject}: {size} bytes, the bus takes {self._payload_limit(link)}; not sent")

    async def _on_link(self, subject: str, timeout: float, work: Callable[[Link, float], Awaitable[T]]) -> T:
        deadline = time.monotonic() + timeout
        while True:
            await self.wait_connected(max(0.0, deadline - time.monotonic()))
            link = cast(Link, self._link)
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
    ) -> PubAck:
        """Store one message. With a `msg_id` ("auto" = a fresh one) a lost answer is asked for again within `timeout`: stored once all the same.

        `expect`: the last sequence of this subject must be this (0 = none) or `WrongLastSequence`. `ttl`: seconds.
        """
        return await jetstream.publish(
            self, subject, data, msg_id=self.next_msg_id() if msg_id == "auto" else msg_id, expect=expect, ttl=ttl, timeout=timeout
        )

    async def batch(
        self,
        messages: Sequence[tuple[str, bytes, int | None]],
        timeout: float = 5.0,
        ttl: float | None = None,
        rollup: bool = False,
    ) -> PubAck:
        """Store all messages (subject, data, expected last sequence or None) or none.

        The PubAck names the last sequence; the others precede it without a gap.

        `rollup`: what was stored before on the same subjects is dropped, so that a `ttl` leaves nothing behind.
        """
        async with self._batches:
            return await jetstream.batch(self, messages, timeout, ttl, rollup)

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
