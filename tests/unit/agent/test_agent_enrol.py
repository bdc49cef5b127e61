"""A worker and the real credentials service: in by its token, out by revocation, plain without it; and what its training cannot read."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aegis_agent.enrol import may_sign
from aegis_agent.handover import WorkerTask
from aegis_agent.procs import carries, processes
from aegis_bus.errors import Unreachable
from aegis_bus.jobstore import JobStore
from aegis_credentials.setup import create_site
from aegis_proto import subjects
from aegis_proto.messages import Message, decode, decode_data
from aegis_proto.phases import OrderPhase
from aegis_proto.state import Head, JobSpec, JobState, Order, Pod, empty_shards
from agent_scripted_master import Agent, until
from harness.site import Secured

pytestmark = pytest.mark.timeout(120)


@dataclass
class Service:
    target: str
    process: subprocess.Popen[bytes]


def start_service(secured: Secured, folder: Path, name: str, listen: str = "127.0.0.1:0", **extra: str) -> Service:
    """A replica of the credentials service as a process; returns when it serves."""
    address = secured.site.folder / f"grpc-{name}.addr"
    address.unlink(missing_ok=True)
    environ = {
        **os.environ,
        "AEGIS_BUS_SERVERS": secured.url,
        "AEGIS_CREDENTIALS_STATE": str(secured.site.folder),
        "AEGIS_CREDENTIALS_LISTEN": listen,
        "AEGIS_SERVICE_REPLICA": name,
        **extra,
    }
    log = folder / f"{name}.log"
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", "aegis_credentials"], env=environ, stdout=out, stderr=out)
    end = time.monotonic() + 30
    while not address.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert address.exists(), log.read_text()
    return Service(address.read_text().strip(), process)


@pytest.fixture(scope="module")
def service(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = start_service(secured, tmp_path_factory.mktemp("credentials"), "a1")
    yield started
    started.process.terminate()
    started.process.wait(20)


class Job:
    """A job as a master holds it, with the rights of a master."""

    def __init__(self, store: JobStore, bus: Any, job: str, uid: str) -> None:
        self.store, self.bus, self.job, self.uid = store, bus, job, uid
        self.seq = 0
        self.loaded: Any = None

    @classmethod
    async def create(cls, secured: Secured, job: str, workers: int = 1, attempt: int = 1) -> Job:
        bus = await secured.bus("master")
        made = cls(JobStore(bus), bus, job, f"uid-{job}")
        name = job.rpartition("-")[0]
        spec = JobSpec(name=name, command=("true",), workers=workers)
        state = JobState(
            Head(job=job, name=name, namespace="default", uid=made.uid, workerNum=workers, maxRetry=3, era="e1"), empty_shards(workers), spec
        )
        made.loaded = await made.store.create(state.with_pod(0, Pod(attempt=attempt)))
        return made

    async def order(self, phase: OrderPhase, incarnation: int = 0, attempt: int = 1, **changes: Any) -> None:
        self.seq += 1
        state = self.loaded.state
        order = Order(phase, self.seq, incarnation, ((attempt, state.head.workerNum),), **changes)
        state = state.with_head(order=order, seqNum=self.seq, incarnation=incarnation)
        end = time.monotonic() + 30
        while True:
            try:
                self.loaded = await self.store.commit(self.loaded, state.with_pod(0, Pod(attempt=attempt)))
                return
            except Unreachable:  # certainly not committed: a service that starts pushes accounts, and connections are made anew
                assert time.monotonic() < end
                await self.bus.wait_connected(30)

    async def report(self, kind: str, phase: str = "", pod: str = "w0") -> Any:
        async def last() -> Any:
            stored = await self.bus.get("REPORTS", subjects.report(self.job, pod, kind), leader=True)
            return decode(Message, stored.data) if stored is not None else None

        end = time.monotonic() + 30
        while (message := await last()) is None or message.phase != phase:
            assert time.monotonic() < end, f"no report {kind} {phase}"
        return decode_data(message)


def task(secured: Secured, service: Service | None, job: str, *command: str, attempt: int = 1, **changes: Any) -> WorkerTask:
    spec = JobSpec(name="t", command=command, workers=1, stopGrace=2.0)
    token = secured.site.secret.join_token(job, f"uid-{job}", "w0", attempt)
    made = WorkerTask(
        spec=spec,
        job=job,
        uid=f"uid-{job}",
        attempt=attempt,
        token=token,
        credentials=service.target if service else "127.0.0.1:1",
        tlsCa=str(secured.site.ca_pem),
        plainAddr="127.0.0.1",
        plainPort=23456,
    )
    return msgspec.structs.replace(made, **changes)


@pytest.fixture
def agents() -> Iterator[list[Agent]]:
    started: list[Agent] = []
    yield started
    for agent in started:
        agent.kill()


async def test_with_its_token_it_enrols_and_obeys_with_the_rights_as_shipped(
    secured: Secured, service: Service, tmp_path: Path, agents: list[Agent]
) -> None:
    job = await Job.create(secured, "enrol-000001")
    await job.order(OrderPhase.WAIT)
    begun = time.monotonic()
    agents.append(agent := Agent(tmp_path, task(secured, service, job.job, "sh", "-c", "echo trained; exit 4")))
    await job.report("pending")
    print(f"start -> PENDING in the stream: {time.monotonic() - begun:.2f} s")
    await job.order(OrderPhase.BOOTCHECK)
    checked = await job.report("finish", "bootcheck")
    await job.order(OrderPhase.COMMAND, masterAddr=checked.addr, masterPort=checked.port)
    assert (await job.report("error", "command")).exitCode == 4
    await job.order(OrderPhase.STOP)
    assert (await job.report("stopped", "stop")).clean
    assert not Path(agent.folder / "task-w0-1.json").exists()  # it held the token
    await job.order(OrderPhase.QUIT, exitCode=4)
    assert await agent.exit_code() == 4
    await job.bus.close()


async def test_revoked_it_stops_its_command_and_leaves(secured: Secured, service: Service, tmp_path: Path, agents: list[Agent]) -> None:
    job = await Job.create(secured, "enrol-000002")
    await job.order(OrderPhase.WAIT)
    agents.append(agent := Agent(tmp_path, task(secured, service, job.job, "sleep", "600")))
    await job.report("pending")
    await job.order(OrderPhase.COMMAND, masterAddr="127.0.0.1", masterPort=23000)
    await until(lambda: agent.status.running, "running")
    operator = await secured.bus("operator")
    await operator.request(subjects.rpc_do("credentials", "revoke", "default"), json.dumps({"job": job.job, "pod": "w0"}).encode())
    await operator.close()
    assert await agent.exit_code(60) == 75
    assert agent.last_word.reason in ("revoked", "superseded") and agent.last_word.clean
    assert not [pid for pid in processes() if carries(pid, f"uid-{job.job}.")]
    await job.bus.close()


async def test_a_superseded_attempt_never_runs(secured: Secured, service: Service, tmp_path: Path, agents: list[Agent]) -> None:
    job = await Job.create(secured, "enrol-000003", attempt=2)
    agents.append(agent := Agent(tmp_path, task(secured, service, job.job, "echo", "ran")))
    assert await agent.exit_code() == 75
    assert agent.last_word.reason == "superseded" and "ran\n" not in agent.text
    await job.bus.close()


async def test_of_two_agents_of_one_place_the_second_leaves_and_never_runs_the_command(
    secured: Secured, service: Service, tmp_path: Path, agents: list[Agent]
) -> None:
    """A container started twice, or an agent started anew under its old attempt: not a plain job beside the managed one."""
    job = await Job.create(secured, "enrol-000009")
    await job.order(OrderPhase.WAIT)
    agents.append(first := Agent(tmp_path / "first", task(secured, service, job.job, "sh", "-c", "echo ran; exec sleep 600")))
    await job.report("pending")
    await job.order(OrderPhase.COMMAND, masterAddr="127.0.0.1", masterPort=23000)
    await until(lambda: "ran\n" in first.text, "the command of the first")
    agents.append(second := Agent(tmp_path / "second", task(secured, service, job.job, "sh", "-c", "echo ran")))
    assert await second.exit_code(60) == 75  # long before it would give up waiting and run plain
    assert second.last_word.reason == "bound" and not second.last_word.plain
    assert "ran\n" not in second.text and "already belongs to another process" in second.text
    assert first.status.running and first.process.poll() is None
    await job.bus.close()


async def test_it_renews_before_its_credentials_expire_and_comes_back_when_they_did(secured: Secured, tmp_path: Path, agents: list[Agent]) -> None:
    """Credentials of 8 seconds: renewed on the way; with the service away they expire, and the worker is back when the service is."""
    short = start_service(secured, tmp_path, "short", AEGIS_CREDENTIALS_TTL="8")
    try:
        job = await Job.create(secured, "renew-000001")
        await job.order(OrderPhase.WAIT)
        begun = time.monotonic()
        agents.append(agent := Agent(tmp_path, task(secured, short, job.job, "sleep", "600")))
        await job.report("pending")
        await job.order(OrderPhase.COMMAND, masterAddr="127.0.0.1", masterPort=23000)
        await until(lambda: agent.status.running, "running")
        (child,) = [pid for pid in processes() if carries(pid, f"uid-{job.job}.w0.1.0")]
        await until(lambda: time.monotonic() - begun > 12, "past the first expiry")
        await job.order(OrderPhase.COMMAND, masterAddr="127.0.0.1", masterPort=23000)
        await until(lambda: agent.status.connected and agent.status.seqNum == job.seq, "an order heard after the first expiry")

        short.process.kill()
        short.process.wait()
        await until(lambda: not agent.status.connected, "expiry without a service")
        assert "expired" in agent.status.why or "refused" in agent.status.why
        short = start_service(secured, tmp_path, "short", listen=short.target, AEGIS_CREDENTIALS_TTL="60")
        await until(lambda: agent.status.connected, "connection again", 60)
        await job.order(OrderPhase.COMMAND, masterAddr="127.0.0.1", masterPort=23000)
        await until(lambda: agent.status.seqNum == job.seq, "an order heard again")
        assert [pid for pid in processes() if carries(pid, f"uid-{job.job}.w0.1.0")] == [child]
        await job.order(OrderPhase.QUIT)
        assert await agent.exit_code() == 0
        await job.bus.close()
    finally:
        short.process.kill()
        short.process.wait()


PRINT_ENV = (sys.executable, "-c", "import os; print(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'))); exit(6)")
SHORT = {"AEGIS_AGENT_START_WAIT": "1"}


@pytest.mark.parametrize("case", ["no service", "wrong token", "no token", "certificate of another CA", "no CA", "no address"])
async def test_without_a_way_in_the_first_attempt_is_a_plain_job(
    case: str, secured: Secured, service: Service, tmp_path: Path, agents: list[Agent]
) -> None:
    job = await Job.create(secured, f"plain-{abs(hash(case)) % 10**6:06d}")
    good = task(secured, service, job.job, *PRINT_ENV)
    other = create_site(tmp_path / "other")
    changes = {
        "no service": {"credentials": "127.0.0.1:1"},
        "wrong token": {"token": "wrong"},
        "no token": {"token": ""},
        "certificate of another CA": {"tlsCa": str(other.ca_pem)},
        "no CA": {"tlsCa": "/no/such/file"},
        "no address": {"credentials": ""},
    }[case]
    agents.append(agent := Agent(tmp_path, msgspec.structs.replace(good, **changes), SHORT))
    assert await agent.exit_code(60) == 6
    last = agent.last_word
    assert (last.plain, last.code, last.reason) == (True, 6, "exited")
    assert "0 1 127.0.0.1 23456" in agent.text and "running without Aegis: " in agent.text
    assert agent.status.plain and agent.status.why and not agent.status.managed
    await job.bus.close()


@pytest.mark.parametrize("case", ["no service", "wrong token"])
async def test_a_later_attempt_is_never_plain(case: str, secured: Secured, service: Service, tmp_path: Path, agents: list[Agent]) -> None:
    job = await Job.create(secured, f"later-{abs(hash(case)) % 10**6:06d}", attempt=2)
    changes: dict[str, Any] = {"no service": {"credentials": "127.0.0.1:1"}, "wrong token": {"token": "wrong"}}[case]
    agents.append(agent := Agent(tmp_path, msgspec.structs.replace(task(secured, service, job.job, "echo", "ran", attempt=2), **changes), SHORT))
    assert await agent.exit_code(60) == 75
    assert not agent.last_word.plain and "] ran" not in agent.text
    await job.bus.close()


async def test_reachable_but_without_orders_nothing_starts_until_the_job_goes_plain(
    secured: Secured, service: Service, tmp_path: Path, agents: list[Agent]
) -> None:
    """Never half and half: a worker that can hear waits for the word of the job."""
    job = await Job.create(secured, "plain-word-1")
    await job.order(OrderPhase.WAIT)
    agents.append(agent := Agent(tmp_path, task(secured, service, job.job, *PRINT_ENV)))
    await job.report("pending")
    await until(lambda: agent.status.connected and agent.status.seqNum >= 1, "connected")
    assert "0 1 127.0.0.1" not in agent.text and not agent.status.plain
    await job.order(OrderPhase.PLAIN)
    assert await agent.exit_code() == 6 and agent.last_word.plain
    await job.bus.close()


def test_only_its_own_challenge_is_signed() -> None:
    who = ("job-1", "w0", 1, "UABC")
    nonce = "n" * 32
    assert may_sign(f"{nonce}|job-1|w0|1|UABC".encode(), *who)
    for other in (f"{nonce}|job-1|w3|1|UABC", f"{nonce}|job-1|w0|1|UABCD", "short|job-1|w0|1|UABC", f"{nonce}", "", "\xff"):
        assert not may_sign(other.encode("latin-1"), *who)


PRY = """
import ctypes, json, os
agent = os.getppid()
found = {"uid": os.getuid(), "names": sorted(os.environ)}
for name in ("environ", "mem", "maps", "fd", "fdinfo", "exe", "cwd"):
    path = f"/proc/{agent}/{name}"
    try:
        look = os.listdir if name in ("fd", "fdinfo") else os.readlink if name in ("exe", "cwd") else lambda path: open(path, "rb").read(16)
        found[name] = str(look(path))
    except OSError as error:
        found[name] = type(error).__name__
