"""Read a stream in its order from a sequence on: nothing twice, nothing left out, and a `Gap` where the stream no longer has what was asked for.

By an own ephemeral pull consumer without acknowledgements: the reader asks for as much as it can take, and the server's heartbeats prove that it
still serves. A hole in the consumer's count, a silence, a new connection or a vanished consumer all end the same way: a new consumer from the last
sequence + 1.
Rights used: `$JS.API.CONSUMER.{CREATE,MSG.NEXT,DELETE}` and `$JS.API.STREAM.INFO` of the stream (roles.`_reads`), and the own inbox.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from aegis_bus import errors
from aegis_bus.connection import Bus, Msg, Stored, Subscription
from aegis_bus.link import Headers

log = logging.getLogger(__name__)

BATCH = 500
HEARTBEAT = 5.0
"""Seconds between the server's signs of life on a waiting request; two and a half of them without any sign is a silence."""
EXPIRES = 60.0
KEEP = 300.0
"""Seconds after which the server drops a consumer that nobody asks."""
NANO = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages from `wanted` on are gone: the stream now begins at `first_seq`.

    `first_seq` < `wanted`: it is another, younger stream (a loss or a restore).
    """

    first_seq: int
    wanted: int


class _Delivery(msgspec.Struct, frozen=True):
    """What `$JS.ACK....` says about a delivered message."""

    consumer: str
    stream_seq: int
    consumer_seq: int
    time_ms: int
    pending: int


def _delivery(reply: str) -> _Delivery | None:
    """From the reply subject, in its old (9 tokens) and new form (11 or more)."""
    tokens = reply.split(".")
    if len(tokens) < 9 or tokens[:2] != ["$JS", "ACK"]:
        return None
    tail = tokens[3:9] if len(tokens) == 9 else tokens[5:11]
    try:
        _, stream_seq, consumer_seq, stamp, pending = map(int, tail[1:])
    except ValueError:
        return None
    return _Delivery(tail[0], stream_seq, consumer_seq, stamp // 1_000_000, pending)


LOOK = 0.5
"""Seconds between two looks at whether anything is still to come, while nothing comes."""


class OrderedReader:
    """`async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], start=7) as reader: async for item in reader: ...` with `Stored | Gap` items."""

    def __init__(self, bus: Bus, stream: str, filters: Sequence[str], start: int = 1, *, batch: int = BATCH, heartbeat: float = HEARTBEAT) -> None:
        self.next_seq = max(1, start)
        """Sequence from which a new consumer would read."""
        self.pending = 0
        """Messages of the filters behind the last delivered one, as the server said with it."""
        self._bus, self._stream, self._filters = bus, stream, list(filters)
        self._batch, self._heartbeat = batch, heartbeat
        self._policy: dict[str, Any] = {"deliver_policy": "by_start_sequence"}
        self._token = secrets.token_hex(8)
        self._inbox = f"_INBOX.{bus.identity.public}.r{self._token}"
        self._queue: asyncio.Queue[Msg | None] = asyncio.Queue()  # None: the connection is another one than before
        self._sub: Subscription | None = None
        self._consumer = ""
        self._epoch = 0  # number of the consumer: messages of an earlier one are dropped
        self._generation = -1  # of the bus, when the consumer was made
        self._consumer_seq = 0
        self._left = 0  # messages still due from the request that waits at the server
        self._failures = 0

    @property
    def at_end(self) -> bool:
        """Whether the server said that nothing lies behind what was delivered. Until it said so, silence is only a slow bus."""
        return bool(self._consumer) and self.pending == 0

    async def __aenter__(self) -> OrderedReader:
        self._sub = await self._bus.subscribe(f"{self._inbox}.>", self._on_msg, timeout=30.0)
        self._bus.on_link.append(self._on_link)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sub is not None:
            self._bus.on_link.remove(self._on_link)
            await self._sub.unsubscribe()
        self._drop()

    def _on_msg(self, msg: Msg) -> None:
        self._queue.put_nowait(msg)

    def _on_link(self) -> None:
        self._queue.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[Stored | Gap]:
        return self

    async def __anext__(self) -> Stored | Gap:
        while True:
            item = await self._step()
            if item is not None:
                return item

    async def read(self, limit: int, wait: float) -> list[Stored | Gap]:
        """At least one item; then as many more as come within `wait` seconds, up to `limit`: what one commit takes together."""
        items = [await self.__anext__()]
        try:
            async with asyncio.timeout(wait):
                while len(items) < limit:
                    items.append(await self.__anext__())
        except TimeoutError:
            pass
        return items

    async def read_along(self, limit: int, wait: float, caught_up: Callable[[bool], None]) -> list[Stored | Gap]:
        """As `read`; every LOOK seconds in which nothing comes `caught_up` is told whether the server said that nothing is to come."""
        before = self.next_seq
        reading = asyncio.ensure_future(self.read(limit, wait))
        try:
            while not (await asyncio.wait({reading}, timeout=LOOK))[0]:
                caught_up(self.at_end and self.next_seq == before)
        finally:
            if not reading.done():
                reading.cancel()
        return reading.result()

    # --- one step: make sure a request waits at the server, then take one message ------------------------------------------------

    async def _step(self) -> Stored | Gap | None:
        if self._failures > 1:  # the first new consumer comes at once, later ones ever more slowly
            await asyncio.sleep(random.uniform(0.5, 1) * min(5.0, 0.1 * 2 ** min(self._failures, 10)))
        try:
            if not self._consumer or self._generation != self._bus.generation:
                gap = await self._create()
                if gap is not None:
                    return gap
            if self._left <= 0:
                self._ask()
        except errors.NotAllowed:
            raise
        except errors.BusError as error:
            log.info("reader of %s: %s", self._stream, error)
            self._drop()
            self._failures += 1
            return None
        if not self._queue.empty():
            return self._take(self._queue.get_nowait())
        try:
            async with asyncio.timeout(self._heartbeat * 2.5):
                msg = await self._queue.get()
        except TimeoutError:
            log.warning("reader of %s: no sign of life for %.0f s, new consumer from %d", self._stream, self._heartbeat * 2.5, self.next_seq)
            self._drop()
            return None
        return self._take(msg)

    def _take(self, msg: Msg | None) -> Stored | None:
        """What a message means; those of an earlier consumer mean nothing. A delivered message keeps its own subject, a status has the inbox's."""
        if msg is None:
            return None
        status = msg.headers.get("Status", "") if not msg.data else ""
        if status:
            if msg.subject == f"{self._inbox}.{self._epoch}":
                self._on_status(status, msg.headers)
            return None
        delivery = _delivery(msg.reply)
        if delivery is None or delivery.consumer != self._consumer:
            return None
        self._left -= 1
        self._failures = 0
        if delivery.consumer_seq != self._consumer_seq + 1:
            log.warning("reader of %s: message %d came, %d was due", self._stream, delivery.consumer_seq, self._consumer_seq + 1)
            self._drop()
            return None
        self._consumer_seq = delivery.consumer_seq
        self.pending = delivery.pending
        if delivery.stream_seq < self.next_seq:
            return None
        self.next_seq = delivery.stream_seq + 1
        return Stored(msg.subject, delivery.stream_seq, delivery.time_ms, msg.data, msg.headers)

    def _on_status(self, status: str, headers: Headers) -> None:
        if status == "100":
            self._failures = 0
            last = headers.get("Nats-Last-Consumer", "")
            if last.isdigit() and int(last) > self._consumer_seq:
                log.warning("reader of %s: the server sent up to %s, %d arrived", self._stream, last, self._consumer_seq)
                self._drop()
            return
        log.debug("reader of %s: %s %s", self._stream, status, headers.get("Description", ""))
        self._left = 0
        if status in ("408", "404"):
            return  # the request has ended: ask again
        self._failures += 1
        self._drop()

    def _ask(self) -> None:
        body = {"batch": self._batch, "expires": int(EXPIRES * NANO), "idle_heartbeat": int(self._heartbeat * NANO)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        if not self._bus.core(subject, msgspec.json.encode(body), reply=f"{self._inbox}.{self._epoch}"):
            raise errors.Unreachable("E101 no connection")
        self._left = self._batch

    def _drop(self) -> None:
        """Forget the consumer (and tell the server, if it can be told)."""
        if self._consumer:
            self._delete(self._consumer)
        self._consumer, self._left = "", 0

    def _delete(self, consumer: str) -> None:
        self._bus.core(f"$JS.API.CONSUMER.DELETE.{self._stream}.{consumer}", b"")

    async def _create(self) -> Gap | None:
        self._drop()
        generation = self._bus.generation
        self._epoch += 1
        name = f"r{self._token}{self._epoch}"
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "filter_subjects": self._filters,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(KEEP * NANO),
            "max_waiting": 8,
            **self._policy,
        }
        if config["deliver_policy"] == "by_start_sequence":
            config["opt_start_seq"] = self.next_seq
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        gap: Gap | None = None
        try:
            info = await self._bus.js_api(f"CONSUMER.CREATE.{self._stream}.{name}", body)
            if "opt_start_seq" in config:
                # After the consumer exists, so that nothing can go between.
                state = (await self._bus.js_api(f"STREAM.INFO.{self._stream}"))["state"]
                gap = self._gap(int(state["first_seq"]), int(state["last_seq"]))
        except BaseException:
            self._delete(name)  # half made is not made: the next step begins anew
            raise
        if gap is not None:
            self.next_seq = gap.first_seq
            if gap.first_seq < gap.wanted:
                self._delete(name)  # it waits for a sequence that lies far ahead
                return gap
        self._consumer, self._consumer_seq, self._left, self._generation = name, 0, 0, generation
        self.pending = int(info.get("num_pending", 0))
        return gap

    def _gap(self, first: int, last: int) -> Gap | None:
        if first > self.next_seq or self.next_seq > last + 1:
            return Gap(max(1, first), self.next_seq)
        return None


async def last_of_each(bus: Bus, stream: str, filters: Sequence[str], timeout: float) -> list[Stored]:
    """Last message of every subject that matches, however many, in stream order."""
    try:
        async with asyncio.timeout(timeout):
            async with OrderedReader(bus, stream, filters) as reader:
                reader._policy = {"deliver_policy": "last_per_subject"}
                while (found := await _read_all(reader)) is None:
                    reader.next_seq = 1
                return found
    except TimeoutError:
        raise errors.Unreachable(f"E101 {stream}: could not be read within {timeout:g} s") from None


async def _read_all(reader: OrderedReader) -> list[Stored] | None:
    """Everything one consumer has; None when that consumer was lost on the way (begin anew)."""
    try:
        await reader._create()
    except errors.Unreachable:
        await asyncio.sleep(0.2)
        return None
    epoch = reader._epoch
    found: list[Stored] = []
    while reader.pending:
        item = await reader._step()
        if reader._epoch != epoch or not reader._consumer:
            return None
        if isinstance(item, Stored):
            found.append(item)
    return found
