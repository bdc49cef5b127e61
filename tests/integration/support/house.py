"""The whole real stack for a test: nats-server, credentials, masters, job controllers, node daemons, each a process of its own that a test may kill.

Owns one folder and the processes it started; ends them by id. The clocks of the product are shortened by its own settings, never by sleeping.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.identity import Identity
from aegis_bus.jobstore import JobStore
from aegis_bus.natsserver import NatsServer, free_port
from aegis_credentials.setup import Site, create_site, ensure_streams
from aegis_proto import messages, subjects
from aegis_proto.api import ActionReply, ActionRequest, Submit, SubmitReply, read_reply
from aegis_proto.state import Head, JobSpec, JobState, Transition
from harness.waiting import until

QUICK: dict[str, str] = {
    "AEGIS_BUS_LEASE_TTL": "2",
    "AEGIS_MASTER_SCAN": "0.2",
    "AEGIS_MASTER_TAKEOVER_DELAY": "0.2",
    "AEGIS_CREDENTIALS_INTERVAL": "2",
}
"""Waiting times of takeover, a third of the default; what is judged stays as shipped."""


@dataclass
class Child:
    """One process of the stack."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    process: asyncio.subprocess.Process | None = None
    starts: int = 0

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self, env: Mapping[str, str] | None = None) -> None:
        with self.log.open("ab") as out:
            self.process = await asyncio.create_subprocess_exec(
                *self.argv, env={**self.env, **(env or {})}, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.log.parent
            )
        self.starts += 1

    async def kill9(self) -> None:
        if self.alive:
            assert self.process is not None
            self.process.kill()
        await self.ended()

    async def ended(self, timeout: float = 30.0) -> int:
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), timeout)

    async def terminate(self, timeout: float = 30.0) -> int:
        """SIGTERM; the exit code."""
        if self.alive:
            assert self.process is not None
            self.process.send_signal(signal.SIGTERM)
        return await self.ended(timeout)


