"""One connection to one server: a nats-py client that never reconnects by itself, from its dial to its end.

nats-py's own reconnecting can end in states from which it never returns (an exception in a callback, expired credentials, a refused payload),
buffers what should fail and re-sends what has become stale. So a `Link` lives for one connection only; `Bus` makes the next one.
Every request that waits when the link ends fails at once.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import secrets
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg as NatsMsg

from aegis_bus import errors, metrics
from aegis_bus.identity import Identity

log = logging.getLogger(__name__)

PENDING_BYTES = 1 << 20
"""Bytes that may wait for the socket before a publish is refused."""
PING_INTERVAL = 20
_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')

Headers = dict[str, str]


class LinkLost(Exception):
    """The link ended. `sent`: the message may have reached the server."""

    def __init__(self, sent: bool) -> None:
        super().__init__("connection lost")
        self.sent = sent


class Reply(msgspec.Struct, frozen=True):
    """An answer. `status` is "" for a plain message, else the server's ("404", "204", "503" ...)."""

    data: bytes
    headers: Headers
    status: str = ""
    description: str = ""


@dataclass(slots=True)
class _Call:
    """A request and what came for it."""

    subject: str
    _answers: deque[Reply | Exception] = field(default_factory=deque)
    _waiter: asyncio.Future[None] | None = None

    def tell(self, answer: Reply | Exception) -> None:
        """An answer, or why there will be none."""
        self._answers.append(answer)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def answer(self, timeout: float) -> Reply:
        """The next one; TimeoutError, or what ended the call."""
        if not self._answers:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout, self.tell, TimeoutError())
            try:
                await self._waiter
            finally:
                timer.cancel()
        answer = self._answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer


def reason_of(error: object) -> str:
    """Why a connection ended or was refused: expired | revoked | refused | payload | lost."""
    text = str(error or "").lower()
    if "expired" in text:
        return "expired"
    if "revoked" in text:
        return "revoked"
    if "authorization" in text or "authentication" in text or "maximum connections" in text or "maximum account" in text:
        return "refused"
    if "maximum payload" in text:
        return "payload"
    return "lost"


