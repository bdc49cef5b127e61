"""lognexus as it runs: with the rights of its role, killed in the middle, several of it, asked by people, judging failures."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.jobstore import JobStore
from aegis_bus.natsserver import NatsServer
from aegis_proto import messages, subjects
from aegis_proto.api import RequestRefused, read_reply
from aegis_proto.blobs import pieces
from aegis_proto.logs import LogsQuery, VerdictsAnswer, VerdictsQuery
from aegis_proto.looks import RankStack, Stacks
from aegis_proto.messages import Fact, JobEvent, NodeSpec, Verdict
from aegis_proto.metrics import Anomaly
from aegis_proto.phases import FactKind
from aegis_proto.state import JobState, Pod, Tally
from harness.bus import MakeBus
from harness.service import starting
from harness.site import A, B, Secured, job_state
from harness.waiting import until
from log_service import Process, Worker, ask

Start = Callable[..., Awaitable[Process]]


@pytest_asyncio.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with starting(Process, tmp_path) as start:
        yield start


def counted(job: str, incarnation: int, pod: str = "w0", cause: str = "error") -> bytes:
    event = JobEvent(
        f"{job}-{incarnation}", job, "default", "counted", "2026-11-30T00:00:00Z", incarnation, 5, "Troubleshooting", cause, pod, "n1", counted=True
    )
    return messages.encode(event)


async def verdict_of(bus: Bus, job: str, incarnation: int | str) -> Verdict:
    async def there() -> Verdict | None:
        stored = await bus.get("EVENTS", subjects.verdict("lognexus", "job", f"{job}-{incarnation}"))
        return messages.decode(Verdict, stored.data) if stored else None

    found: Verdict = await until(there, 20, f"a verdict of {job} {incarnation}")
    return found


async def test_with_the_rights_of_its_role_it_keeps_lines_answers_people_and_judges(secured: Secured, start: Start) -> None:
    process = await start(secured.url, creds=secured.creds("lognexus"))
    agents = {pod: await secured.bus("agent", job=A, pod=pod) for pod in ("w0", "w1")}
    workers = {pod: Worker(bus, A, pod) for pod, bus in agents.items()}
    for step in range(20):
        for rank, worker in enumerate(workers.values()):
            await worker.send([f"step {step}", f"loss {step}.5"], rank)
    await workers["w1"].send(["Traceback (most recent call last):", "KeyError: 'target'"], 1)
    reader = await secured.bus("reader")

    async def all_there() -> bool:
        try:
            return len((await ask(reader, LogsQuery(A, tail=1000))).lines) == 82
        except (RequestRefused, BusError):
            return False

    await until(all_there, 20, "all lines are answered")
    answer = await ask(reader, LogsQuery(A, worker="w1", rank=1, grep="loss", tail=3))
    assert [(line.worker, line.rank, line.message) for line in answer.lines] == [("w1", 1, f"loss {step}.5") for step in (17, 18, 19)]
    assert answer.replica == "logs-1"
    assert (await ask(reader, LogsQuery(A, tail=5), "default")).lines
    with pytest.raises(RequestRefused, match="no job"):
        await ask(reader, LogsQuery(A, tail=5), "other")
    with pytest.raises(RequestRefused, match="grep"):
        await ask(reader, LogsQuery(A, grep="(", tail=5))
    with pytest.raises(RequestRefused, match="no id"):
        await ask(reader, LogsQuery("../x", tail=5))
    master = await secured.bus("master")
    await master.publish(subjects.job_event(A), counted(A, 0, "w1"))
    verdict = await verdict_of(master, A, 0)
    assert (verdict.cause, verdict.suspects, verdict.accused) == ("user_code", ("w1/r1",), ())
    assert verdict.firstLine.startswith("w1/r1:") and "KeyError: 'target'" in verdict.sentence
    assert "KeyError" in verdict.sentenceZh and "训练代码" in verdict.sentenceZh
    asked = await reader.request(subjects.rpc_query("lognexus", "verdicts"), messages.encode(VerdictsQuery(A)))
    assert read_reply(VerdictsAnswer, asked).items == (verdict,)
    assert await process.end(signal.SIGTERM) == 0
    assert len(process.lines(A)) == 82
    for bus in (*agents.values(), reader, master):
        await bus.close()


async def test_what_is_no_batch_goes_to_the_dead_letters_and_the_rest_is_kept(bus: Bus, nats_server: NatsServer, start: Start) -> None:
    worker = Worker(bus, A, "w0")
    await bus.publish(subjects.job_log(A, "w0"), b"\xff\x00 not JSON")
    await bus.publish(subjects.job_log(A, "w0"), b'{"uid":"u","attempt":1,"boot":"../x","first":1}')
    await bus.publish(subjects.job_log(A, "w0"), b'{"uid":"u","attempt":1,"boot":"b","first":-5}')
    await bus.publish("aegis.job.Not_An_Id.log.w0", b"{}")
    await worker.send(["still here"])
    process = await start(nats_server.url)
    await until(lambda: [line.message for line in process.lines(A)] == ["still here"], 20, "the good line")

    async def letters() -> bool:
        return (await bus.get("DLQ", subjects.dlq("lognexus", "LOGS", A))) is not None

    await until(letters, 10, "a dead letter")
    assert not list(process.store.glob("jobs/Not*"))


async def test_killed_in_the_middle_with_the_server_nothing_is_lost_or_doubled(
    make_bus: MakeBus, bus: Bus, nats_server: NatsServer, start: Start
) -> None:
    url = nats_server.url
    workers = [Worker(await make_bus(name=f"agent-{k}"), A, f"w{k}") for k in range(3)]
    process = await start(url)

    async def flow(worker: Worker, count: int) -> None:
        for step in range(count):
            await worker.send([f"{step}.{k}" for k in range(10)])

    for round_ in range(3):
        flows = [asyncio.create_task(flow(worker, 60)) for worker in workers]
        seen = len(process.lines(A))
        await until(lambda seen=seen: len(process.lines(A)) > seen, 20, "lines arrive")
        await process.kill9()
        if round_ == 1:
            await asyncio.to_thread(nats_server.kill9)
            await asyncio.to_thread(nats_server.start)
        await asyncio.gather(*flows)
        await process.start()
    await until(lambda: process.hears() and len(process.lines(A)) >= 3 * 1800, 40, "all lines")
    assert await process.end(signal.SIGTERM) == 0
    for worker in workers:
        pod = worker._pod
        assert [line.message for line in process.lines(A) if line.worker == pod] == worker.sent


async def test_replicas_share_the_jobs_and_a_survivor_has_all_lines_of_those_it_takes_over(bus: Bus, nats_server: NatsServer, start: Start) -> None:
    url = nats_server.url
    jobs = [f"job-{n:06d}" for n in range(12)]
    for job in jobs:
        await JobStore(bus).create(job_state(job, f"uid-{job}"))
    first, second = await start(url, "logs-1"), await start(url, "logs-2")

    async def both_live() -> bool:
        return len(await bus.get_many("LEASES", [subjects.lease("*")])) == 2

    await until(both_live, 20, "two leases")
    workers = [Worker(bus, job, "w0") for job in jobs]
    answered: dict[str, str] = {}

    async def known(count: int) -> bool:
        for job in jobs:
            try:
                answer = await ask(bus, LogsQuery(job, tail=0))
            except (RequestRefused, BusError):
                return False
            answered[job] = answer.replica
            if len(answer.lines) != count:
                return False
        return True

    for worker in workers:
        await worker.send(["a", "b"])

    async def shared() -> bool:  # a lease is stored before the other replica has heard of it
        return await known(2) and set(answered.values()) == {"logs-1", "logs-2"}

    await until(shared, 30, "all lines of all jobs, and both work")
    lost = [job for job, replica in answered.items() if replica == "logs-1"]
    await first.kill9()
    for worker in workers:
        await worker.send(["c"])
    await bus.publish(subjects.job_event(lost[0]), counted(lost[0], 0))
    await until(lambda: known(3), 30, "the survivor has everything")
    assert set(answered.values()) == {"logs-2"}
    for job in jobs:
        assert [line.message for line in second.lines(job)] == ["a", "b", "c"]
    assert (await verdict_of(bus, lost[0], 0)).cause == "unknown"


async def test_a_failure_is_judged_once_also_when_it_was_missed(bus: Bus, nats_server: NatsServer, start: Start) -> None:
    await JobStore(bus).create(job_state(A, "uid-alpha"))
    await Worker(bus, A, "w1").send(["OSError: [Errno 28] No space left on device"], 1)
    await bus.publish(subjects.job_event(A), counted(A, 0))
    process = await start(nats_server.url)
    verdict = await verdict_of(bus, A, 0)
    assert (verdict.cause, verdict.suspects) == ("storage", ("w1/r1",))
    stored = await bus.get("REPORTS", subjects.fact(A, "job"))
    assert stored is not None
    fact = messages.decode(Fact, stored.data)
    assert (fact.kind, fact.uid, fact.message, fact.settings["cause"]) == (FactKind.VERDICT, "uid-alpha", verdict.sentence, "storage")
    cursor = process.store / "cursor.json"
    await until(lambda: cursor.exists() and '"events":' in cursor.read_text() and '"events":0' not in cursor.read_text(), 10)
    await process.kill9()
    await process.start()
    await bus.publish(subjects.job_event(A), counted(A, 1))
    await verdict_of(bus, A, 1)
    stored = await bus.get("EVENTS", subjects.verdict("lognexus", "job", f"{A}-0"))
    assert stored is not None and messages.decode(Verdict, stored.data) == verdict
    info = await bus.js_api("STREAM.INFO.EVENTS", {"subjects_filter": "aegis.verdict.>"})
    assert set(info["state"]["subjects"].values()) == {1}


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"AEGIS_LOGNEXUS_STORE": ""}, "lognexus.store"),
        ({"AEGIS_SERVICE_REPLICA": "Not An Id"}, "service.replica"),
        ({"AEGIS_LOGNEXUS_MAX_AGE": "soon"}, "AEGIS_LOGNEXUS_MAX_AGE"),
    ],
)
async def test_a_mistake_in_the_settings_names_the_variable(tmp_path: Path, start: Start, env: dict[str, str], text: str) -> None:
    process = await start("nats://127.0.0.1:1", **env)
    assert await process.end(signal.SIGCONT) == 2
    assert text in process.log.read_text()


async def test_what_netmon_says_of_the_job_s_links_is_evidence(bus: Bus, nats_server: NatsServer, start: Start) -> None:
    await JobStore(bus).create(job_state(A, "uid-alpha"))
    bad = Verdict("x", "netmon", "network", evidence=("leaf2 port 5 - spine1 port 3: degraded",), confidence=0.8, job=A, state="bad", codes=("l1",))
    await bus.publish(subjects.verdict("netmon", "job", A), messages.encode(bad))
    await bus.publish(subjects.job_event(A), counted(A, 0))
    await start(nats_server.url)
    assert (await verdict_of(bus, A, 0)).cause == "network"
    await bus.publish(subjects.verdict("netmon", "job", A), messages.encode(Verdict("y", "netmon", "network", job=A, state="healthy")))
    await bus.publish(subjects.job_event(A), counted(A, 1))
    assert (await verdict_of(bus, A, 1)).cause == "unknown"


async def test_a_mark_is_judged_while_nothing_is_stopped_and_failures_are_compared(secured: Secured, start: Start) -> None:
    """With the rights of its role: the labels of machines, what their daemons noticed, and what agents saw."""
    master = await secured.bus("master")
    nodes = {node: await secured.bus("node", node=node) for node in ("n0", "n1")}
    agent = await secured.bus("agent", job=B, pod="w1")
    for node, bus in nodes.items():
        await bus.publish(subjects.node_spec(node), messages.encode(NodeSpec(node, labels={"rack": "r1"})))
    await nodes["n1"].publish(
        subjects.node_event("n1", "anomaly"), messages.encode(Anomaly("", "n1", "gpuSilent", 1, "the GPU driver does not answer"))
    )
    store = JobStore(master)
    loaded = await store.load(B)
    assert loaded is not None
    head = msgspec.structs.replace(loaded.state.head, tally=Tally(hung=1))
    await store.commit(loaded, JobState(head, (tuple(Pod(node=node, boot="b") for node in nodes),), loaded.state.spec))
    body = Stacks(
        1,
        10.0,
        tuple(RankStack(rank, rank != 2, "load (data.py:9)" if rank == 2 else "train (t.py:1)", rank=rank, moved=False) for rank in (2, 3, 4)),
    )
    for piece in pieces(messages.encode(body), "stacks", uid=secured.jobs[B], attempt=1, incarnation=0):
        await agent.publish(subjects.blob(B, "w1", "s-1"), messages.encode(piece))
    mark = JobEvent("m-1", B, "default", "mark", "2026-11-30T00:00:00Z", 0, 5, "RunCommand", "hang", "w1", "n1")
    await master.publish(subjects.job_event(B), messages.encode(mark))
    process = await start(secured.url, creds=secured.creds("lognexus"))
    told = await verdict_of(master, B, "0-hang")
    assert (told.state, told.cause, told.nodes, told.accused) == ("hang", "gpu_hw", ("n1",), ("n1",))
    assert told.sentence.startswith("No progress, nothing is stopped yet") and any("[stacks] rank 2 is in load" in line for line in told.evidence)
    for incarnation in (0, 1):
        await master.publish(subjects.job_event(B), counted(B, incarnation))
    first, second = await verdict_of(master, B, 0), await verdict_of(master, B, 1)
    assert (first.state, first.history) == ("", ()) and second.history == ("n1 is suspect in 2 of 2 failures of this job (incarnations 0, 1)",)
    assert await process.end(signal.SIGTERM) == 0
    for bus in (*nodes.values(), agent, master):
        await bus.close()
