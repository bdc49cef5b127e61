"""The connection of a process to the bus, kept up for as long as the process lives.

`Supervisor` (what a `Bus` is, without its verbs) owns one `Link` at a time and makes the next one when it ends, with jitter and for ever;
subscriptions belong to the bus and move along.

Theory of operation. `_supervise` sleeps until the present link ends, tells `on_closed(reason)`, gets a new JWT if the old one was refused, dials
until a server takes it, subscribes everything again and tells `on_connected()`. `renew` makes the new link first and closes the old one after,
so that no request is lost by a renewal.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar

from aegis_bus import errors, metrics
from aegis_bus.identity import Identity
from aegis_bus.link import Link, LinkLost, refused
from aegis_bus.subscription import Subscription

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_WAIT, MAX_WAIT = 0.4, 5.0
"""Seconds: after a loss the first try comes within [0, FIRST_WAIT], later ones within twice as much each time, at most MAX_WAIT."""
DIAL_TIMEOUT = 8.0
MAX_BATCHES = 8
"""Atomic batches in flight: the server allows 50 open ones per stream for all clients together."""
ANSWER_WITHIN = 2.5
"""Seconds a replaced connection stays for the answers that only it may give (`roles.RESPOND`: 2 s)."""

OnClosed = Callable[[str], Any]
OnConnected = Callable[[], Any]


def _cause(error: Exception | None) -> str:
    """A connect error in the words of the system."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno).lower()
    return str(error or "no answer")


class Supervisor:
    """See the module. Made by `connect`; `connected`, `wait_connected`, `renew`, `close` for its life."""

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
        self.on_link: list[Callable[[], None]] = []
        """Called at every new connection, when all subscriptions are on it. They must not raise."""
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
        metrics.CONNECTED.labels(self.service).set(0)
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
    ) -> Self:
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
        if self.connected:
            return
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
        return errors.unreachable(self._servers, _cause(error), self._tries, time.monotonic() - self._started)

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

    async def __aenter__(self) -> Self:
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
        try:
            for sub in list(self._subs):
                try:
                    await sub.attach(link)
                except errors.NotAllowed as error:
                    sub.refused = error
                    log.error("bus %s: %s", self.name, error)
        except BaseException:
            await link.close("lost")
            raise
        self._servers += [server for server in link.servers if server not in self._servers]
        self._link = link
        self.generation += 1
        for told in list(self.on_link):
            told()
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
