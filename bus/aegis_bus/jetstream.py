"""JetStream verbs over a `Bus`: what the server's headers, statuses and error codes mean.

Writes by publish with headers (dedup id, expected sequence, TTL) and by atomic batch; reads by Direct Get, or through the leader where a stale
answer would decide something.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import math
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from aegis_bus import errors, metrics
from aegis_bus.link import Headers, Link, LinkLost, Reply

if TYPE_CHECKING:
    from aegis_bus.connection import Bus

WRONG_LAST = frozenset({10071, 10164})
"""err_code: wrong last sequence (of the subject)."""
RETRYABLE = frozenset({10210, 10211, 10008, 10023, 10176, 10174})
"""err_code: too many open batches, JetStream not ready, insufficient resources for the moment."""
AGENT_PAYLOAD = 65536
"""Bytes the template of agents and node daemons allows; the server closes the connection above it."""
SINGLE_TRY = 2.0
MINIMUM_SERVER = (2, 12, 0)


Part = tuple[str, bytes | Callable[[], bytes], int | None]
"""One message of a batch: subject, body or what makes it, expected last sequence of the subject (0 = none yet, None = any)."""


class PubAck(msgspec.Struct, frozen=True):
    """The server has stored it (or had: `duplicate`) at `seq`."""

    stream: str
    seq: int
    duplicate: bool = False


class Stored(msgspec.Struct, frozen=True):
    """A stored message. `time_ms`: the server's clock when it stored it, ms since 1970."""

    subject: str
    seq: int
    time_ms: int
    data: bytes
    headers: Headers = {}

    @property
    def marker(self) -> bool:
        """The server's own note that the last message of the subject expired or was deleted."""
        return "Nats-Marker-Reason" in self.headers


@functools.lru_cache(maxsize=64)
def payload_limit(tags: tuple[str, ...]) -> int:
    """Bytes that credentials with these tags may send in one message."""
    scoped = any(tag.startswith(("pod:", "node:")) for tag in tags)
    return AGENT_PAYLOAD if scoped else 1 << 30


def go_seconds(seconds: float) -> str:
    """A TTL as the server reads it; whole seconds, at least one."""
    return f"{max(1, math.ceil(seconds))}s"


def time_ms(text: str) -> int:
    """RFC 3339 with nanoseconds to ms since 1970."""
    main, _, rest = text.rstrip("Z").partition(".")
    return _second(main) * 1000 + int((rest or "0")[:3].ljust(3, "0"))


