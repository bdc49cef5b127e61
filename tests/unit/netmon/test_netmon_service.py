"""netmon as it runs: with the rights of its role, beside daemons and jobs; what gets worse is told once, whatever is killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.jobstore import JobStore
from aegis_bus.natsserver import NatsServer
from aegis_bus.sole import SoleLease
from aegis_proto import messages, subjects
from aegis_proto.api import RequestRefused, read_reply
from aegis_proto.messages import Fact, JobEvent, Verdict
from aegis_proto.net import JobLinksAnswer, JobLinksQuery, LinkAnswer, LinkQuery, LinksAnswer, LinksQuery, NodePorts, Optics, PortCounts
from aegis_proto.phases import FactKind
from aegis_proto.state import JobState, Pod
from harness.bus import MakeBus
from harness.netservice import Node, Process, Sysfs
from harness.service import starting
from harness.site import Secured, job_state
from harness.waiting import until

Start = Callable[..., Awaitable[Process]]
T = TypeVar("T", bound=msgspec.Struct)


@pytest_asyncio.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with starting(Process, tmp_path) as start:
        yield start


async def ask(bus: Bus, verb: str, query: object, kind: type[T], namespace: str = "") -> T:
    return read_reply(kind, await bus.request(subjects.rpc_query("netmon", verb, namespace), messages.encode(query), timeout=3.0))


async def links(bus: Bus) -> LinksAnswer | None:
    """None while nobody answers."""
    try:
        return await ask(bus, "links", LinksQuery(), LinksAnswer)
    except BusError:
        return None


async def verdicts(bus: Bus, what: str, ident: str) -> list[Verdict]:
    """All that is stored of one subject, by its count."""
    subject = subjects.verdict("netmon", what, ident)
    info = await bus.js_api("STREAM.INFO.EVENTS", {"subjects_filter": subject})
    last = await bus.get("EVENTS", subject)
    count = (info["state"].get("subjects") or {}).get(subject, 0)
    return [messages.decode(Verdict, last.data)] * count if last is not None else []


def placed(job: str, nodes: list[str]) -> JobState:
    """A job that runs on these nodes."""
    made = job_state(job, f"uid-{job}", len(nodes))
    return JobState(made.head, (tuple(Pod(node=node, boot="b") for node in nodes),), made.spec)


async def cluster(make: Callable[[str], Awaitable[Bus]], folder: Path, count: int) -> list[Node]:
    return [Node(await make(f"n{n}"), f"n{n}", Sysfs(folder / f"n{n}", 0x100000 + n)) for n in range(count)]


async def everybody(nodes: list[Node], times: int = 1) -> None:
    """Every node polls; each poll in a millisecond of its own."""
    for _ in range(times):
        for node in nodes:
            await node.poll()
        await asyncio.sleep(0.002)


async def test_with_the_rights_of_its_role_a_bad_port_is_told_with_its_job_and_answered(secured: Secured, start: Start, tmp_path: Path) -> None:
    process = await start(secured.url, creds=secured.creds("netmon"))
    master, reader = await secured.bus("master"), await secured.bus("reader")
    await JobStore(master).create(placed("gamma-333333", ["n0", "n1"]))
    nodes = await cluster(lambda node: secured.bus("node", node=node), tmp_path, 5)
    nodes[1].settings = {"gamma-333333": {"NCCL_IB_TIMEOUT": "14"}}
    await everybody(nodes, 2)

    async def seen() -> bool:
        answer = await links(reader)
        return answer is not None and answer.total == 5 and any(link.jobs for link in answer.links)

    await until(seen, 20, "five ports with a job on two")
    nodes[0].sysfs.count("mlx5_0", symbol_error=900)
    nodes[2].sysfs.set("mlx5_0", state="1: DOWN")
    await everybody(nodes)

    async def told() -> bool:
        return bool(await verdicts(master, "job", "gamma-333333")) and bool(await verdicts(master, "link", "n2-mlx5_0-1"))

    await until(told, 20, "the verdicts")
    (verdict,) = await verdicts(master, "link", "n0-mlx5_0-1")
    assert (verdict.cause, verdict.state, verdict.nodes) == ("network", "degraded", ("n0",))
    assert "symbol_error rose by 900" in verdict.sentence and "hits gamma-333333" in verdict.sentence
    assert any("0000000000100000" in line for line in verdict.evidence)
    assert verdict.accused == (), "a receiver's errors speak of the other side first"
    (down,) = await verdicts(master, "link", "n2-mlx5_0-1")
    assert (down.state, down.evidence[-2]) == ("down", "down, 4 of 4 peers are up")
    (of_job,) = await verdicts(master, "job", "gamma-333333")
    assert (of_job.job, of_job.codes, of_job.state) == ("gamma-333333", ("n0-mlx5_0-1",), "bad")
    answer = await links(reader)
    assert answer is not None and [link.state for link in answer.links] == ["down", "degraded", "unproven", "unproven", "unproven"]
    assert answer.routing.state == "unknown" and "netmon.reports" in answer.routing.reason
    shown = await ask(reader, "link", LinkQuery("n0 mlx5_0/1"), LinkAnswer)
    assert (shown.counters[0].name, shown.counters[0].rose, shown.counters[0].bits) == ("symbol_error", 900, 16)
    job = await ask(reader, "job", JobLinksQuery("gamma-333333"), JobLinksAnswer, "default")
    assert (job.nodes, job.total, job.links[0].state) == (("n0", "n1"), 2, "degraded")
    assert any("NCCL_IB_TIMEOUT" in note and "a flap ends the job" in note for note in job.settings)
    with pytest.raises(RequestRefused, match="no job"):
        await ask(reader, "job", JobLinksQuery("gamma-333333"), JobLinksAnswer, "other")
    assert await process.end(signal.SIGTERM) == 0
    netmon = await secured.bus("netmon")
    assert await netmon.get("KEPT", subjects.kept("netmon", "head")) is not None
    await netmon.close()
    for bus in (master, reader):
        await bus.close()


async def test_killed_and_started_again_it_tells_nothing_twice_and_remembers_its_dips(
    make_bus: MakeBus, bus: Bus, nats_server: NatsServer, start: Start, tmp_path: Path
) -> None:
    kept = {"AEGIS_NETMON_KEEP": "0.5"}
    process = await start(nats_server.url, **kept)
    nodes = await cluster(lambda node: make_bus(name=f"node-{node}"), tmp_path, 5)
    await everybody(nodes, 2)
    nodes[1].sysfs.count("mlx5_0", symbol_error=500)
    await everybody(nodes)
    await until(lambda: verdicts(bus, "link", "n1-mlx5_0-1"), 20, "the verdict")
    await process.kill9()
    await everybody(nodes)
    nodes[2].sysfs.count("mlx5_0", link_downed=1)
    await everybody(nodes)
    process = await start(nats_server.url, **kept)
    await until(lambda: verdicts(bus, "link", "n2-mlx5_0-1"), 20, "what happened while it was away")
    assert await process.end(signal.SIGTERM) == 0
    process = await start(nats_server.url, **kept)

    async def back() -> bool:
        answer = await links(bus)
        return answer is not None and [link.link for link in answer.links[:2]] == ["n1-mlx5_0-1", "n2-mlx5_0-1"]

    await until(back, 20, "both are still shown")
    shown = await ask(bus, "link", LinkQuery("n2-mlx5_0-1"), LinkAnswer)
    assert shown.link.flaps == 1 and "between two polls" in shown.dips[0]
    assert [len(await verdicts(bus, "link", f"n{n}-mlx5_0-1")) for n in range(5)] == [0, 1, 1, 0, 0]


async def test_of_two_replicas_one_tells_and_the_other_takes_over(
    make_bus: MakeBus, bus: Bus, nats_server: NatsServer, start: Start, tmp_path: Path
) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text("[common]\nsettle_s = 0.2\n")
    env = {"AEGIS_NETMON_LIMITS": str(limits), "AEGIS_NETMON_KEEP": "0.3"}
    replicas = {name: await start(nats_server.url, name, **env) for name in ("net-1", "net-2")}
    await JobStore(bus).create(placed("delta-444444", ["n0", "n1"]))
    nodes = await cluster(lambda node: make_bus(name=f"node-{node}"), tmp_path, 5)
    await everybody(nodes, 2)

    async def teller() -> str:
        answer = await links(bus)
        return answer.fabric.collector if answer is not None and answer.total == 5 else ""

    first = await until(teller, 20, "one of them answers")
    nodes[0].sysfs.count("mlx5_0", port_rcv_errors=400)
    await everybody(nodes)
    await until(lambda: verdicts(bus, "link", "n0-mlx5_0-1"), 20, "the verdict")
    await replicas[first].kill9()
    other = "net-2" if first == "net-1" else "net-1"
    await until(lambda: _is(teller, other), 20, "the other answers")
    nodes[3].sysfs.count("mlx5_0", port_rcv_errors=400)
    await everybody(nodes)
    await until(lambda: verdicts(bus, "link", "n3-mlx5_0-1"), 20, "the other tells")
    assert len(await verdicts(bus, "link", "n0-mlx5_0-1")) == 1
    await replicas[other].kill9()
    third = await start(nats_server.url, "net-3", **env)
    await until(lambda: _is(teller, "net-3"), 20, "one that never ran before answers")

    async def both() -> bool:
        answer = await links(bus)
        return answer is not None and [link.errors for link in answer.links[:2]] == [400, 400]

    await until(both, 20, "what the two before it counted")
    assert [len(await verdicts(bus, "link", f"n{n}-mlx5_0-1")) for n in (0, 3)] == [1, 1]

    nodes[1].sysfs.set("mlx5_0", state="1: DOWN")
    await everybody(nodes)
    nodes[1].sysfs.set("mlx5_0", state="4: ACTIVE")
    await everybody(nodes)
    job = await ask(bus, "job", JobLinksQuery("delta-444444"), JobLinksAnswer)
    assert job.failures == ()
    event = JobEvent("e1", "delta-444444", "default", "counted", "", 3, 1, "Troubleshooting", "error", "w1", "n1", counted=True)
    await bus.publish(subjects.job_event("delta-444444"), messages.encode(event))

    async def said() -> Fact | None:
        stored = await bus.get("REPORTS", subjects.fact("delta-444444", "job"))
        fact = messages.decode(Fact, stored.data) if stored is not None else None
        return fact if fact is not None and fact.message.startswith("link:") else None

    fact = await until(said, 20, "the job's owner is told what its ports say of the failure")
    assert (fact.kind, fact.uid, fact.who) == (FactKind.VERDICT, "uid-delta-444444", "netmon")
    assert "n1 mlx5_0 port 1 was down" in fact.message and "should have borne" in fact.message
    assert (fact.settings["cause"], fact.settings["incarnation"]) == ("network", "3")
    job = await ask(bus, "job", JobLinksQuery("delta-444444"), JobLinksAnswer)
    assert len(job.failures) == 1 and job.failures[0].startswith("incarnation 3, ") and fact.message in job.failures[0]
    assert await third.end(signal.SIGTERM) == 0


async def _is(asked: Callable[[], Awaitable[str]], wanted: str) -> bool:
    return await asked() == wanted


async def test_a_message_that_is_no_poll_goes_to_the_dead_letters(bus: Bus, nats_server: NatsServer, start: Start, tmp_path: Path) -> None:
    await bus.publish(subjects.net_counter("n7"), b'{"boot":"b","at":1,"names":["x"],"ports":[["../x",1]]}')
    await bus.publish(subjects.net_counter("n8"), b"\xff")
    huge = Optics(minutes=1e308, gbps=1e308, symbolBer=1.0)
    strange = NodePorts("b", 1, ("symbol_error",), (PortCounts("mlx5_0", 1, "", "ACTIVE", 1e308, values=(1,), optics=huge),))
    await bus.publish(subjects.net_counter("n6"), messages.encode(strange))
    good = Node(bus, "n9", Sysfs(tmp_path / "n9", 7))
    await good.poll()
    await start(nats_server.url)

    async def read() -> bool:
        answer = await links(bus)
        letters = [await bus.get("DLQ", subjects.dlq("netmon", "METRICS", node)) for node in ("n6", "n7", "n8")]
        return answer is not None and all(letters) and "n9-mlx5_0-1" in {link.link for link in answer.links}

    await until(read, 20, "the good one is there, and three dead letters")


async def test_a_sole_lease_has_one_holder_and_passes_on(bus: Bus, make_bus: MakeBus) -> None:
    one, other = SoleLease(bus, "work", "one", ttl=2.0), SoleLease(await make_bus(name="other"), "work", "other", ttl=2.0)
    await one.step()
    await other.step()
    assert (one.held, other.held, other.holder) == (True, False, "one")
    await one.step()
    await other.step()
    assert (one.held, other.held) == (True, False)
    await one.stop()

    async def taken() -> bool:
        await other.step()
        return other.held

    await until(taken, 5, "the other takes it")
    await one.step()
    assert not one.held

    async def free() -> bool:  # the holder is gone without a word
        await one.step()
        return one.held

    await until(free, 10, "it runs out")
    assert not other.held


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"AEGIS_NETMON_EXPECTED": "mlx5_0"}, "mlx5_0/1@400"),
        ({"AEGIS_NETMON_LIMITS": "/nowhere"}, "netmon.limits"),
        ({"AEGIS_SERVICE_REPLICA": "Not An Id"}, "service.replica"),
    ],
)
async def test_a_mistake_in_the_settings_names_it(tmp_path: Path, start: Start, env: dict[str, str], text: str) -> None:
    process = await start("nats://127.0.0.1:1", **env)
    assert await process.end(signal.SIGCONT) == 2
    assert text in process.log.read_text()
