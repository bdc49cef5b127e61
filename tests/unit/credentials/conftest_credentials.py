"""A credentials service on a secured server: in this process (`service`), or as processes that can be killed (`launch`)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_bus.jobstore import JobStore, Loaded
from aegis_credentials.authority import Authority
from aegis_credentials.claims import Claims
from aegis_credentials.grpc_server import serve
from aegis_credentials.level import Level
from aegis_credentials.rpc import Requests
from aegis_proto.enroll import Enrolled, enroll
from aegis_proto.state import Pod
from harness.site import Secured, job_state
from harness.waiting import until_sync


@dataclass
class Running:
    """One replica in this process."""

    secured: Secured
    authority: Authority
    level: Level
    requests: Requests
    target: str
    bus: Bus
    sys_bus: Bus

    async def enroll(
        self, job: str, pod: str, identity: Identity, *, attempt: int = 1, token: str | None = None, uid: str = "", **options: Any
    ) -> Enrolled:
        """First contact (with the right token unless one is given), or renewal with token ""."""
        known = self.secured.jobs.get(job, "")
        if token is None:
            token = self.secured.site.secret.join_token(job, known, pod, attempt)
        arguments = {
            "target": self.target,
            "ca_pem": self.secured.site.ca_pem.read_bytes(),
            "job": job,
            "pod": pod,
            "attempt": attempt,
            "uid": uid or (known if job else ""),
            "nkey_public": identity.public,
            "sign": identity.sign,
            "token": token,
            "timeout": 10.0,
            **options,
        }
        return await asyncio.to_thread(enroll, **arguments)


@asynccontextmanager
async def running(secured: Secured, **options: Any) -> AsyncIterator[Running]:
    """`lifetime`, `interval`, `grace` in seconds; `host` to listen on."""
    levels: list[Level] = []

    def reconnected() -> None:
        for level in levels:
            level.everything()

    bus, sys_bus = [
        await Bus.connect(Identity.from_creds(creds), [secured.url], name=f"credentials-{name}", on_connected=reconnected)
        for name, creds in (("test", secured.creds("credentials")), ("sys", secured.site.system_user()))
    ]
    authority = Authority(secured.site, bus, Claims(sys_bus, secured.site.secret), lifetime=int(options.get("lifetime", 86400)))
    level = Level(authority, bus, interval=options.get("interval", 60.0), grace=options.get("grace", 900.0))
    levels.append(level)
    requests = Requests(authority, bus)
    await authority.ensure_site()
    await level.start()
    await requests.start()
    loop = asyncio.create_task(level.run())
    server, port = await serve(authority, f"{options.get('host', '127.0.0.1')}:0", (secured.url,))
    try:
        yield Running(secured, authority, level, requests, f"{options.get('host', '127.0.0.1')}:{port}", bus, sys_bus)
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await server.stop(grace=0)
        await asyncio.gather(bus.close(), sys_bus.close())


async def add_job(secured: Secured, job: str, workers: int = 2, **head: Any) -> Loaded:
    """Create a job by the master's rights; no account yet: that is the service's work."""
    uid = f"uid-{job}"
    secured.jobs[job] = uid
    master = await secured.bus("master")
    try:
        return await JobStore(master).create(job_state(job, uid, workers, **head))
    finally:
        await master.close()


async def change_job(secured: Secured, job: str, *, attempts: dict[int, int] | None = None, **head: Any) -> None:
    """Commit what a master would: higher attempts (by index), other fields of the head."""
    master = await secured.bus("master")
    try:
        store = JobStore(master)
        loaded = await store.load(job)
        assert loaded is not None
        state = loaded.state
        for index, attempt in (attempts or {}).items():
            state = state.with_pod(index, Pod(attempt=attempt))
        await store.commit(loaded, state.with_head(seqNum=state.head.seqNum + 1, **head))
    finally:
        await master.close()


@dataclass
class Process:
    """A replica as a process of its own."""

    popen: subprocess.Popen[bytes]
    target: str
    log: Path

    def stop(self, timeout: float = 15.0) -> int:
        self.popen.terminate()
        return self.popen.wait(timeout)


@pytest.fixture
def launch(secured: Secured, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """`launch("c1", AEGIS_CRASH_AT="...")`: start a replica and return when it serves."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str = "c1", wait: bool = True, **extra: str) -> Process:
        address = secured.site.folder / f"grpc-{name}.addr"
        address.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "AEGIS_BUS_SERVERS": secured.url,
            "AEGIS_CREDENTIALS_STATE": str(secured.site.folder),
            "AEGIS_SERVICE_REPLICA": name,
            **extra,
        }
        log = tmp_path / f"{name}-{len(started)}.log"
        with log.open("wb") as file:
            popen = subprocess.Popen([sys.executable, "-m", "aegis_credentials"], env=environment, stdout=file, stderr=file, cwd=tmp_path)
        started.append(popen)
        if wait:
            until_sync(lambda: address.exists() or popen.poll() is not None, 20, f"credentials service {name}")
            assert popen.poll() is None, log.read_text()
        return Process(popen, address.read_text().strip() if address.exists() else "", log)

    yield start
    for popen in started:
        if popen.poll() is None:
            popen.kill()
            popen.wait()
