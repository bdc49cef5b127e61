"""The nats-py client of a simulated world: what `aegis_bus.link.Link` drives instead of `nats.aio.client.Client`.

One connection to the one `Server`. Messages keep their order in each direction, take a little while, wait during a cut, and are lost with the
connection. A delivery runs in the process that owns the connection: not while that is stopped, never once it is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
from simulation.loop import PROCESS, Handle, Loop, Process
from simulation.server import Headers, Server

PING_TIMEOUT = 12.0
"""Seconds of silence after which either side ends the connection (nats-py: up to 60 s; scaled as the other times are)."""


class Msg(msgspec.Struct):
    subject: str
    data: bytes
    headers: Headers | None
    reply: str


class Queue:
    """`sub._pending_queue`: a delivery is handled when it comes, so nothing ever waits."""

    async def join(self) -> None:
        return None


class Sub:
    def __init__(self, ident: int, subject: str) -> None:
        self._id = ident
        self.subject = subject
        self._pending_queue = Queue()

    def _stop_processing(self) -> None:
        return None


class Network:
    """Ways between clients and the server. `latency()` in seconds, one way."""

    def __init__(self, loop: Loop, server: Server, latency: Callable[[], float]) -> None:
        self.loop = loop
        self.server = server
        self.latency = latency
        self.clients: list[Client] = []

    def cut(self, processes: list[Process], seconds: float) -> None:
        """Nothing passes between these processes and the server for so long. A long cut ends the connections, on both sides."""
        until = self.loop.now + seconds
        for process in processes:
            process.cut_until = max(process.cut_until, until)
        for client in list(self.clients):
            if client.process in processes and seconds > PING_TIMEOUT:
                self.loop.call_later(PING_TIMEOUT, client.end, "stale connection", context=self.loop.context_of(None))

    def heal(self, processes: list[Process]) -> None:
        for process in processes:
            process.cut_until = min(process.cut_until, self.loop.now)


NETWORK: Network | None = None
"""The network of the world that runs now."""


class Client:
    """The part of `nats.aio.client.Client` that `Link` uses."""

    def __init__(self) -> None:
        assert NETWORK is not None
        self.network: Network = NETWORK
        self.loop = self.network.loop
        self.process: Process = PROCESS.get() or Process("?")
        self.subscriptions: dict[int, tuple[str, str]] = {}
        self.last_error: Exception | None = None
        self.is_connected = False
        self.max_payload = 1 << 20
        self.connected_server_version = SimpleNamespace(major=2, minor=15, patch=1)
        self.name = ""
        self._public_nkey = ""
        self._handlers: dict[int, Callable[[Any], Coroutine[Any, Any, None]]] = {}
        self._sid = 0
        self._context = self.loop.context_of(self.process)
        self._nobody = self.loop.context_of(None)
        self._to_server = self._to_client = 0.0
        self._under_way: list[Handle] = []
        self._closed_cb: Callable[[], Any] | None = None
        self._reading_task: asyncio.Future[None] = asyncio.Future(loop=self.loop)

    # --- life ----------------------------------------------------------------------------------------------------------------------

    async def connect(self, servers: list[str], *, name: str, error_cb: Any, closed_cb: Any, connect_timeout: float, **_: Any) -> None:
        self.name = name
        server = self.network.server
        await asyncio.sleep(3 * self.network.latency())
        if self.process.cut_until > self.loop.now:
            await asyncio.sleep(connect_timeout)
            raise TimeoutError
        if server.down:
            raise ConnectionRefusedError(111, "connection refused")
        self.is_connected = True
        server.clients.append(self)
        self.network.clients.append(self)
        self.process.on_death.append(self._died)
        self._closed_cb = closed_cb

    @property
    def servers(self) -> list[Any]:
        return []

    @property
    def connected_url(self) -> Any:
        return SimpleNamespace(geturl=lambda: "sim://server")

    def _died(self) -> None:
        """The kernel closes the sockets of a dead process; what was written still arrives."""
        self._leave(lost=False)

    def end(self, why: str) -> None:
        """The connection is lost now, for both sides, and with it what was under way."""
        if not self.is_connected:
            return
        self.last_error = self.last_error or ConnectionResetError(why)
        self._leave(lost=True)
        self._context.run(self.loop.call_soon, self._tell_end)

    def _leave(self, lost: bool) -> None:
        if self.is_connected:
            self.is_connected = False
            if self in self.network.server.clients:
                self.network.server.clients.remove(self)
            if self in self.network.clients:
                self.network.clients.remove(self)
            for sid in list(self.subscriptions):
                self._unsubscribed(sid)
        if lost:
            for handle in self._under_way:
                handle.cancel()

    def _tell_end(self) -> None:
        if not self._reading_task.done():
            self._reading_task.set_result(None)

    async def close(self) -> None:
        self._leave(lost=False)
        self._tell_end()

    # --- what the process sends ------------------------------------------------------------------------------------------------------

    def _post(self, work: Callable[..., None], *args: Any) -> None:
        """Do `work` at the server when what is sent now arrives there: not before what was sent earlier, not during a cut."""
        loop = self.loop
        at = loop.now + self.network.latency()
        at = at if at > self._to_server else self._to_server
        cut = self.process.cut_until
        self._to_server = at = at if at > cut else cut
        if len(self._under_way) > 64:
            self._under_way = [handle for handle in self._under_way if handle._when > loop.now]
        self._under_way.append(loop.post(at, self._nobody, self._arrives, (work, args)))

    def _arrives(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.network.server.down:
            work(*args)

    async def publish(self, subject: str, data: bytes, reply: str = "", headers: Headers | None = None) -> None:
        self._post(self.network.server.handle, self, subject, bytes(data), headers, reply)

    async def subscribe(self, subject: str, queue: str = "", cb: Any = None) -> Sub:
        self._sid += 1
        self._handlers[self._sid] = cb
        self._post(self._subscribed, self._sid, subject, queue)
        return Sub(self._sid, subject)

    def _subscribed(self, sid: int, pattern: str, queue: str) -> None:
        if self.is_connected:
            self.subscriptions[sid] = (pattern, queue)
            self.network.server.subscribed(self, sid, pattern, queue)

    async def _send_unsubscribe(self, sid: int) -> None:
        self._post(self._unsubscribed, sid)

    def _unsubscribed(self, sid: int) -> None:
        known = self.subscriptions.pop(sid, None)
        if known is not None:
            self.network.server.unsubscribed(self, sid, *known)

    def _remove_sub(self, sid: int) -> None:
        self._handlers.pop(sid, None)
        self._unsubscribed(sid)

    async def _flush_pending(self, force_flush: bool = False) -> None:
        return None

    async def _send_ping(self, pong: asyncio.Future[bool]) -> None:
        self._post(self._pong, pong)

    def _pong(self, pong: asyncio.Future[bool]) -> None:
        self._return(self._ponged, pong)

    @staticmethod
    def _ponged(pong: asyncio.Future[bool]) -> None:
        if not pong.done():
            pong.set_result(True)

    # --- what the process gets ---------------------------------------------------------------------------------------------------------

    def _return(self, work: Callable[..., None], *args: Any) -> None:
        loop = self.loop
        at = loop.now + self.network.latency()
        at = at if at > self._to_client else self._to_client
        cut = self.process.cut_until
        self._to_client = at = at if at > cut else cut
        self._under_way.append(loop.post(at, self._context, work, args))

    def deliver(self, sid: int, subject: str, data: bytes, headers: Headers | None, reply: str) -> None:
        """One message leaves the server for this client."""
        loop = self.loop
        at = loop.now + self.network.latency()
        at = at if at > self._to_client else self._to_client
        cut = self.process.cut_until
        self._to_client = at = at if at > cut else cut
        self._under_way.append(loop.post(at, self._context, self._received, (sid, Msg(subject, data, headers, reply))))

    def _received(self, sid: int, msg: Msg) -> None:
        handler = self._handlers.get(sid)
        if handler is None:
            return
        work = handler(msg)
        try:
            work.send(None)
        except StopIteration:
            return
        raise AssertionError(f"the handler of {msg.subject} waits: nats-py would call it in a task of its own")