@functools.lru_cache(maxsize=1024)
def _second(text: str) -> int:
    """Remembered: what is read together was mostly written together."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def _headers(msg_id: str | None, expect: int | None, ttl: float | None) -> Headers:
    headers: Headers = {}
    if msg_id is not None:
        headers["Nats-Msg-Id"] = msg_id
    if expect is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(expect)
    if ttl is not None:
        headers["Nats-TTL"] = go_seconds(ttl)
    return headers


def _answer(bus: Bus, subject: str, reply: Reply) -> dict[str, Any]:
    """The JSON of an answer; raises what an error in it means."""
    try:
        answer = msgspec.json.decode(reply.data) if reply.data else {}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise errors.UnknownResult(f"{subject}: the answer is not one of JetStream") from None
    error = answer.get("error")
    if not error:
        return cast("dict[str, Any]", answer)
    code, text = int(error.get("err_code", 0)), str(error.get("description", ""))
    metrics.REJECTED.labels(bus.service, str(code)).inc()
    if code in WRONG_LAST:
        raise errors.WrongLastSequence(f"{subject}: {text}", code)
    if code in (10076, 10039):
        raise errors.ServerUnsuitable(f"E120 {text}: JetStream is off on this server or for this account; Aegis needs it (2.12 or newer)")
    raise errors.Rejected(f"{subject}: {text} (JetStream error {code})", code, code in RETRYABLE)


def _ack(subject: str, answer: dict[str, Any]) -> PubAck:
    if "seq" not in answer:
        raise errors.UnknownResult(f"{subject}: the answer is not a PubAck")
    return PubAck(str(answer.get("stream", "")), int(answer["seq"]), bool(answer.get("duplicate", False)))


async def publish(
    bus: Bus, subject: str, data: bytes, *, msg_id: str | None, expect: int | None, ttl: float | None, timeout: float, over: int | None
) -> PubAck:
    headers = _headers(msg_id, expect, ttl) or None
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        # With an id, a lost answer may be asked for again: the server keeps one copy and answers "duplicate".
        try:
            reply = await bus.call(subject, data, headers, timeout=min(left, SINGLE_TRY) if msg_id else left, over=over)
            return _ack(subject, _answer(bus, subject, reply))
        except errors.UnknownResult:
            if msg_id is None or time.monotonic() >= deadline - 0.001:
                raise
        except errors.Unreachable:  # a stream without a leader for the moment
            if msg_id is None or time.monotonic() + 0.2 >= deadline or not bus.connected:
                raise
            await asyncio.sleep(0.2)


async def batch(bus: Bus, messages: Sequence[Part], *, timeout: float, ttl: float | None, rollup: bool, over: int | None) -> PubAck:
    """First and last message are requests (their answers carry refusals), those between are not; all go over one connection.

    While the server answers the first (it opens a store on its disk for the batch) the bodies of the others are made.
    """
    if not messages:
        raise ValueError("an empty batch")
    batch_id = secrets.token_hex(16)
    deadline = time.monotonic() + timeout
    last = len(messages)
    link = await bus.present_link(messages[0][0], timeout, over)
    committing = last == 1

    def headers_of(number: int, expect: int | None) -> dict[str, str]:
        headers = _headers(None, expect, ttl)
        if rollup:
            headers["Nats-Rollup"] = "sub"
        if last > 1:
            headers |= {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
            if number == last:
                headers["Nats-Batch-Commit"] = "1"
        return headers

    async def ask(number: int, subject: str, data: bytes, expect: int | None) -> dict[str, Any]:
        reply = await bus.single(link, subject, data, headers_of(number, expect), max(0.001, deadline - time.monotonic()))
        return _answer(bus, subject, reply)

    try:
        first = asyncio.create_task(ask(1, messages[0][0], await _body(messages[0][1]), messages[0][2]))
        try:
            bodies = [await _body(data) for _, data, _ in messages[1:]]
        except BaseException:
            first.cancel()
            raise
        answer = await first
        if last == 1:
            return _ack(messages[0][0], answer)
        for number, (subject, _, expect) in enumerate(messages[1:-1], 2):
            headers = headers_of(number, expect)
            bus.check_size(link, subject, bodies[number - 2], headers)
            await link.send(subject, bodies[number - 2], headers)
        committing = True
        return _ack(messages[-1][0], await ask(last, messages[-1][0], bodies[-1], messages[-1][2]))
    except LinkLost as lost:
        if committing and lost.sent:
            metrics.UNKNOWN.labels(bus.service).inc()
            raise errors.UnknownResult(f"batch on {messages[0][0]}: the connection was lost before the answer came") from None
        raise errors.Unreachable(f"E101 batch on {messages[0][0]}: the connection was lost before its commit was sent") from None
    except TimeoutError:
        if committing:
            metrics.UNKNOWN.labels(bus.service).inc()
            raise errors.UnknownResult(f"batch on {messages[0][0]}: no answer within {timeout:g} s") from None
        raise errors.Unreachable(f"E101 batch on {messages[0][0]}: no answer to its first message within {timeout:g} s; not committed") from None


async def _body(data: bytes | Callable[[], bytes]) -> bytes:
    """One body; between two that have to be made others get their turn."""
    if isinstance(data, bytes):
        return data
    await asyncio.sleep(0)
    return data()


async def api(bus: Bus, verb: str, body: dict[str, Any] | None, timeout: float) -> dict[str, Any]:
    subject = f"$JS.API.{verb}"
    return _answer(bus, subject, await bus.call(subject, msgspec.json.encode(body) if body is not None else b"", timeout=timeout))


async def require(bus: Bus) -> None:
    await bus.wait_connected(5.0)
    link = cast(Link, bus._link)
    if link.server_version < MINIMUM_SERVER:
        version = ".".join(map(str, link.server_version))
        raise errors.ServerUnsuitable(f"E120 nats-server {version} at {link.url}: 2.12 or newer with JetStream is needed (atomic batch)")
    try:
        await api(bus, "INFO", None, 5.0)
    except errors.Unreachable:
        raise errors.ServerUnsuitable(f"E120 the server at {link.url} runs without JetStream; Aegis needs it (2.12 or newer)") from None


# --- reading -----------------------------------------------------------------------------------------------------------------


def _stored(reply: Reply) -> Stored:
    headers = dict(reply.headers)
    subject = headers.pop("Nats-Subject", "")
    seq = int(headers.pop("Nats-Sequence", "0"))
    stamp = time_ms(headers.pop("Nats-Time-Stamp", "1970-01-01T00:00:00Z"))
    return Stored(subject, seq, stamp, reply.data, headers)


async def get(bus: Bus, stream: str, subject: str, leader: bool, timeout: float) -> Stored | None:
    if leader:
        return await _get_leader(bus, stream, {"last_by_subj": subject}, timeout)
    reply = await bus.call(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", timeout=timeout)
    if reply.status == "404":
        return None
    _check_status(stream, reply)
    return _stored(reply)


async def get_seq(bus: Bus, stream: str, seq: int, timeout: float) -> Stored | None:
    reply = await bus.call(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode({"seq": seq}), timeout=timeout)
    if reply.status == "404":
        return None
    _check_status(stream, reply)
    return _stored(reply)


def _check_status(stream: str, reply: Reply) -> None:
    if reply.status:
        raise errors.Rejected(f"Direct Get on {stream}: {reply.status} {reply.description}")


async def _get_leader(bus: Bus, stream: str, what: dict[str, Any], timeout: float) -> Stored | None:
    subject = f"$JS.API.STREAM.MSG.GET.{stream}"
    reply = await bus.call(subject, msgspec.json.encode(what), timeout=timeout)
    try:
        message = _answer(bus, subject, reply)["message"]
    except errors.Rejected as error:
        if error.err_code == 10037:
            return None
        raise
    headers: Headers = {}
    for line in base64.b64decode(message.get("hdrs", "")).decode(errors="replace").split("\r\n")[1:]:
        key, colon, value = line.partition(":")
        if colon:
            headers[key.strip()] = value.strip()
    return Stored(message["subject"], int(message["seq"]), time_ms(message["time"]), base64.b64decode(message.get("data", "")), headers)


def _unbroken(replies: Sequence[Reply]) -> bool:
    """Each answer of several names the one before it: none of them was lost (a client that is too slow loses messages)."""
    before = 0
    for reply in replies:
        if int(reply.headers.get("Nats-Last-Sequence", before)) != before:
            return False
        before = int(reply.headers.get("Nats-Sequence", before))
    return True


async def get_many(bus: Bus, stream: str, filters: Sequence[str], timeout: float) -> list[Stored]:
    """Direct Get of several; beyond the server's 1,024 subjects, by a consumer that starts with the last message of each subject."""
    wanted: dict[str, Any] = {"multi_last": list(filters)}
    found: list[Stored] = []
    deadline = time.monotonic() + timeout
    for _ in range(10_000):
        replies = await bus.call_many(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(wanted), timeout)
        end = replies[-1]
        if not _unbroken(replies):
            if time.monotonic() >= deadline:
                raise errors.Unreachable(f"E101 Direct Get on {stream}: answers are lost on the way")
            continue
        found += [_stored(reply) for reply in replies if not reply.status]
        if end.status == "404":
            return found
        if end.status == "413":
            from aegis_bus.ordered import last_of_each

            return await last_of_each(bus, stream, filters, timeout)
        if end.status == "503":
            raise errors.Unreachable(f"E101 nobody answers for stream {stream}")
        if end.status != "204":
            _check_status(stream, end)
        if int(end.headers.get("Nats-Num-Pending", "0")) <= 0:
            return found
        wanted |= {"seq": int(end.headers["Nats-Last-Sequence"]) + 1, "up_to_seq": int(end.headers["Nats-UpTo-Sequence"])}
        await asyncio.sleep(0)
    raise errors.Rejected(f"Direct Get on {stream}: endless answer")