class Link:
    """A connected client. `ended` is set once, for any reason; `reason` then says which."""

    def __init__(self, client: Any, identity: Identity, service: str) -> None:
        self.ended = asyncio.Event()
        self.reason = ""
        self.jwt = identity.jwt
        self._who = identity.name
        self._client = client
        self._service = service
        self._calls: dict[str, _Call] = {}
        self._pongs: set[asyncio.Future[bool]] = set()
        self._refused_subs: set[str] = set()
        self._inbox = f"_INBOX.{identity.public}.{secrets.token_hex(6)}"
        self._n = 0
        self.last_error: Exception | None = None

    # --- life ----------------------------------------------------------------------------------------------------------------

    @classmethod
    async def dial(cls, identity: Identity, server: str, name: str, tls: ssl.SSLContext | None, timeout: float) -> Link:
        """Connect once, to one server. Raises `CredentialsRefused`, or OSError / TimeoutError / nats errors when nobody answers."""
        client: Any = Client()
        service = name.partition("-")[0]
        link = cls(client, identity, service)

        async def on_error(error: Exception) -> None:
            link._on_error(error)

        async def on_end() -> None:
            link._end()

        options: dict[str, Any] = {}
        options["signature_cb"] = lambda nonce: base64.b64encode(identity.sign(nonce.encode()))
        if identity.jwt:
            jwt = identity.jwt.encode()
            options["user_jwt_cb"] = lambda: jwt
        if tls is not None:
            options["tls"] = tls
        try:
            async with asyncio.timeout(timeout):
                client._public_nkey = identity.public  # for a server that knows bare keys; one that wants JWTs gets the JWT
                await client.connect(
                    [server],
                    name=name,
                    error_cb=on_error,
                    closed_cb=on_end,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0.01,
                    connect_timeout=timeout,
                    ping_interval=PING_INTERVAL,
                    max_outstanding_pings=2,
                    pending_size=PENDING_BYTES,
                    inbox_prefix=f"_INBOX.{identity.public}",
                    drain_timeout=5,
                    **options,
                )
                # The reading task ends with the connection in every case, also where nats-py forgets its callbacks.
                client._reading_task.add_done_callback(lambda _: link._end())
                await client.subscribe(f"{link._inbox}.*", cb=link._on_reply)
                await link._round_trip(timeout)  # nats-py takes a connection that is closed on it during CONNECT for a good one
        except BaseException as error:
            await link._destroy()
            cause = error if reason_of(error) != "lost" else client.last_error or link.last_error or error
            if reason_of(cause) in ("expired", "revoked", "refused"):
                raise refused(identity, reason_of(cause), str(cause).removeprefix("nats: ").strip("'")) from None
            if isinstance(error, nats.errors.NoServersError | LinkLost):
                raise link.last_error or ConnectionError("closed by the server") from None
            raise
        return link

    @property
    def alive(self) -> bool:
        return not self.ended.is_set() and bool(self._client.is_connected)

    @property
    def max_payload(self) -> int:
        """Bytes the server takes in one message, headers included."""
        return int(self._client.max_payload)

    @property
    def servers(self) -> list[str]:
        """Servers that the server told of (a cluster), with those given."""
        return [str(uri.geturl()) for uri in self._client.servers]

    @property
    def url(self) -> str:
        uri = self._client.connected_url
        return str(uri.geturl()) if uri is not None else ""

    @property
    def server_version(self) -> tuple[int, int, int]:
        version = self._client.connected_server_version
        return (version.major, version.minor, version.patch)

    def _end(self) -> None:
        if self.ended.is_set():
            return
        self.reason = self.reason or reason_of(self._client.last_error or self.last_error)
        self.ended.set()
        for call in self._calls.values():
            call.tell(LinkLost(sent=True))
        for pong in list(self._pongs):
            if not pong.done():
                pong.set_exception(LinkLost(sent=True))
                pong.exception()  # seen, also when nobody waits for it any more

    async def _destroy(self) -> None:
        try:
            async with asyncio.timeout(2):
                await self._client.close()
        except Exception as error:
            log.debug("closing a connection: %s", error)
        self._end()

    async def close(self, reason: str, grace: float = 0.0) -> None:
        """End the link: wait up to `grace` seconds for answers that are due, write what is buffered, close."""
        self.reason = self.reason or reason
        if grace > 0 and self.alive:
            try:
                async with asyncio.timeout(grace):
                    while self._calls and self.alive:
                        await asyncio.sleep(0.02)
                    if self.alive:
                        await self._round_trip(grace)
            except Exception as error:
                log.debug("draining a connection: %s", error)
        await self._destroy()

    # --- what the server tells beside messages ----------------------------------------------------------------------------------

    def _on_error(self, error: Exception) -> None:
        """error_cb: the only place where nats-py tells of refused rights and dropped messages. Never raises."""
        self.last_error = error
        if isinstance(error, nats.errors.SlowConsumerError):
            metrics.SLOW.labels(self._service).inc()
            return
        match = _VIOLATION.search(str(error).lower())
        if match is None:
            return
        metrics.VIOLATIONS.labels(self._service).inc()
        verb, subject = match.groups()
        log.warning("refused by the bus: %s may not %s %s", self._who, verb, subject)
        if verb == "publish":
            for call in list(self._calls.values()):
                if call.subject.lower() == subject:
                    call.tell(errors.not_allowed(self._who, "publish to", call.subject))
        else:
            self._refused_subs.add(subject)

    # --- messages ------------------------------------------------------------------------------------------------------------

    async def _on_reply(self, msg: NatsMsg) -> None:
        call = self._calls.get(msg.subject.rpartition(".")[2])
        if call is not None:
            call.tell(as_reply(msg))

    async def send(self, subject: str, data: bytes, headers: Headers | None = None, reply: str = "") -> None:
        """Write one message. LinkLost(sent=False) when it certainly did not leave."""
        if not self.alive:
            raise LinkLost(sent=False)
        try:
            await self._client.publish(subject, data, reply=reply, headers=headers)
        except nats.errors.BadSubjectError:
            raise ValueError(f"not a subject: {subject!r}") from None
        except (nats.errors.Error, OSError) as error:
            raise LinkLost(sent=False) from error

    async def call(self, subject: str, data: bytes, headers: Headers | None, timeout: float) -> Reply:
        """Request with one answer. `LinkLost`, `NotAllowed`, TimeoutError."""
        key, call = self._open_call(subject)
        try:
            await self.send(subject, data, headers, reply=f"{self._inbox}.{key}")
            return await call.answer(timeout)
        finally:
            self._calls.pop(key, None)

    async def call_many(self, subject: str, data: bytes, timeout: float) -> list[Reply]:
        """Request with many answers, ended by a status (the last of the list). `timeout` is for each answer."""
        key, call = self._open_call(subject)
        answers: list[Reply] = []
        try:
            await self.send(subject, data, None, reply=f"{self._inbox}.{key}")
            while not (answers and answers[-1].status):
                answers.append(await call.answer(timeout))
        finally:
            self._calls.pop(key, None)
        return answers

    def _open_call(self, subject: str) -> tuple[str, _Call]:
        self._n += 1
        key = f"{self._n:x}{secrets.token_hex(4)}"
        call = self._calls[key] = _Call(subject)
        if self.ended.is_set():
            del self._calls[key]
            raise LinkLost(sent=False)
        return key, call

    async def subscribe(self, subject: str, queue: str, on_msg: Callable[[NatsMsg], Awaitable[None]], timeout: float = 5.0) -> Any:
        """Subscribe and prove it by a round trip: `NotAllowed` when the right is missing."""
        if not self.alive:
            raise LinkLost(sent=False)
        self._refused_subs.discard(subject.lower())
        try:
            sub = await self._client.subscribe(subject, queue=queue, cb=on_msg)
            await self._round_trip(timeout)  # a refusal comes before its answer
        except nats.errors.BadSubjectError:
            raise ValueError(f"not a subject: {subject!r}") from None
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise LinkLost(sent=True) from error
        if subject.lower() in self._refused_subs:
            self._refused_subs.discard(subject.lower())
            self._client._remove_sub(sub._id)
            sub._stop_processing()
            raise errors.not_allowed(self._who, "subscribe to", subject)
        return sub

    async def drain(self, sub: Any) -> None:
        """Unsubscribe, and return when all that had been sent to it is in the hands of its `on_msg`."""
        try:
            async with asyncio.timeout(3.0):
                await self._client._send_unsubscribe(sub._id)
                await self._round_trip(2.0)
                await sub._pending_queue.join()
        except Exception as error:  # the connection is gone, and the subscription with it
            log.debug("drain of %s: %s", sub.subject, error)
        self._client._remove_sub(sub._id)
        sub._stop_processing()

    async def _round_trip(self, timeout: float) -> None:
        """The server has dealt with all that was written, or TimeoutError.

        Not flush() of nats-py: its PING overtakes what is buffered, and a flush given up early ends the read loop when its PONG comes after all.
        """
        pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pongs.add(pong)
        pong.add_done_callback(self._pongs.discard)
        if not self.alive:
            raise LinkLost(sent=True)
        await self._client._flush_pending(force_flush=True)
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # nats-py has swallowed it
            raise asyncio.CancelledError
        await self._client._send_ping(pong)
        await _settled(pong, timeout)
        if not pong.done():
            raise TimeoutError
        pong.result()


async def _settled(future: asyncio.Future[bool], timeout: float) -> None:
    """Wait until it is done or the time is up; it is never cancelled (nats-py would stumble over it)."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    future.add_done_callback(end)
    timer = loop.call_later(timeout, end)
    try:
        await over
    finally:
        timer.cancel()
        future.remove_done_callback(end)


def refused(identity: Identity, reason: str, detail: str = "") -> errors.CredentialsRefused:
    """E102. At connect the server calls an expired JWT only an "Authorization Violation"; the JWT itself says more."""
    if reason == "refused" and identity.expired():
        reason = "expired"
    expired_for = time.time() - identity.expires if identity.expires else None
    return errors.refused(identity.name, reason, expired_for, detail)


def headers_of(msg: NatsMsg) -> Headers:
    """Headers of a message; nats-py names some by members of an enum."""
    return {key if type(key) is str else str(getattr(key, "value", key)): value for key, value in msg.headers.items()} if msg.headers else {}


def as_reply(msg: NatsMsg) -> Reply:
    """A message of nats-py with its status taken apart."""
    headers = headers_of(msg)
    status = headers.get("Status", "") if not msg.data else ""
    return Reply(bytes(msg.data), headers, status, headers.get("Description", ""))