@dataclass
class House:
    """See the module. `async with house(folder) as h:`."""

    folder: Path
    site: Site
    nats: NatsServer
    children: dict[str, Child] = field(default_factory=dict)
    inside: dict[str, Sequence[str]] = field(default_factory=dict)
    """Name of a process -> command that it is started by (a network namespace)."""
    admin: Bus | None = None

    # --- processes --------------------------------------------------------------------------------------------------------

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("AEGIS_") or k in ("AEGIS_NATS_SERVER", "AEGIS_MASTER_TRACE")}
        return {**kept, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "AEGIS_BUS_SERVERS": self.nats.url, **QUICK, **more}

    def creds(self, name: str, role: str, **tags: str) -> str:
        path = self.folder / f"{name}.creds"
        path.write_text(self.site.issue(role, tags or None, ttl=0))
        path.chmod(0o600)
        return str(path)

    async def start(self, name: str, *argv: str, env: Mapping[str, str] | None = None) -> Child:
        child = Child(name, [*self.inside.get(name, ()), sys.executable, *argv], {**self.environment(), **(env or {})}, self.folder / f"{name}.log")
        self.children[name] = child
        await child.start()
        return child

    async def start_credentials(self, name: str = "credentials", **env: str) -> Child:
        return await self.start(
            name,
            "-m",
            "aegis_credentials",
            env={
                "AEGIS_CREDENTIALS_STATE": str(self.site.folder),
                "AEGIS_CREDENTIALS_LISTEN": f"127.0.0.1:{free_port()}",
                "AEGIS_SERVICE_REPLICA": name,
                **env,
            },
        )

    async def grpc_address(self, name: str = "credentials") -> str:
        path = self.site.folder / f"grpc-{name}.addr"
        return str(await until(lambda: path.exists() and path.read_text().strip(), 60, "address of the credentials service"))

    async def start_master(self, name: str = "m1", **env: str) -> Child:
        creds = self.creds(f"master-{name}", "master")
        return await self.start(name, "-m", "aegis_master", env={"AEGIS_BUS_CREDS": creds, "AEGIS_SERVICE_REPLICA": name, **env})

    async def start_controller(self, name: str = "jc1", **env: str) -> Child:
        creds = self.creds(f"jobcontroller-{name}", "jobcontroller")
        address = await self.grpc_address()
        more = {"AEGIS_BUS_CREDS": creds, "AEGIS_SERVICE_REPLICA": name, "AEGIS_CREDENTIALS_SERVER": address, **env}
        return await self.start(name, "-m", "aegis_jobcontroller", env=more)

    async def start_node(self, name: str, *flags: str, virtual: bool = True, **env: str) -> Child:
        """`virtual`: one of several on this machine, which watches none of it."""
        creds = self.creds(f"node-{name}", "node", node=name)
        argv = ["-m", "aegis_agent", "node", "--node", name, "--state", str(self.folder / f"state-{name}"), "--creds", creds]
        argv += ["--credentials-ca", str(self.site.ca_pem), *(["--virtual"] if virtual else []), *flags]
        return await self.start(name, *argv, env=env)

    async def agent_pid(self, job: str, pod: str) -> int:
        """Process id of the running agent of `pod`, as its daemon wrote it down."""

        def find() -> int:
            for path in self.folder.glob("state-*/slots/*/record.json"):
                record = json.loads(path.read_text())
                if (record["job"], record["pod"], record.get("stage")) == (job, pod, "running") and psutil.pid_exists(record["pid"]):
                    return int(record["pid"])
            return 0

        return int(await until(find, 20, f"agent of {pod}"))

    async def rank_pids(self, job: str, pod: str) -> list[int]:
        """Processes of the training command of `pod` (they carry its scope in their environment)."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environ = process.environ()
                if environ.get("AEGIS_JOB") == job and environ.get("AEGIS_POD") == pod and "RANK" in environ:
                    found.append(process.pid)
        return found

    # --- jobs -------------------------------------------------------------------------------------------------------------

    async def submit(self, command: Sequence[str], name: str = "job", **spec: Any) -> str:
        """Submit; the id of the job."""
        wanted = JobSpec(name=name, command=tuple(command), **{"stopGrace": 5.0, "cwd": str(self.folder), **spec})
        request = messages.encode(Submit(wanted, uuid.uuid4().hex))

        data = await self.ask(subjects.rpc_do("master", "submit", wanted.namespace), request)
        return read_reply(SubmitReply, data).job

    async def ask(self, subject: str, request: bytes, timeout: float = 30.0) -> bytes:
        """A request that is repeated (it is the same one each time) until somebody answers."""

        async def once() -> bytes | None:
            assert self.admin is not None
            try:
                return await self.admin.request(subject, request, timeout=5.0)
            except BusError:
                return None

        return bytes(await until(once, timeout, subject))

    async def act(self, verb: str, job: str, **more: Any) -> ActionReply:
        request = messages.encode(ActionRequest(job, uuid.uuid4().hex, who="test", **more))
        return read_reply(ActionReply, await self.ask(subjects.rpc_do("master", verb, "default"), request))

    async def state(self, job: str) -> JobState:
        assert self.admin is not None
        loaded = await JobStore(self.admin).load(job)
        assert loaded is not None, job
        return loaded.state

    async def when(self, job: str, condition: Any, timeout: float = 60.0, what: str = "") -> JobState:
        """The first state of `job` for which `condition(state)` is true."""

        async def check() -> JobState | None:
            try:
                state = await self.state(job)
            except BusError:  # a server that a test kills, with the question
                return None
            return state if condition(state) else None

        try:
            return await until(check, timeout, what)  # type: ignore[no-any-return]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.describe(job)}") from None

    async def when_phase(self, job: str, phase: str, timeout: float = 60.0) -> JobState:
        return await self.when(job, lambda s: s.head.phase == phase, timeout, f"{job} in {phase}")

    async def ended(self, job: str, timeout: float = 120.0) -> JobState:
        return await self.when(job, lambda s: s.head.phase.terminal, timeout, f"end of {job}")

    async def story(self, job: str) -> list[Transition]:
        """All transitions of the job, from the history of its heads."""
        assert self.admin is not None
        from aegis_bus.ordered import Gap, OrderedReader

        last = (await self.state(job)).head.recent
        found: dict[tuple[int, str, str, int], Transition] = {}
        async with OrderedReader(self.admin, "STORY", [subjects.job_state(job)], start=1) as reader:
            while True:
                try:
                    item = await asyncio.wait_for(anext(reader), 2.0)
                except (TimeoutError, StopAsyncIteration):
                    break
                if isinstance(item, Gap):
                    continue
                for t in messages.decode(Head, item.data).recent:
                    found[(t.seqNum, t.phaseFrom, t.phaseTo, t.timeStamp)] = t
                if any(t.phaseTo in ("Succeed", "Failed") for t in found.values()):
                    break
        for t in last:
            found[(t.seqNum, t.phaseFrom, t.phaseTo, t.timeStamp)] = t
        return sorted(found.values(), key=lambda t: (t.timeStamp, t.seqNum))

    async def describe(self, job: str) -> str:
        """The story and the ends of all logs, for a failing test."""
        lines = [
            f"{t.phaseFrom}->{t.phaseTo} inc {t.incarnation} seq {t.seqNum} ({t.retries}) {t.cause} {t.podName} {t.message}"
            for t in await self.story(job)
        ]
        for child in self.children.values():
            lines.append(f"--- {child.name} ({'alive' if child.alive else 'ended'})")
            lines += child.log.read_text(errors="replace").splitlines()[-8:]
        for log in sorted(self.folder.glob("state-*/slots/*/agent.log")):
            lines.append(f"--- {log.relative_to(self.folder)}")
            lines += log.read_text(errors="replace").splitlines()[-8:]
        return "\n".join(lines)

    async def stop(self) -> None:
        children = [child for child in self.children.values() if child.alive]
        below = [p for child in children for p in _descendants(child.pid)]
        for child in children:
            assert child.process is not None
            child.process.kill()
        for child in children:
            await child.ended()
        for process in [*below, *_of_folder(self.folder)]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self.admin is not None:
            await self.admin.close(grace=0.5)
        await asyncio.to_thread(self.nats.kill9)


def _descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _of_folder(folder: Path) -> list[psutil.Process]:
    """What this test started and nobody is the parent of any more: its working folder or its command line is ours."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in " ".join(process.cmdline()) or process.environ().get("AEGIS_TEST_HOUSE") == str(folder):
                found.append(process)
    return found