libc = ctypes.CDLL(None, use_errno=True)
found["ptrace"] = libc.ptrace(16, agent, 0, 0)
with open(f"/proc/{os.getpid()}/environ", "rb") as file:
    found["own"] = len(file.read(16))
print("PRY", json.dumps(found), flush=True)
"""


def interpreter(user: pwd.struct_passwd) -> str:
    """A Python that this user can run with our packages: the one of these tests may lie in a home that is closed to others."""
    for path in (sys.executable, "/usr/bin/python3"):
        probe = [path, "-c", "import msgspec, nats, grpc, aegis_agent"]
        try:
            if subprocess.run(probe, env=environment(), **as_user(user), cwd="/", capture_output=True, check=False).returncode == 0:
                return path
        except OSError:
            continue
    pytest.skip("no Python here that a user who is not root may run")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def as_user(user: pwd.struct_passwd) -> dict[str, Any]:
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if os.getuid() == 0 else {}


async def test_the_training_reads_neither_seed_nor_token(secured: Secured, service: Service) -> None:
    """As a user that is not root, in the agent's own uid: the memory, environment and files of the agent are closed; the child's own are open."""
    job = await Job.create(secured, "pry-000001")
    await job.order(OrderPhase.WAIT)
    nobody = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ca = folder / "ca.pem"
        ca.write_bytes(secured.site.ca_pem.read_bytes())
        os.chown(ca, nobody.pw_uid, nobody.pw_gid)
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        python = interpreter(nobody)
        given = task(secured, service, job.job, python, "-c", PRY, tlsCa=str(ca), stateDir=str(folder / "state"))
        secrets = {"AEGIS_JOIN_TOKEN": given.token, "AEGIS_CREDENTIALS": given.credentials, "AEGIS_BUS_CREDS": "/creds", "HOME": name}
        command = [python, "-m", "aegis_agent", "worker", "--task", "-"]
        out = (folder / "out").open("w+")
        agent = subprocess.Popen(  # noqa: ASYNC220
            command, env=environment() | secrets, stdin=subprocess.PIPE, stdout=out, stderr=out, cwd="/", **as_user(nobody)
        )
        try:
            assert agent.stdin is not None
            agent.stdin.write(msgspec.json.encode(given))
            agent.stdin.close()
            await job.report("pending")
            await job.order(OrderPhase.COMMAND, masterAddr="127.0.0.1", masterPort=23000)
            text = (folder / "out").read_text
            line = await until(lambda: next((line for line in text().splitlines() if "PRY" in line), ""), "what the child found")
            await job.report("finish", "command")
            assert given.token not in text()
        finally:
            agent.kill()
            agent.wait()
            out.close()
    found = json.loads(line.partition("PRY ")[2])
    assert found["uid"] == nobody.pw_uid != 0
    closed = {name: found[name] for name in ("environ", "mem", "maps", "fd", "fdinfo", "exe", "cwd")}
    assert set(closed.values()) == {"PermissionError"}, closed
    assert found["ptrace"] == -1 and found["own"] == 16
    assert not {name for name in found["names"] if name in secrets and name != "HOME"}
    await job.bus.close()
