"""The job controller on a real server, with node daemons played by the test (and, once, real ones with the rights as shipped)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aegis_bus.config import Config
from aegis_bus.connection import Bus, Msg, Subscription
from aegis_bus.errors import BusError, Unreadable
from aegis_bus.identity import Identity
from aegis_bus.jobstore import JobStore, Loaded
from aegis_bus.natsserver import NatsServer
from aegis_bus.service import Service
from aegis_jobcontroller import nodes as nodes_module
from aegis_jobcontroller import placer as placer_module
from aegis_jobcontroller import plan as plan_module
from aegis_jobcontroller import world as world_module
from aegis_jobcontroller.crashpoints import CRASHPOINTS
from aegis_jobcontroller.service import Controller
from aegis_proto import api_nodes, subjects
from aegis_proto.api import DeadLetter, RequestRefused, read_reply
from aegis_proto.credapi import JoinReply, JoinRequest
from aegis_proto.ids import pod_name
from aegis_proto.messages import Fact, NodeSpec, NodeStatus, Place, Slot, SlotStatus, Taint, decode, encode
from aegis_proto.phases import FactKind, FailedReason, Phase
from aegis_proto.state import ErrorNode, Head, JobSpec, JobState, Owner, empty_shards
from harness.bus import MakeBus
from harness.waiting import until

WAIT = 40.0


class FakeNode:
    """A node daemon as the bus sees it: registers, beats, and does what its slots say, at once and perfectly."""

    def __init__(self, bus: Bus, name: str, slots: int = 1, boot: str = "boot-1") -> None:
        self.bus, self.name, self.boot = bus, name, boot
        self.held = {str(i): SlotStatus(str(i)) for i in range(slots)}
        self.beating = True
        self.started: list[tuple[str, str, int]] = []
        self._n = 0
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> FakeNode:
        await self.register()
        await self.bus.subscribe(subjects.node_slot(self.name, "*"), self._on_slot)
        await self.tell()
        self._task = asyncio.create_task(self._beats())
        return self

    async def register(self) -> None:
        spec = NodeSpec(self.name, addr=f"addr-{self.name}", slots=len(self.held), boot=self.boot)
        await self.bus.publish(subjects.node_spec(self.name), encode(spec))

    async def _beats(self) -> None:
        n = 0
        while True:
            n += 1
            if self.beating:
                self.bus.core(subjects.node_hb(self.name), encode(api_nodes.NodeBeat(self.boot, n)))
            if n % 10 == 0:  # as the daemon does every half minute
                for name in self.held:
                    await self._obey(name)
            await asyncio.sleep(0.2)

    async def _on_slot(self, msg: Msg) -> None:
        for pause in (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2):  # the message comes before the stream has it, or without it
            await asyncio.sleep(pause)
            if await self._obey(subjects.token(msg.subject, 4)) == msg.data:
                return

    async def _obey(self, name: str) -> bytes:
        """Read a slot and do what it says; returns what was read."""
        async with self._lock:
            try:
                stored = await self.bus.get("NODES", subjects.node_slot(self.name, name))
            except BusError:
                return b""
            if stored is None:
                return b""
            slot, held = decode(Slot, stored.data), self.held[name]
            mine = (held.uid, held.pod, held.attempt) == (slot.uid, slot.pod, slot.attempt)
            if held.state == "running" and (not mine or slot.stop):
                self.held[name] = held = msgspec.structs.replace(held, state="gone", exitCode=143)
                await self.tell()
            if slot.job and not mine:
                self.started.append((slot.job, slot.pod, slot.attempt))
                self.held[name] = SlotStatus(name, slot.job, slot.uid, slot.pod, slot.attempt, "running", 7)
                await self.tell()
            return stored.data

    async def ends(self, slot: str = "0", **values: Any) -> None:
        self.held[slot] = msgspec.structs.replace(self.held[slot], state="gone", **values)
        await self.tell()

    async def tell(self) -> None:
        """Whole, and again until the bus has taken it."""
        while True:
            self._n += 1
            status = NodeStatus(self.name, self.boot, self._n, tuple(self.held.values()))
            try:
                await self.bus.publish(subjects.node_status(self.name), encode(status))
                return
            except BusError:
                await asyncio.sleep(0.2)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Stage:
    """A job controller (or several), nodes, jobs, and the facts that were told."""

    def __init__(self, bus: Bus, make_bus: MakeBus) -> None:
        self.bus, self.make_bus, self.store = bus, make_bus, JobStore(bus)
        self.nodes: dict[str, FakeNode] = {}
        self.services: list[Service] = []
        self.controllers: list[Controller] = []
        self.jobs: dict[str, Loaded] = {}
        self.asked: list[JoinRequest] = []
        self.joins: Subscription | None = None

    async def controller(self, credentials: bool = True) -> Controller:
        if credentials and not self.joins:
            await self.credentials()
        service = Service("jobcontroller", Config())
        made = Controller(await self.make_bus(name=f"jobcontroller-{len(self.controllers)}"), "creds:7443")
        self.services.append(service)
        self.controllers.append(made)
        await made.start(service)
        await until(lambda: all(node.alive for node in made.cache.world().nodes.values()) and len(made.cache.world().nodes) >= len(self.nodes), WAIT)
        return made

    async def credentials(self) -> None:
        async def join(msg: Msg) -> None:
            request = decode(JoinRequest, msg.data)
            self.asked.append(request)
            await msg.respond(encode(JoinReply(f"token-{request.pod}-{request.attempt}", "")))

        self.joins = await self.bus.subscribe("aegis.rpc.credentials.do.join.*", join)

    async def node(self, *names: str, slots: int = 1) -> None:
        for name in names:
            self.nodes[name] = await FakeNode(self.bus, name, slots).start()

    async def job(self, job: str, workers: int = 1, spec: dict[str, Any] | None = None, **head: Any) -> None:
        state = JobState(
            Head(job, job, "default", f"uid-{job}", workers, 3, owner=Owner("m1", 1), **head),
            empty_shards(workers),
            JobSpec(job, ("true",), workers=workers, **(spec or {})),
        )
        self.jobs[job] = await self.store.create(state)

    async def commit(self, job: str, pods: dict[int, dict[str, Any]] | None = None, **head: Any) -> None:
        """What a master would decide, committed. The tally follows."""
        old = self.jobs[job]
        state = old.state
        for index, changes in (pods or {}).items():
            state = state.with_pod(index, msgspec.structs.replace(state.pod(index), **changes))
        filled = sum(pod.present for pod in state.pods())
        tally = msgspec.structs.replace(state.head.tally, filled=filled)
        self.jobs[job] = await self.store.commit(old, state.with_head(tally=tally, **head))

    async def place(self, job: str, pod: str = "w0") -> Place | None:
        stored = await self.bus.get("NODES", subjects.place(job, pod))
        return None if stored is None or stored.marker else decode(Place, stored.data)

    async def placed(self, job: str, pod: str = "w0", attempt: int = 1) -> Place:
        async def there() -> Place | None:
            place = await self.place(job, pod)
            return place if place is not None and place.attempt == attempt else None

        return await until(there, WAIT, f"{job}/{pod} attempt {attempt} placed")

    async def slot(self, node: str, slot: str = "0") -> Slot:
        stored = await self.bus.get("NODES", subjects.node_slot(node, slot))
        return Slot() if stored is None else decode(Slot, stored.data)

    async def facts(self, job: str, pod: str = "w0") -> list[Fact]:
        """Every fact of a pod, in order, told again or not."""
        found: list[Fact] = []
        info = await self.bus.js_api("STREAM.INFO.REPORTS")
        for seq in range(max(1, int(info["state"]["first_seq"])), int(info["state"]["last_seq"]) + 1):
            stored = await self.bus.get_seq("REPORTS", seq)
            if stored is not None and stored.subject == subjects.fact(job, pod):
                found.append(decode(Fact, stored.data))
        return found

    async def told(self, job: str, pod: str, kind: FactKind, **values: Any) -> Fact:
        async def there() -> Fact | None:
            for fact in await self.facts(job, pod):
                if fact.kind is kind and all(getattr(fact, key) == value for key, value in values.items()):
                    return fact
            return None

        return await until(there, WAIT, f"fact {kind} {values} of {job}/{pod}")

    async def ask(self, reply: Any, verb: str, request: Any, *, act: str = "") -> Any:
        subject = subjects.rpc_do("jobcontroller", verb, act) if act else subjects.rpc_query("jobcontroller", verb)
        return read_reply(reply, await self.bus.request(subject, encode(request), timeout=10))

    async def close(self) -> None:
        for service in self.services:
            service.stopping.set()
            await service._cancel_tasks()
            assert service.failure is None, service.failure
        for node in self.nodes.values():
            await node.stop()


@pytest_asyncio.fixture
async def stage(bus: Bus, make_bus: MakeBus) -> AsyncIterator[Stage]:
    made = Stage(bus, make_bus)
    yield made
    await made.close()


HERE = dict(boot="b1")


async def test_a_job_is_placed_and_its_slots_say_everything_a_worker_needs(stage: Stage) -> None:
    await stage.credentials()
    await stage.node("n1", "n2")
    await stage.controller()
    await stage.job("job-a", 2, dict(masterPortRange=(20000, 20999)))
    places = [await stage.placed("job-a", pod) for pod in ("w0", "w1")]
    assert [place.node for place in places] == ["n1", "n2"]
    slots = [await stage.slot("n1"), await stage.slot("n2")]
    for i, slot in enumerate(slots):
        assert (slot.job, slot.uid, slot.pod, slot.attempt, slot.workers) == ("job-a", "uid-job-a", pod_name(i), 1, 2)
        assert (slot.token, slot.credentials, slot.plainAddr) == (f"token-w{i}-1", "creds:7443", "addr-n1")
        assert decode(JobSpec, slot.spec).command == ("true",)
    assert slots[0].plainPort == slots[1].plainPort and 20000 <= slots[0].plainPort <= 20999
    await stage.told("job-a", "w0", FactKind.RUNNING, attempt=1, node="n1")
    await stage.told("job-a", "w1", FactKind.RUNNING, attempt=1, node="n2")


async def test_without_credentials_workers_are_placed_without_a_token(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placer_module, "TOKEN_WAIT", 1.0)
    await stage.node("n1")
    await stage.controller(credentials=False)
    await stage.job("job-a")
    await stage.placed("job-a")
    assert (await stage.slot("n1")).token == ""


async def test_a_blink_of_the_credentials_service_at_submit_makes_no_job_plain(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """All first attempts of the job wait, also those that could have a token."""
    monkeypatch.setattr(placer_module, "TOKEN_WAIT", 600.0)  # the blink is as long as this machine is busy
    await stage.node("n1", "n2")
    refused: list[JoinRequest] = []

    async def half(msg: Msg) -> None:
        request = decode(JoinRequest, msg.data)
        if request.pod == "w1":
            refused.append(request)
            await msg.respond(encode(RequestRefused("E108", "E108 just starting").reply()))
        else:
            await msg.respond(encode(JoinReply("token", "")))

    stage.joins = await stage.bus.subscribe("aegis.rpc.credentials.do.join.*", half)
    await stage.controller()
    await stage.job("job-a", 2)
    await until(lambda: len(refused) >= 3, WAIT, "planned more than once")
    for pod in ("w0", "w1"):
        assert await stage.bus.get("NODES", subjects.place("job-a", pod)) is None
    await stage.joins.unsubscribe()
    await stage.credentials()
    await stage.placed("job-a", "w1")
    assert [(await stage.slot(node)).token for node in ("n1", "n2")] == ["token-w0-1", "token-w1-1"]


async def test_a_replacement_is_placed_when_the_credentials_service_is_back(stage: Stage) -> None:
    """A later attempt without a join token can neither join nor go plain: placed without one, its whole job would stand still until it gives up."""
    await stage.node("n1")
    await stage.controller()
    await stage.job("job-a")
    await stage.placed("job-a")
    await stage.commit("job-a", {0: HERE}, phase=Phase.RUN_COMMAND, started=True, seqNum=2)
    assert stage.joins is not None
    await stage.joins.unsubscribe()
    await stage.nodes["n1"].ends(exitCode=137, signal=9)
    await stage.told("job-a", "w0", FactKind.GONE, attempt=1, exitCode=137, signal=9, clean=True)
    await stage.commit("job-a", {0: dict(boot="", attempt=2, gone=True)}, phase=Phase.RESTARTING, seqNum=3)
    await asyncio.sleep(2.0)  # several plans: none of them may place it
    assert (await stage.place("job-a")).attempt == 1
    await stage.credentials()
    await stage.placed("job-a", "w0", 2)
    assert (await stage.slot("n1")).token == "token-w0-2"


async def test_a_job_that_does_not_fit_waits_and_says_why_until_it_fits(stage: Stage) -> None:
    await stage.node("n1")
    await stage.controller()
    await stage.job("job-a", 2)

    async def waits() -> Any:
        answer = await stage.ask(api_nodes.PendingAnswer, "pending", api_nodes.PendingQuery("job-a"))
        return answer.jobs and answer.jobs[0].usable == 1 and answer.jobs[0]

    async def patiently() -> Any:
        try:
            return await waits()
        except RequestRefused as refused:
            assert refused.code in ("E104", "E108")  # not read yet
            return None

    found = await until(patiently, WAIT)
    assert found.code == "E113" and found.message.startswith("E113 2 workers asked, 1 node usable")
    assert await stage.place("job-a") is None
    await stage.node("n2")
    await stage.placed("job-a", "w1")


async def test_a_lost_worker_is_told_and_placed_again_on_its_node(stage: Stage) -> None:
    await stage.node("n1", "n2", "n3")
    await stage.controller()
    await stage.job("job-a", 2)
    place = await stage.placed("job-a", "w1")
    await stage.commit("job-a", {0: HERE, 1: HERE}, phase=Phase.RUN_COMMAND, started=True, seqNum=2)
    await stage.nodes[place.node].ends(exitCode=137, signal=9)
    await stage.told("job-a", "w1", FactKind.GONE, attempt=1, exitCode=137, signal=9, clean=True)
    assert (await stage.place("job-a", "w1")).attempt == 1, "placed again before the master decided"
    await stage.commit("job-a", {1: dict(boot="", attempt=2, gone=True)}, phase=Phase.RESTARTING, seqNum=3)
    again = await stage.placed("job-a", "w1", 2)
    assert again.node == place.node
    await stage.told("job-a", "w1", FactKind.RUNNING, attempt=2)


async def test_a_worker_leaves_an_error_node(stage: Stage) -> None:
    await stage.node("n1", "n2")
    await stage.controller()
    await stage.job("job-a", 1)
    assert (await stage.placed("job-a")).node == "n1"
    await stage.commit("job-a", {0: HERE}, phase=Phase.RUN_COMMAND, started=True, seqNum=2)
    await stage.nodes["n1"].ends(exitCode=1)
    bad = (ErrorNode("n1", "gpuLost", 1),)
    await stage.commit("job-a", {0: dict(boot="", attempt=2, gone=True)}, phase=Phase.RESTARTING, seqNum=3, errorNodes=bad, errorNodesTotal=1)
    assert (await stage.placed("job-a", "w0", 2)).node == "n2"
    assert (await stage.slot("n1")).job == ""


async def test_two_replicas_racing_200_placements_place_every_worker_exactly_once(stage: Stage) -> None:
    # A slot of every node for every job: a node takes one worker of a job, so that each fits whichever nodes were heard first.
    # (With 14, fifteen jobs on the first eleven nodes leave the last job nine nodes for its ten workers.)
    await stage.node(*(f"n{i}" for i in range(20)), slots=20)
    for number in range(20):
        await stage.job(f"job-{number}", 10, createdAt=number)
    await asyncio.gather(stage.controller(), stage.controller())

    async def all_placed() -> bool:
        return len(await stage.bus.get_many("NODES", ["aegis.place.*.*"])) == 200

    await until(all_placed, WAIT)
    holders: dict[tuple[str, str], tuple[str, str]] = {}
    for stored in await stage.bus.get_many("NODES", ["aegis.place.*.*"]):
        place = decode(Place, stored.data)
        job = subjects.token(stored.subject, 2)
        assert (place.node, place.slot) not in holders
        holders[place.node, place.slot] = (job, place.pod)
        slot = await stage.slot(place.node, place.slot)
        assert (slot.job, slot.pod, slot.attempt) == (job, place.pod, 1)
    started = [entry for node in stage.nodes.values() for entry in node.started]
    await until(lambda: len([e for node in stage.nodes.values() for e in node.started]) == 200, WAIT)
    started = [entry for node in stage.nodes.values() for entry in node.started]
    assert len(set(started)) == 200, "an attempt was started twice"
    for node in stage.nodes.values():
        jobs = [job for job, _, _ in node.started]
        assert len(jobs) == len(set(jobs)), "two workers of one job on one node"


async def test_a_silent_node_is_told_once_it_is_silent_and_again_when_it_is_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "SILENT", 1.5)
    monkeypatch.setattr("aegis_jobcontroller.cache.SILENT", 1.5)
    await stage.node("n1", "n2")
    await stage.controller()
    await stage.job("job-a", 1)
    await stage.placed("job-a")
    await stage.told("job-a", "w0", FactKind.RUNNING)
    stage.nodes["n1"].beating = False
    await stage.told("job-a", "w0", FactKind.NODE_SILENT, attempt=1, node="n1")
    await stage.job("job-b", 1)
    assert (await stage.placed("job-b")).node == "n2", "a silent node takes nobody"
    stage.nodes["n1"].beating = True

    async def confirmed() -> bool:
        kinds = [fact.kind for fact in await stage.facts("job-a")]
        return kinds[-1] is FactKind.RUNNING and FactKind.NODE_SILENT in kinds

    await until(confirmed, WAIT)


async def test_a_machine_that_comes_back_with_another_boot_has_lost_its_workers(stage: Stage) -> None:
    await stage.node("n1")
    await stage.controller()
    await stage.job("job-a", 1)
    await stage.placed("job-a")
    await stage.told("job-a", "w0", FactKind.RUNNING)
    stage.nodes["n1"].boot = "boot-2"
    await stage.nodes["n1"].register()
    await stage.told("job-a", "w0", FactKind.NODE_LOST, attempt=1, node="n1")


async def test_a_plain_worker_is_told(stage: Stage) -> None:
    await stage.node("n1")
    await stage.controller()
    await stage.job("job-a", 1)
    await stage.placed("job-a")
    node = stage.nodes["n1"]
    await until(lambda: node.held["0"].state == "running", WAIT)
    node.held["0"] = msgspec.structs.replace(node.held["0"], plain=True)
    await node.tell()
    await stage.told("job-a", "w0", FactKind.PLAIN, attempt=1)


async def test_the_end_of_the_budget_stops_what_runs_and_keeps_the_failed_for_reading(stage: Stage) -> None:
    await stage.node("n1", "n2")
    await stage.controller()
    await stage.job("job-a", 2, dict(stopGrace=0.0))
    for pod in ("w0", "w1"):
        await stage.placed("job-a", pod)
    await until(lambda: all(node.held["0"].state == "running" for node in stage.nodes.values()), WAIT)
    await stage.commit("job-a", {0: HERE, 1: HERE}, phase=Phase.RUN_COMMAND, started=True, seqNum=2)
    await stage.nodes["n1"].ends(exitCode=1, lastWord='{"code":1}')
    await stage.commit("job-a", phase=Phase.FAILED, failedReason=FailedReason.BUDGET, shouldQuit=True)

    async def released() -> bool:
        places = [await stage.place("job-a", pod) for pod in ("w0", "w1")]
        return (await stage.slot("n1")).job == "" and (await stage.slot("n2")).job == "" and all(p is not None and p.released for p in places)

    await until(released, WAIT)
    failed, stopped = stage.nodes["n1"].held["0"], stage.nodes["n2"].held["0"]
    assert (failed.state, failed.exitCode, failed.lastWord) == ("gone", 1, '{"code":1}')
    assert (stopped.state, stopped.exitCode) == ("gone", 143)
    await stage.job("job-b", 2)
    await stage.placed("job-b", "w1")


async def test_a_new_replica_tells_again_what_the_state_does_not_show(stage: Stage) -> None:
    """The only controller is away when a worker ends; the next one derives the fact from what is."""
    await stage.node("n1")
    await stage.controller()
    await stage.job("job-a", 1)
    await stage.placed("job-a")
    await stage.told("job-a", "w0", FactKind.RUNNING)
    await stage.services[0]._cancel_tasks()
    await stage.nodes["n1"].ends(exitCode=9)
    await stage.controller()
    await stage.told("job-a", "w0", FactKind.GONE, exitCode=9)


async def test_people_taint_and_untaint_by_compare_and_set(stage: Stage) -> None:
    await stage.node("n1", "n2")
    await stage.controller()

    async def taint(**values: Any) -> Any:
        return await stage.ask(api_nodes.TaintAnswer, "taint", api_nodes.TaintRequest("n1", "alice", "XID 79", **values), act="default")

    async def once() -> Any:
        try:
            return await taint(dryRun=True)
        except RequestRefused as refused:
            assert refused.code in ("E108", "E109")
            return None

    await until(once, WAIT)
    assert (await stage.bus.get("NODES", subjects.node_taint("n1"))) is None, "a dry run wrote"
    answer = await taint(seconds=3600)
    assert (answer.before, answer.after) == ("ok", "excluded (XID 79)") and answer.until > 0

    async def shown(*rows: tuple[str, str, str, tuple[str, ...]]) -> None:
        """Until the controller has heard of it: what it answers is what its readers have brought it."""

        async def same() -> bool:
            nodes = (await stage.ask(api_nodes.NodesAnswer, "nodes", api_nodes.NodesQuery())).nodes
            return tuple((node.node, node.health, node.by, node.jobs) for node in nodes) == rows

        await until(same, WAIT, f"nodes {rows}")

    await shown(("n1", "excluded", "alice", ()), ("n2", "ok", "", ()))
    await stage.job("job-a", 1)
    assert (await stage.placed("job-a")).node == "n2"
    await shown(("n1", "excluded", "alice", ()), ("n2", "ok", "", ("job-a",)))
    lifted = await stage.ask(api_nodes.TaintAnswer, "untaint", api_nodes.TaintRequest("n1", "bob"), act="default")
    assert (lifted.before, lifted.after) == ("excluded (XID 79)", "ok")
    stored = await stage.bus.get("NODES", subjects.node_taint("n1"))
    assert stored is not None and decode(Taint, stored.data).by == "bob"


async def test_a_node_declared_lost_loses_its_workers(stage: Stage) -> None:
    await stage.node("n1")
    await stage.controller()
    await stage.job("job-a", 1)
    await stage.placed("job-a")
    request = api_nodes.NodeLostRequest("alice", "power cut")
    answer = await stage.ask(api_nodes.NodeLostAnswer, "node-lost", request, act="n1")
    assert answer.told == ("job-a/w0/1",)
    fact = await stage.told("job-a", "w0", FactKind.NODE_LOST)
    assert fact.who == "alice" and "power cut" in fact.message


@pytest.mark.parametrize(
    ("subject", "body", "code"),
    [
        ("aegis.rpc.jobcontroller.query.nothing", b"", "E107"),
        ("aegis.rpc.jobcontroller.query.nodes", b"not json", "E107"),
        ("aegis.rpc.jobcontroller.query.nodes", b'{"nodes":["n9"]}', "E109"),
        ("aegis.rpc.jobcontroller.query.nodes", b" " * 20000, "E107"),
        ("aegis.rpc.jobcontroller.query.pending", b'{"job":"none"}', "E104"),
        ("aegis.rpc.jobcontroller.do.taint.default", b'{"node":"n1","by":""}', "E107"),
        ("aegis.rpc.jobcontroller.do.taint.default", b'{"node":"n1","by":"a","seconds":-1}', "E107"),
        ("aegis.rpc.jobcontroller.do.node-lost.n9", b'{"by":"a"}', "E109"),
    ],
)
async def test_a_bad_request_is_refused_with_its_code(stage: Stage, subject: str, body: bytes, code: str) -> None:
    await stage.node("n1")
    controller = await stage.controller()
    await until(lambda: controller.cache.ready and controller.cache.world().nodes, WAIT)
    with pytest.raises(RequestRefused) as refused:
        read_reply(api_nodes.NodesAnswer, await stage.bus.request(subject, body, timeout=10))
    assert refused.value.code == code


async def test_messages_that_nobody_can_read_go_to_the_dead_letters_and_harm_nothing(stage: Stage, bus: Bus) -> None:
    await stage.node("n1")
    for subject in (
        "aegis.place.job-x.w0",
        subjects.node_slot("n1", "7"),
        subjects.node_taint("n9"),
        subjects.node_spec("n9"),
        "aegis.job.job-x.state",
    ):
        await bus.publish(subject, b'{"v":99')
    await stage.controller()
    await stage.job("job-a", 1)
    await stage.placed("job-a")

    async def buried() -> bool:
        letters = {item.subject for item in await bus.get_many("DLQ", ["aegis.dlq.jobcontroller.>"])}
        return letters == {f"aegis.dlq.jobcontroller.{source}" for source in ("NODES.job-x", "NODES.n1", "NODES.n9", "FLEET.n9")}

    await until(buried, WAIT)


async def test_no_word_of_a_node_daemon_stops_placement(stage: Stage, bus: Bus) -> None:
    """Statuses and registrations of a broken or hostile daemon go to the dead letters; everybody else is placed and told as ever."""
    await stage.node("n1", "n2")
    await stage.controller()
    await stage.job("job-a", 1)
    home = await stage.placed("job-a")
    for words in ({"pod": "bad"}, {"pod": "w77"}, {"pod": "w0", "attempt": 999}, {"pod": "w0", "at": 2**60}, {"pod": "w0", "message": "x" * 20000}):
        status = NodeStatus("evil", "b", 1, (SlotStatus("0", "job-a", "uid-job-a", **({"attempt": 1, "state": "running"} | words)),))  # type: ignore[arg-type]
        await bus.publish(subjects.node_spec("evil"), encode(NodeSpec("evil", slots=1, boot="b")))
        await bus.publish(subjects.node_status("evil"), encode(status))
        bus.core(subjects.node_hb("evil"), encode(api_nodes.NodeBeat("b", 1)))
    await bus.publish(subjects.node_spec("evil"), encode(NodeSpec("evil", slots=10**9)))
    await stage.job("job-b", 1)
    assert (await stage.placed("job-b")).node != home.node
    assert await stage.place("job-a") == home

    async def buried() -> bool:
        return {item.subject for item in await bus.get_many("DLQ", ["aegis.dlq.jobcontroller.>"])} == {"aegis.dlq.jobcontroller.FLEET.evil"}

    await until(buried, WAIT)


async def test_a_fault_of_ours_is_logged_and_the_work_goes_on(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([ValueError("pod name"), IndexError("pod"), KeyError("job")])

    def faulty(world: Any) -> list[Any]:
        for failure in failures:
            raise failure
        return plan_module.plan(world)

    monkeypatch.setattr(nodes_module, "plan", faulty)
    await stage.node("n1")
    await stage.controller()
    await stage.job("job-a", 1)
    await stage.placed("job-a")


async def test_the_dead_letter_of_a_slot_holds_no_body(stage: Stage, bus: Bus) -> None:
    """A slot carries a join token and the environment of a user."""
    await stage.node("n1")
    await bus.publish(subjects.node_slot("n1", "7"), b'{"v":99,"token":"secret"}')
    await bus.publish(subjects.node_spec("n9"), b'{"v":99')
    await stage.controller()

    async def letters() -> dict[str, DeadLetter] | None:
        found = {item.subject: decode(DeadLetter, item.data) for item in await bus.get_many("DLQ", ["aegis.dlq.jobcontroller.>"])}
        return found if len(found) == 2 else None

    found = await until(letters, WAIT)
    assert found["aegis.dlq.jobcontroller.NODES.n1"].data == b"" and found["aegis.dlq.jobcontroller.FLEET.n9"].data == b'{"v":99'


async def test_a_job_that_a_view_brings_while_all_heads_are_read_is_not_forgotten(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await stage.controller()
    await until(lambda: controller.cache.ready, WAIT)
    read = controller._bus.get_many

    async def slow(stream: str, filters: list[str], **options: Any) -> Any:
        found = await read(stream, filters, **options)
        if filters == ["aegis.job.*.state"] and "job-a" not in stage.jobs:
            await stage.job("job-a", 1)
            await until(lambda: "job-a" in controller.cache.world().jobs, WAIT)
            done.set()
        return found

    done = asyncio.Event()
    monkeypatch.setattr(controller._bus, "get_many", slow)
    controller.cache.could_not_hear()
    await asyncio.wait_for(done.wait(), WAIT)
    await stage.node("n1")
    await stage.placed("job-a")


async def test_a_job_that_could_not_be_read_once_is_read_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of an answer may be lost: that looks like a state that is not whole."""
    await stage.node("n1")
    controller = await stage.controller()
    await until(lambda: controller.cache.ready, WAIT)
    store, tries = controller.cache._store, []
    load = store.load

    async def torn(job: str) -> Loaded | None:
        tries.append(job)
        if len(tries) == 1:
            raise Unreadable(f"job {job}: the specification is not there")
        return await load(job)

    monkeypatch.setattr(store, "load", torn)
    await stage.job("job-a", 1)
    await until(lambda: tries, WAIT)
    assert await stage.place("job-a") is None
    controller.cache.could_not_hear()
    await stage.placed("job-a")