def retries(state: JobState) -> str:
    return ":".join(str(pod.retries) for pod in state.pods())


def phases(story: Sequence[Transition]) -> list[str]:
    """Phases entered, in order, without repeats of the same one."""
    out: list[str] = []
    for t in story:
        if not out or out[-1] != t.phaseTo:
            out.append(str(t.phaseTo))
    return out


@contextlib.asynccontextmanager
async def house(
    folder: Path,
    nodes: int = 3,
    masters: int = 1,
    controllers: int = 1,
    *,
    server_days: float = 365.0,
    bus: Callable[[Site], NatsServer] | None = None,
    **node_env: str,
) -> AsyncIterator[House]:
    """Bring the stack up and take it down. `nodes` virtual nodes n1, n2, ...; `server_days`: validity of the certificate; `bus`: another server."""
    os.environ["AEGIS_TEST_HOUSE"] = str(folder)  # inherited by everything started here, for the last sweep
    site = create_site(folder / "site", server_days=server_days)
    nats = bus(site) if bus else NatsServer(folder / "nats", auth_conf=site.auth_conf.read_text(), die_with_parent=True)
    await asyncio.to_thread(nats.start)
    built = House(folder, site, nats)
    try:
        built.admin = await Bus.connect(Identity.from_creds(site.issue("admin")), nats.url.split(","), name="test-admin")
        await ensure_streams(built.admin, getattr(nats, "replicas", 1))
        await built.start_credentials()
        for i in range(masters):
            await built.start_master(f"m{i + 1}")
        for i in range(controllers):
            await built.start_controller(f"jc{i + 1}")
        for i in range(nodes):
            await built.start_node(f"n{i + 1}", **node_env)

        async def ready() -> bool:
            assert built.admin is not None
            try:
                await built.admin.request(subjects.rpc_query("master", "status"), b"", timeout=1.0)
            except Exception:
                return False
            return True

        if masters:
            await until(ready, 60, "a master that answers")
        yield built
    finally:
        await built.stop()
        os.environ.pop("AEGIS_TEST_HOUSE", None)


def now_ms() -> int:
    return int(time.time() * 1000)
