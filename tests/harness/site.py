"""A site as shipped on a real nats-server: operator mode, all accounts and rights, all streams, two jobs; and raw clients that may try anything.

`secured` is one server per test module. `raw` connects as a role, an agent or a node daemon by nats-py alone, so that a test can set replies
and headers that `aegis_bus` never would.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_bus.jobstore import JobStore
from aegis_bus.natsserver import NatsServer
from aegis_credentials import accounts
from aegis_credentials.claims import Claims
from aegis_credentials.setup import Site, create_site, ensure_streams
from aegis_proto.state import Head, JobSpec, JobState, empty_shards
from nats.aio.client import Client
from nats.aio.msg import Msg

A, B = "alpha-111111", "beta-222222"
"""Two jobs of different owners."""
UID = {A: "uid-alpha", B: "uid-beta"}


def job_state(job: str, uid: str, workers: int = 2, namespace: str = "default", **head: Any) -> JobState:
    """A job as just created."""
    name = job.rpartition("-")[0] or job
    return JobState(
        Head(job=job, name=name, namespace=namespace, uid=uid, workerNum=workers, maxRetry=3, **head),
        empty_shards(workers),
        JobSpec(name=name, namespace=namespace, command=("true",), workers=workers, env={"SECRET": "of the user"}),
    )


@dataclass
class Secured:
    """A running site."""

    site: Site
    server: NatsServer
    jobs: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.server.url

    def creds(self, role: str, **tags: str) -> str:
        """A creds text; for agents the uid of the job is known."""
        return self.site.issue(role, tags, uid=self.jobs.get(tags.get("job", ""), ""))

    async def bus(self, role: str, **tags: str) -> Bus:
        return await Bus.connect(Identity.from_creds(self.creds(role, **tags)), [self.url], name=f"{role}-test")

    async def system(self) -> tuple[Bus, Claims]:
        bus = await Bus.connect(Identity.from_creds(self.site.system_user()), [self.url], name="sys-test")
        return bus, Claims(bus, self.site.secret)

    async def add_job(self, job: str, uid: str, workers: int = 2, **head: Any) -> None:
        """Create the job by the master's rights, and push its account."""
        master = await self.bus("master")
        try:
            await JobStore(master).create(job_state(job, uid, workers, **head))
        finally:
            await master.close()
        await self.push_account(job, uid, workers)

    async def push_account(self, job: str, uid: str, workers: int = 2, revocations: dict[str, int] | None = None) -> None:
        self.jobs[job] = uid
        sys_bus, claims = await self.system()
        try:
            await claims.push(accounts.job(self.site.secret, job, uid, workers, now=int(time.time()), revocations=revocations))
        finally:
            await sys_bus.close()

    async def streams(self) -> str:
        admin = await self.bus("admin")
        try:
            return await ensure_streams(admin)
        finally:
            await admin.close()


async def prepare(secured: Secured) -> None:
    await secured.streams()
    for job, uid in UID.items():
        await secured.add_job(job, uid)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder: Path = tmp_path_factory.mktemp("site")
    site = create_site(folder / "site")
    server = NatsServer(folder / "nats", auth_conf=site.auth_conf.read_text(), die_with_parent=True)
    server.start()
    running = Secured(site, server)
    try:
        asyncio.run(prepare(running))
        yield running
    finally:
        server.stop(grace=10)


class Raw:
    """A client of nats-py that tries what it is told, and remembers what the server refused."""

    def __init__(self, client: Client, identity: Identity, errors: list[str]) -> None:
        self.nc = client
        self.public = identity.public
        self.errors = errors

    async def settle(self) -> None:
        """Return when the server has dealt with all that was sent. Twice: nats-py writes the first PING ahead of what it has buffered."""
        await self.nc.flush()
        await self.nc.flush()

    def _refused(self) -> bool:
        return any("violation" in text for text in self.errors)

    async def publish(self, subject: str, data: bytes = b"{}", reply: str = "", headers: dict[str, str] | None = None) -> bool:
        """Publish and wait for the server's word; True when it was refused."""
        self.errors.clear()
        await self.nc.publish(subject, data, reply=reply, headers=headers)
        await self.settle()
        return self._refused()

    async def subscribe(self, subject: str, queue: str = "") -> bool:
        """Subscribe; True when it was refused."""
        self.errors.clear()
        sub = await self.nc.subscribe(subject, queue=queue)
        await self.settle()
        refused = self._refused()
        if not refused:
            await sub.unsubscribe()
        return refused

    async def listen(self, subject: str) -> list[Msg]:
        """Subscribe, and give the list that fills."""
        got: list[Msg] = []

        async def on(msg: Msg) -> None:
            got.append(msg)

        self.errors.clear()
        await self.nc.subscribe(subject, cb=on)
        await self.settle()
        assert not self.errors, self.errors
        return got

    async def ask(self, subject: str, data: bytes = b"{}", headers: dict[str, str] | None = None, timeout: float = 2.0) -> dict[str, Any]:
        """Request; the JSON of the answer. Raises when refused or unanswered."""
        self.errors.clear()
        answer = await self.nc.request(subject, data, timeout=timeout, headers=headers)
        return dict(json.loads(answer.data)) if answer.data else {"headers": dict(answer.headers or {})}

    async def answered(self, subject: str, data: bytes = b"", timeout: float = 0.3) -> bool:
        """Does anybody answer? A refused request never is."""
        self.errors.clear()
        try:
            answer = await self.nc.request(subject, data, timeout=timeout)
        except (TimeoutError, nats.errors.Error):
            return False
        return "503" not in str(answer.headers or "")


RawOf = Callable[..., Awaitable[Raw]]


async def connect_raw(url: str, creds: str, **options: Any) -> Raw:
    identity = Identity.from_creds(creds)
    errors: list[str] = []

    async def on_error(error: Exception) -> None:
        errors.append(str(error).lower())

    client = await nats.connect(
        url,
        user_jwt_cb=identity.jwt.encode,
        signature_cb=lambda nonce: base64.b64encode(identity.sign(nonce.encode())),
        inbox_prefix=f"_INBOX.{identity.public}".encode(),
        error_cb=on_error,
        max_reconnect_attempts=1,
        reconnect_time_wait=0.05,
        connect_timeout=3,
        **options,
    )
    return Raw(client, identity, errors)


@pytest_asyncio.fixture
async def raw(secured: Secured) -> AsyncIterator[RawOf]:
    """`await raw("agent", job=A, pod="w0")`, `await raw("reader")`, `await raw(creds=text)`."""
    made: list[Raw] = []

    async def make(role: str = "", creds: str = "", **tags: str) -> Raw:
        client = await connect_raw(secured.url, creds or secured.creds(role, **tags))
        made.append(client)
        return client

    yield make
    for client in made:
        if not client.nc.is_closed:
            await client.nc.close()
