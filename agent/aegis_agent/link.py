"""The way of a worker to the bus: a key that stays in memory, enrolment, the connection, renewal, and the head of its job.

Owns the identity and the `Bus`. Calls back with each head that arrives and with every change of reach. What ends for good (revoked, superseded,
the job has ended) is kept in `told`; everything else is tried again for as long as the worker lives.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aegis_proto import subjects
from aegis_proto.messages import BadMessage, decode
from aegis_proto.state import HeadView

from aegis_agent import mode
from aegis_agent.enrol import EnrolFailed, Session
from aegis_agent.env import without_secrets
from aegis_agent.handover import WorkerTask, read_token
from aegis_agent.reaper import Reaper
from aegis_agent.scope import VARIABLE, scope_id

if TYPE_CHECKING:
    from aegis_bus.connection import Bus, Msg

log = logging.getLogger(__name__)

ENROL_TIMEOUT = 15.0
CONNECT_TIMEOUT = 10.0
RESYNC = 30.0
"""Seconds, with jitter, between two reads of the head that need no event to have arrived."""
FINAL = frozenset({"revoked", "superseded", "ended"})
"""Answers after which this attempt is over."""
TAKEN = frozenset({"bound"})
"""At first contact as well: another agent has this very place. Training beside it would be half of the job managed, and half of it plain."""


class Uplink:
    """`on_head(head)` for every head read or heard; `on_reach()` after each change of `connected` or `told`; `on_ready()` once, when the head that
    stood at the first connection has been handed on (or there was none)."""

    def __init__(
        self,
        task: WorkerTask,
        reaper: Reaper,
        environ: Mapping[str, str],
        *,
        on_head: Callable[[HeadView], None],
        on_reach: Callable[[], None],
        on_ready: Callable[[], None],
    ) -> None:
        self.task = task
        self.bus: Bus | None = None
        self.managed = False
        """Connected at least once."""
        self.told = ""
        self.why = ""
        """Why there is no connection: one line for people."""
        self.lost_at = time.monotonic()
        self.servers: list[str] = []
        self._reaper = reaper
        self._environ = {**without_secrets(environ), VARIABLE: scope_id(task.uid, task.pod, task.attempt, "agent")}
        self._on_head = on_head
        self._on_reach = on_reach
        self._on_ready = on_ready
        self._identity: Any = None
        self._expires = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._up = asyncio.Event()
        self._rng = random.Random()
        self._token = task.token
        self._session: Session | None = None  # started ahead

    @property
    def connected(self) -> bool:
        return self.bus is not None and self.bus.connected

    @property
    def hopeless(self) -> bool:
        """There is no address at which to ask: nobody can ever manage this worker."""
        return not self.task.job or not (self.task.credentials or self.task.servers)

    def open(self) -> None:
        """Begin to try. The memory of the process must be hidden before: the key is made now."""
        if self._token and not self.task.servers:
            try:
                self._session = Session(self._reaper, self._environ)
            except OSError as error:
                log.warning("cannot start the enrolment: %s", error)
        from aegis_bus.identity import Identity

        self._identity = Identity.new()
        self._tasks = [asyncio.create_task(self._run(), name="uplink")]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            self._session.close()
        if self.bus is not None:
            await self.bus.close(grace=2.0)

    async def wait_connected(self) -> None:
        while not self.connected:
            self._up.clear()
            await self._up.wait()

    async def publish(self, subject: str, data: bytes, msg_id: str) -> object:
        """Store one report; raises as `Bus.publish`, and waits for the first connection."""
        await self.wait_connected()
        assert self.bus is not None
        return await self.bus.publish(subject, data, msg_id=msg_id)

    def core(self, subject: str, data: bytes) -> bool:
        return self.bus is not None and self.bus.core(subject, data)

    # --- trying ---------------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        from aegis_bus.connection import Bus
        from aegis_bus.errors import BusError

        tries = 0
        while not self.told:
            try:
                if not self._identity.jwt:
                    self._identity.jwt = await self._enrol()
                self.bus = await Bus.connect(
                    self._identity,
                    self.servers,
                    name=f"agent-{self.task.job}-{self.task.pod}",
                    tls_ca=self._bus_ca(),
                    timeout=CONNECT_TIMEOUT,
                    on_closed=self._closed,
                    on_connected=self._connected,
                    jwt_source=self._enrol,
                )
                await self.bus.subscribe(subjects.view_job_state(self.task.job), self._heard)
                break
            except (BusError, EnrolFailed) as error:
                if self.why != str(error):
                    log.warning("not connected: %s", error)
                self.why = str(error)
                if isinstance(error, BusError):
                    self._identity.jwt = ""
            except Exception as error:
                log.exception("connecting failed")
                self.why = f"{type(error).__name__}: {error}"
            bus, self.bus = self.bus, None
            if bus is not None:  # connected, but not subscribed
                await bus.close(grace=0.5)
            self._on_reach()
            await asyncio.sleep(mode.backoff(tries, self._rng))
            tries += 1
        if self.told:
            return
        self.managed = True
        self._up.set()
        self._on_reach()
        while not await self.read_head():
            await asyncio.sleep(mode.backoff(2, self._rng))
        self._on_ready()
        self._tasks += [asyncio.create_task(self._resync(), name="resync"), asyncio.create_task(self._renew(), name="renew")]

    async def _enrol(self) -> str:
        """A JWT. Notes `told` when the answer is final."""
        if self.task.servers:
            self.servers = list(self.task.servers)
            return ""
        self._token = self._token or read_token(self.task.tokenFile)
        if not self._token and not self.managed:
            raise EnrolFailed("unreachable", "", "E101 no join token was given (the credentials service was away when this worker was placed)")
        try:
            ca = Path(self.task.tlsCa).read_text() if self.task.tlsCa else ""
        except (OSError, UnicodeDecodeError) as error:
            raise EnrolFailed("certificate", "", f"E102 CA file {self.task.tlsCa} of the credentials service: {error}") from None
        request = dict(
            target=self.task.credentials,
            ca=ca,
            job=self.task.job,
            pod=self.task.pod,
            attempt=self.task.attempt,
            uid=self.task.uid,
            nkey=self._identity.public,
            token=self._token,  # also when renewing: after a loss of the store nobody is bound, and it binds again
            timeout=ENROL_TIMEOUT - 3,
        )
        try:
            session, self._session = self._session or Session(self._reaper, self._environ), None
            answer = await session.ask(self._identity.sign, request, ENROL_TIMEOUT)
        except OSError as error:
            raise EnrolFailed("unreachable", "", f"E101 cannot start the enrolment: {error}") from None
        except EnrolFailed as error:
            if error.code in FINAL or (error.code in TAKEN and not self.managed):
                self._tell(error.code)
            raise
        own = self._environ.get("AEGIS_AGENT_SERVERS", "")  # this node may reach the bus by another address than the site says
        self.servers = [part.strip() for part in own.split(",") if part.strip()] or list(answer["servers"])
        self._expires = float(answer["expires"])
        return str(answer["jwt"])

    def _bus_ca(self) -> str | None:
        return self.task.tlsCa or None if any(server.startswith("tls://") for server in self.servers) else None

    def _tell(self, word: str) -> None:
        self.told = word
        self._on_reach()

    # --- connected --------------------------------------------------------------------------------------------------------------

    def _closed(self, reason: str) -> None:
        self.why = f"the connection to the bus ended ({reason})"
        self.lost_at = time.monotonic()
        if reason == "revoked":
            self._tell("revoked")
        else:
            self._on_reach()

    async def _connected(self) -> None:
        self.why = ""
        self._up.set()
        self._on_reach()
        await self.read_head()

    async def _heard(self, msg: Msg) -> None:
        self._take(msg.data)

    def _take(self, data: bytes) -> None:
        try:
            head = decode(HeadView, data)
        except BadMessage as error:
            log.warning("head of %s: %s", self.task.job, error)
            return
        self._on_head(head)

    async def read_head(self) -> bool:
        """Read the head by Direct Get and hand it on; an absent one (the store was lost) is no order. False when it could not be read."""
        from aegis_bus.errors import BusError

        if self.bus is None:
            return False
        try:
            stored = await self.bus.get("CTL", subjects.job_state(self.task.job))
        except BusError as error:
            log.debug("head of %s: %s", self.task.job, error)
            return False
        if stored is not None and stored.data:
            self._take(stored.data)
        return True

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(RESYNC * self._rng.uniform(0.7, 1.3))
            if self.connected:
                await self.read_head()

    def _lifetime(self) -> float:
        """Seconds for which the JWT was given: both ends by the issuer's clock, so that with a wrong one here it is renewed as any other."""
        claims = self._identity.claims
        return float(claims["exp"] - claims["iat"]) if {"exp", "iat"} <= claims.keys() else self._expires - time.time()

    async def _renew(self) -> None:
        from aegis_bus.errors import BusError

        while self._expires:
            tries = 0
            await asyncio.sleep(max(1.0, mode.renew_after(self._lifetime(), self._rng)))
            while not self.told:
                try:
                    jwt = await self._enrol()
                    if self.bus is not None:
                        await self.bus.renew(jwt)
                    break
                except (BusError, EnrolFailed) as error:
                    log.warning("renewal: %s", error)
                    await asyncio.sleep(mode.backoff(tries, self._rng, first=5.0, most=300.0))
                    tries += 1