async def test_a_job_of_a_newer_version_is_known_although_it_cannot_be_read(stage: Stage) -> None:
    """Nobody may take it for one that the store has lost."""
    controller = await stage.controller()
    await until(lambda: controller.cache.ready, WAIT)
    await stage.bus.publish(subjects.job_state("job-a"), b'{"v":99}')
    controller.cache.could_not_hear()
    await until(lambda: "job-a" in controller.cache.world().known, WAIT)
    await stage.bus.js_api("STREAM.PURGE.CTL", {"filter": subjects.job_state("job-a")})
    controller.cache.could_not_hear()
    await until(lambda: "job-a" not in controller.cache.world().known, WAIT)


async def test_a_lost_server_delays_and_loses_nothing(stage: Stage, nats_server: NatsServer) -> None:
    await stage.node("n1")
    await stage.controller()
    await stage.job("job-a", 1)
    await stage.placed("job-a")
    await stage.told("job-a", "w0", FactKind.RUNNING)
    nats_server.kill9()
    nats_server.start()
    await stage.bus.wait_connected(WAIT)
    await stage.nodes["n1"].ends(exitCode=3)
    await stage.told("job-a", "w0", FactKind.GONE, exitCode=3)


# --- as a process, killed at every point -----------------------------------------------------------------------------------------

