"""The way of a worker's lines to the store (stream LOGS): numbered batches, one at a time in their order, spooled to disk while the road is away.

Nothing here is waited for by the training. At most `MEMORY` bytes wait in memory; what is more goes to the spool in whole pieces; beyond the spool's
limit the oldest lines are given up, and the next batch says how many. What a killed agent left in the spool goes first, under its own numbers.
Owns the spool folder. Writes `aegis.job.<j>.log.<pod>`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
from aegis_bus.errors import BusError, NotAllowed, Rejected
from aegis_proto import subjects
from aegis_proto.logs import MAX_BATCH, PART, LogBatch, LogKind, LogLine
from aegis_proto.messages import AegisLog, encode

from aegis_agent.handover import WorkerTask, now_ms
from aegis_agent.spool import Piece, Spool

log = logging.getLogger(__name__)

LINGER = 0.25
"""Seconds that a batch waits for more lines."""
MEMORY = 1 << 20
"""Bytes of finished batches in memory; then they go to the spool."""
MOST = 8 << 20
"""Bytes of finished batches in memory while the disk does not take them; then the oldest are given up."""
ROOM = MAX_BATCH - 1_000
"""Bytes of the lines of one message: the rest is for what stands around them."""
SMALL = PART // 8
"""Characters of a part of a line whose JSON is much longer than its text (control characters are six bytes each)."""
RETRY_FIRST, RETRY_MOST = 0.2, 10.0
LEAVE = 5.0
"""Seconds that the disk may take for what waits when the agent goes."""

Publish = Callable[[str, bytes, str], Awaitable[object]]
_encode = msgspec.json.Encoder().encode


class LogRoad:
    """`publish(subject, data, msg_id)` stores one message or raises a BusError; it may wait for a connection as long as it likes."""

    def __init__(self, task: WorkerTask, boot: str, publish: Publish, spool: Spool | None = None) -> None:
        self._subject = subjects.job_log(task.job, task.pod)
        self._head = LogBatch(task.uid, task.attempt, boot, 0, (), task.node)
        self._pod, self._node = task.pod, task.node
        self._publish = publish
        self._spool = spool
        self._open: list[bytes] = []
        self._open_size = 0
        self._ready: deque[Piece] = deque()
        self._ready_size = 0
        self._oldest: deque[Piece] = deque()  # read back from the spool
        self._spilling: asyncio.Task[None] | None = None
        self._secret = secrets.token_hex(16)
        self._next = 1
        self._given_up = self.given_up = spool.lost if spool is not None else 0  # since the last batch
        """Lines that were given up, in all."""
        self._changed = asyncio.Event()
        self._under_way: Piece | None = None
        self._idle = asyncio.Event()
        if spool is None or not spool.files:
            self._idle.set()
        self._hurry = False
        self._closed = False

    # --- lines in ----------------------------------------------------------------------------------------------------------------

    def feed(self, rank: int, incarnation: int, kind: LogKind) -> Feed:
        """Where the bytes of one pipe go."""
        return Feed(self, rank, incarnation, kind)

    def say(self, text: str, phase: str = "") -> None:
        """A word of the agent itself, as the structured line of fault tolerance (AegisLog)."""
        at = now_ms()
        line = AegisLog(PodName=self._pod, NodeName=self._node, TimeStamp=at, Phase=phase, Message=text)
        self.put(LogLine(at, -1, -1, "aegis", encode(line).decode()))

    def put(self, line: LogLine) -> None:
        """Take one line, or a part of one."""
        if self._closed:
            return
        data = _encode(line)
        if len(data) > ROOM // 2 and len(line.text) > SMALL:
            texts = [line.text[at : at + SMALL] for at in range(0, len(line.text), SMALL)]
            for n, text in enumerate(texts):
                self.put(msgspec.structs.replace(line, text=text, part=line.part + n, more=line.more or n + 1 < len(texts)))
            return
        if self._open_size + len(data) + 1 > ROOM:
            self._end_batch()
        if not self._open:
            self._idle.clear()
            self._changed.set()
        self._open.append(data)
        self._open_size += len(data) + 1

    def _end_batch(self) -> None:
        if not self._open:
            return
        piece = Piece(len(self._open), b",".join(self._open))
        self._open, self._open_size = [], 0
        self._ready.append(piece)
        self._ready_size += len(piece.data)
        self._changed.set()
        if self._ready_size > MEMORY and self._spool is not None and self._spilling is None:
            self._spilling = asyncio.create_task(self._spill(self._spool))
        while self._ready_size > MOST:
            self._give_up(self._take_ready().lines)

    def _take_ready(self) -> Piece:
        piece = self._ready.popleft()
        self._ready_size -= len(piece.data)
        return piece

    def _give_up(self, lines: int) -> None:
        self._given_up += lines
        self.given_up += lines

    async def _spill(self, spool: Spool) -> None:
        """Move what waits to the disk, in one file."""
        pieces, self._ready, self._ready_size = list(self._ready), deque(), 0
        try:
            self._give_up(await asyncio.to_thread(spool.put, pieces))
        except OSError as error:
            log.warning("the spool of the lines: %s", error)
            self._give_up(sum(piece.lines for piece in pieces))
        finally:
            self._spilling = None
            self._changed.set()

    # --- batches out -------------------------------------------------------------------------------------------------------------

    async def pump(self) -> None:
        """Send for ever, one batch after the other."""
        while True:
            piece = self._under_way = await self._piece()
            boot, first = (piece.boot, piece.first) if piece.boot else (self._head.boot, self._next)
            head = msgspec.structs.replace(self._head, boot=boot, first=first, dropped=self._given_up)
            told, self._given_up = self._given_up, 0
            if piece.at >= 0 and self._spool is not None:
                await self._note(self._spool, piece, boot, first)
            data = encode(head)[:-1] + b',"lines":[' + piece.data + b"]}"
            if await self._send(data, f"{self._secret}-{boot}-{first}"):
                self._next += 0 if piece.boot else piece.lines
            else:
                self._given_up += told
                self._give_up(piece.lines)
            self._under_way = None

    async def _note(self, spool: Spool, piece: Piece, boot: str, first: int) -> None:
        try:
            await asyncio.to_thread(spool.sending, piece, boot, first)
        except OSError as error:  # should we be killed now, one piece may be stored twice
            log.info("the spool of the lines: %s", error)

    async def _piece(self) -> Piece:
        """The oldest lines that wait."""
        while True:
            if self._oldest:
                return self._oldest.popleft()
            if self._spilling is not None:  # what it writes is older than what came since, and is only then to be found
                await asyncio.wait({self._spilling})
                continue
            if self._spool is not None and self._spool.files:
                pieces, lost = await asyncio.to_thread(self._spool.take)
                self._give_up(lost)
                self._oldest.extend(pieces)
                continue
            if self._spool is not None and self._spool.taken:
                await asyncio.to_thread(self._spool.done)
                continue
            if self._ready:
                return self._take_ready()
            if self._open:
                await self._linger()
                if not self._ready and self._spilling is None:
                    self._end_batch()
                continue
            self._idle.set()
            self._changed.clear()
            await self._changed.wait()

    async def _linger(self) -> None:
        """Wait for more lines, unless there is a hurry or a batch is full."""
        self._changed.clear()
        if self._hurry or self._ready:
            return
        try:
            async with asyncio.timeout(LINGER):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _send(self, data: bytes, msg_id: str) -> bool:
        """False: it is refused for good."""
        tries = 0
        while True:
            try:
                await self._publish(self._subject, data, msg_id)
                return True
            except (NotAllowed, Rejected) as error:
                if isinstance(error, Rejected) and not error.retryable:
                    log.warning("lines given up: %s", error)
                    return False
                log.info("lines not sent yet: %s", error)
            except BusError as error:
                log.debug("lines not sent yet: %s", error)
            tries += 1
            await asyncio.sleep(random.uniform(0, min(RETRY_MOST, RETRY_FIRST * 2 ** min(tries, 8))))

    async def flush(self, timeout: float) -> bool:
        """True when everything is stored within `timeout` seconds; from now on no batch waits for more lines."""
        self._hurry = True
        self._changed.set()
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
            return True
        except TimeoutError:
            return False

    async def leave(self) -> None:
        """The agent goes: what still waits is left on the disk for who takes its place. Nothing more is taken, and nothing sent."""
        if self._closed:
            return
        self._end_batch()
        try:
            async with asyncio.timeout(LEAVE):
                await self._leave_on_disk()
        except TimeoutError:
            log.warning("the spool of the lines: no answer of the disk within %g s; what waits is given up", LEAVE)
        except OSError as error:
            log.warning("the spool of the lines: %s", error)
        finally:
            self._closed = True

    async def _leave_on_disk(self) -> None:
        if self._spilling is not None:
            await asyncio.wait({self._spilling})
        self._closed = True
        if self._spool is None or self._idle.is_set():
            self._forget()
            if self._spool is not None:
                await asyncio.to_thread(self._spool.clear)
            return
        under_way = self._under_way
        if under_way is not None and under_way.at < 0:
            await asyncio.to_thread(self._spool.put_first, under_way, self._head.boot, self._next)
        if self._ready:
            await asyncio.to_thread(self._spool.put, list(self._ready))

    def close(self) -> None:
        """Nobody will ever read: take no more lines, forget what waits."""
        self._closed = True
        self._forget()
        if self._spool is not None:
            self._spool.clear()

    def _forget(self) -> None:
        self._open, self._ready, self._oldest = [], deque(), deque()
        self._open_size = self._ready_size = 0


class Feed:
    """Bytes of one pipe to numbered lines: whole ones as they come, a long one in parts, its end when the pipe ends."""

    def __init__(self, road: LogRoad, rank: int, incarnation: int, kind: LogKind) -> None:
        self._road, self._rank, self._incarnation, self._kind = road, rank, incarnation, kind
        self._rest = b""
        self._part = 0

    def take(self, data: bytes) -> None:
        """Bytes as they were read."""
        at = now_ms()
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._put(at, line, more=False)
        while len(self._rest) > PART:
            cut = PART
            while cut > PART - 4 and self._rest[cut] & 0xC0 == 0x80:  # not within a character
                cut -= 1
            piece, self._rest = self._rest[:cut], self._rest[cut:]
            self._put(at, piece, more=True)

    def _put(self, at: int, line: bytes, *, more: bool) -> None:
        text = line.decode("utf-8", "backslashreplace")
        while len(text) > PART:
            self._one(at, text[:PART], more=True)
            text = text[PART:]
        self._one(at, text, more=more)

    def _one(self, at: int, text: str, *, more: bool) -> None:
        self._road.put(LogLine(at, self._incarnation, self._rank, self._kind, text, self._part, more))
        self._part = self._part + 1 if more else 0

    def end(self) -> None:
        """The pipe is closed: what is left is a line."""
        if self._rest or self._part:
            rest, self._rest = self._rest, b""
            self._put(now_ms(), rest, more=False)
