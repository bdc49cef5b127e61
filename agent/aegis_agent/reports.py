"""Reports of a worker on their way to the bus: in order, each with an id that lets the server drop a double, kept and sent again over any outage.

An Error or a Finish is never dropped; of the rest at most `LIMIT` wait, the oldest go first. An acknowledgement waits about a second for the answer
of its own round, which says the same: a quick round costs one report. Owns the queue; writes the stream REPORTS.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from aegis_bus.errors import BusError, NotAllowed, Rejected
from aegis_proto.messages import MAX_REPORT, CheckResponse, ErrorData, Message, raw

log = logging.getLogger(__name__)

LIMIT = 64
VITAL = frozenset({"error", "finish"})
RETRY_FIRST, RETRY_MOST = 0.2, 10.0
ACK_LATE = (0.7, 1.3)
"""Seconds an acknowledgement waits for the answer of its round; well below the time after which the owner repeats an order."""

Publish = Callable[[str, bytes, str], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class _Entry:
    subject: str
    data: bytes
    msg_id: str
    vital: bool


class Reports:
    """`publish(subject, data, msg_id)` stores one message or raises a BusError; `wait_connected()` returns when it is worth trying again."""

    def __init__(self, publish: Publish, wait_connected: Callable[[], Awaitable[object]]) -> None:
        self._publish = publish
        self._wait_connected = wait_connected
        self._waiting: list[_Entry] = []
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._secret = secrets.token_hex(16)
        self._n = 0
        self._late: tuple[asyncio.TimerHandle, Message] | None = None
        self.dropped = 0

    @property
    def queued(self) -> int:
        """Reports that the bus has not acknowledged."""
        return len(self._waiting)

    def put_late(self, subject: str, message: Message) -> None:
        """Queue the acknowledgement of a round in about a second, unless its Finish or Error is queued before. One of an older round is dropped."""
        self._forget_late()
        handle = asyncio.get_running_loop().call_later(random.uniform(*ACK_LATE), self._put_now, subject, message)
        self._late = (handle, message)

    def _put_now(self, subject: str, message: Message) -> None:
        self._late = None
        self.put(subject, message)

    def _forget_late(self) -> None:
        if self._late is not None:
            self._late[0].cancel()
            self._late = None

    def put(self, subject: str, message: Message) -> None:
        """Queue a report. One that is too large loses its longest texts, never its meaning."""
        kind = subject.rpartition(".")[2]
        if kind in VITAL and self._late is not None and _round(self._late[1]) == _round(message):
            self._forget_late()
        self._n += 1
        self._waiting.append(_Entry(subject, fitted(message), f"{self._secret}-{self._n}", kind in VITAL))
        # The first may be under way: dropping it would only lose its acknowledgement.
        while sum(not entry.vital for entry in self._waiting) > LIMIT:
            victim = next(entry for entry in self._waiting[1:] if not entry.vital)
            self._waiting.remove(victim)
            self.dropped += 1
        self._idle.clear()
        self._changed.set()

    async def pump(self) -> None:
        """Send for ever, one after the other."""
        tries = 0
        while True:
            if not self._waiting:
                self._idle.set()
                self._changed.clear()
                await self._changed.wait()
            entry = self._waiting[0]
            try:
                await self._publish(entry.subject, entry.data, entry.msg_id)
            except (NotAllowed, Rejected) as error:
                if entry.vital or (isinstance(error, Rejected) and error.retryable):
                    tries += 1
                    log.warning("report %s: %s; trying again", entry.subject, error)
                    await asyncio.sleep(random.uniform(0, min(RETRY_MOST, RETRY_FIRST * 2 ** min(tries, 8))))
                    continue
                log.warning("report %s given up: %s", entry.subject, error)
                self.dropped += 1
            except BusError as error:
                tries += 1
                log.debug("report %s: %s", entry.subject, error)
                await asyncio.sleep(random.uniform(0, min(RETRY_MOST, RETRY_FIRST * 2 ** min(tries, 8))))
                await self._wait_connected()
                continue
            tries = 0
            self._waiting.remove(entry)

    async def flush(self, timeout: float) -> bool:
        """True when everything is acknowledged within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
            return True
        except TimeoutError:
            return False


def _round(message: Message) -> tuple[str, int, int]:
    return message.era, message.incarnation, message.seqNum


def fitted(message: Message) -> bytes:
    """JSON of `message` in at most MAX_REPORT bytes: texts of checks and errors are shortened until it fits."""
    data = msgspec.json.encode(message)
    limit = 2000
    while len(data) > MAX_REPORT - 256 and limit > 8:
        message = msgspec.structs.replace(message, data=_shorter(message, limit))
        data = msgspec.json.encode(message)
        limit //= 2
    return data


def _shorter(message: Message, limit: int) -> msgspec.Raw:
    content = bytes(message.data)
    if message.type == "Finish" and message.phase != "command":
        response = msgspec.json.decode(content, type=CheckResponse)
        results = tuple(
            msgspec.structs.replace(result, Result=result.Result[:limit], values=result.values if limit > 100 else {}) for result in response.results
        )
        return raw(msgspec.structs.replace(response, results=results))
    if message.type == "Error" and message.phase != "hang":
        error = msgspec.json.decode(content, type=ErrorData)
        return raw(msgspec.structs.replace(error, message=error.message[:limit]))
    return message.data