Start = Callable[..., Awaitable[subprocess.Popen[bytes]]]


@pytest_asyncio.fixture
async def start_process(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Start]:
    made: list[subprocess.Popen[bytes]] = []
    Identity.new("none").to_creds_file(tmp_path / "creds")

    def spawn(crash_at: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "AEGIS_BUS_SERVERS": nats_server.url, "AEGIS_BUS_CREDS": str(tmp_path / "creds"), "AEGIS_CRASH_AT": crash_at}
        with (tmp_path / "controller.log").open("ab") as log:
            made.append(subprocess.Popen([sys.executable, "-m", "aegis_jobcontroller"], env=env, stdout=log, stderr=log, cwd=tmp_path))
        return made[-1]

    async def start(crash_at: str = "") -> subprocess.Popen[bytes]:
        return spawn(crash_at)

    yield start
    for process in made:
        if process.poll() is None:
            process.terminate()
        process.wait(20)


@pytest.mark.parametrize("point", CRASHPOINTS)
async def test_a_controller_killed_at_any_point_places_once_and_tells_everything(stage: Stage, start_process: Start, point: str) -> None:
    await stage.node("n1", "n2")
    await stage.job("job-a", 1, dict(stopGrace=0.0))
    first = await start_process(point)
    if point.endswith("-release"):
        node = stage.nodes[(await stage.placed("job-a")).node]
        await until(lambda: node.held["0"].state == "running", WAIT)
        await node.ends(exitCode=0)
        await stage.commit("job-a", phase=Phase.SUCCEED)
        assert await asyncio.to_thread(first.wait, WAIT) == -signal.SIGKILL
        await start_process()

        async def released() -> bool:
            place = await stage.place("job-a")
            return (await stage.slot(node.name)).job == "" and place is not None and place.released

        await until(released, WAIT)
        return
    assert await asyncio.to_thread(first.wait, WAIT) == -signal.SIGKILL
    await start_process()
    place = await stage.placed("job-a")
    await stage.told("job-a", "w0", FactKind.RUNNING, attempt=1)
    await stage.nodes[place.node].ends(exitCode=4)
    await stage.told("job-a", "w0", FactKind.GONE, exitCode=4)
    assert [entry for node in stage.nodes.values() for entry in node.started] == [("job-a", "w0", 1)]


async def test_the_service_ends_at_once_when_it_is_told_to(start_process: Start, stage: Stage) -> None:
    await stage.node("n1")
    process = await start_process()
    await stage.job("job-a", 1)
    await stage.placed("job-a")
    process.terminate()
    assert await asyncio.to_thread(process.wait, 10) == 0


async def test_a_server_without_jetstream_ends_the_service_with_e120(tmp_path: Path) -> None:
    Identity.new("none").to_creds_file(tmp_path / "creds")
    with NatsServer(tmp_path / "nats", extra="jetstream: false") as server:
        env = {**os.environ, "AEGIS_BUS_SERVERS": server.url, "AEGIS_BUS_CREDS": str(tmp_path / "creds")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aegis_jobcontroller", env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output, _ = await asyncio.wait_for(process.communicate(), WAIT)
        assert process.returncode == 5
        assert b"E120" in output and b"JetStream" in output
