"""The process around the master: when it says that it serves, what it refuses to work on, what it tells Prometheus; and the ledger of a real run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aegis_bus import errors
from aegis_bus.config import load
from aegis_bus.connection import Bus
from aegis_bus.natsserver import NatsServer
from aegis_bus.service import Service
from aegis_master import metrics
from aegis_master.api import Api
from aegis_master.judge import JudgeTimes
from aegis_master.service import serve
from aegis_proto import subjects
from aegis_proto.api import Status, read_reply
from aegis_proto.messages import CheckResult
from aegis_proto.phases import LedgerState, Phase
from aegis_proto.state import Head, JobSpec, Transition
from harness.masters import QUICK, InProcess, state_of, submit, until_phase, write_era
from harness.simagent import Behaviour, SimPlatform
from harness.waiting import until
from prometheus_client import REGISTRY

MakeBus = Callable[..., Awaitable[Bus]]


def service_on(server: NatsServer, folder: Path) -> Service:
    return Service("master", load(env={"AEGIS_BUS_SERVERS": server.url, "AEGIS_SERVICE_REPLICA": "m1"}, cwd=folder, home=folder))


async def test_healthz_says_no_until_requests_are_answered(
    bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_era(bus)
    begun, may = asyncio.Event(), asyncio.Event()
    start = Api.start

    async def held(api: Api) -> None:
        begun.set()
        await may.wait()
        await start(api)

    monkeypatch.setattr(Api, "start", held)
    service = service_on(nats_server, tmp_path)
    running = asyncio.create_task(serve(service))
    await asyncio.wait_for(begun.wait(), 30)
    assert service.checks()["serving"] is False
    may.set()
    await until(lambda: all(service.checks().values()), 30, "healthy")
    read_reply(Status, await bus.request(subjects.rpc_query("master", "status"), b"", timeout=5.0))
    service.stopping.set()
    await asyncio.wait_for(running, 30)


async def test_a_server_without_jetstream_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(bus: Bus) -> None:
        await bus.require_jetstream()

    monkeypatch.setattr("aegis_bus.replica.require_suitable", at_once)
    with NatsServer(tmp_path / "without", extra="jetstream: false") as server:
        service = service_on(server, tmp_path)
        with pytest.raises(errors.ServerUnsuitable, match=r"^E120 "):
            await asyncio.wait_for(serve(service), 30)
        assert service.checks()["serving"] is False


async def test_a_run_is_restoring_until_its_first_step_and_only_when_the_job_tells_steps(bus: Bus, make_bus: MakeBus) -> None:
    await write_era(bus)
    patient = replace(QUICK, owner=replace(QUICK.owner, judge=JudgeTimes()))  # heartbeats come when the test says so
    await InProcess(await make_bus(name="master-m1"), "m1", patient).start()
    reply = await submit(bus, JobSpec("led", ("x",), workers=2, maxRetry=3))
    platform = await SimPlatform(bus, reply.job, reply.uid, behaviour=Behaviour(heartbeat=None)).start()

    async def in_state(incarnation: int, ledger: LedgerState) -> Head | None:
        head = (await state_of(bus, reply.job)).state.head
        return head if (head.phase, head.incarnation, head.ledger.state) == (Phase.RUN_COMMAND, incarnation, ledger) else None

    first = await until(lambda: in_state(0, LedgerState.PRODUCTIVE), 20, "productive from the start")
    assert not first.tellsSteps
    await platform.agents[0].fail(message="ValueError")
    assert not (await until(lambda: in_state(1, LedgerState.PRODUCTIVE), 20, "productive again: it never told a step")).tellsSteps

    async def told() -> bool:
        platform.agents[0].beat()
        return (await state_of(bus, reply.job)).state.head.tellsSteps

    await until(told, 20, "the step heard")
    await platform.agents[1].fail(message="ValueError")
    await until(lambda: in_state(2, LedgerState.RESTORING), 20, "restoring")

    async def goes_on() -> Head | None:
        platform.agents[1].beat()
        return await in_state(2, LedgerState.PRODUCTIVE)

    after = await until(goes_on, 20, "productive after the first step")
    assert after.ledger.totals["restoring"] > 0 and after.ledger.charged["user"] >= after.ledger.totals["restoring"]
    await platform.stop()


async def test_checks_are_measured_by_round_gpu_type_and_workers(bus: Bus, make_bus: MakeBus) -> None:
    await write_era(bus)
    await InProcess(await make_bus(name="master-m1"), "m1").start()

    def count(round_: str, result: str) -> float:
        labels = {"check": "performance", "round": round_, "result": result, "gpu_type": "H200-test", "worker_num": "3"}
        return REGISTRY.get_sample_value("aegis_check_duration_seconds_count", labels) or 0.0

    reply = await submit(bus, JobSpec("checks", ("x",), workers=3, maxRetry=3, gpuType="H200-test"))
    platform = await SimPlatform(bus, reply.job, reply.uid).start()
    await until_phase(bus, reply.job, "RunCommand", incarnation=0)
    platform.agents[1].behaviour = Behaviour(failed_checks=("performance",))  # noted only: nobody leaves
    await platform.agents[0].fail(message="ValueError")
    await until_phase(bus, reply.job, "RunCommand", incarnation=1)
    assert (count("bootcheck", "fail"), count("troubleshoot", "fail"), count("troubleshoot", "pass")) == (0.0, 1.0, 0.0)
    await platform.stop()


def test_what_an_agent_says_of_its_checks_cannot_make_labels_or_numbers_without_bound() -> None:
    head = Head(job="j-1", name="j", namespace="n", uid="u", workerNum=3, maxRetry=1, phase=Phase.TROUBLESHOOTING, gpuType="bound-test")
    strange = [CheckResult(f"mine-{n}", True, duration=1.0) for n in range(100)]
    metrics.checked(head, tuple(strange))
    metrics.checked(head, tuple(CheckResult("gpu", False, duration=value) for value in (float("nan"), float("inf"), -1.0, 2.0)))
    found = {
        (sample.labels["check"], sample.labels["result"]): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "aegis_check_duration_seconds_count" and sample.labels["gpu_type"] == "bound-test"
    }
    assert found == {("other", "pass"): float(metrics.MOST_CHECKS), ("gpu", "fail"): 1.0}


def test_a_round_of_checks_is_counted_when_it_ends_by_what_came_next() -> None:
    head = Head(job="j-1", name="j", namespace="n", uid="u", workerNum=3, maxRetry=1, gpuType="rounds-test")

    def moved(before: Phase, after: Phase) -> None:
        metrics.round_ended(head, Transition(1, before, after, 1, 0, 0, "0:0:0", "pass"))

    moved(Phase.PENDING, Phase.BOOT_CHECKING)
    moved(Phase.BOOT_CHECKING, Phase.RUN_COMMAND)
    moved(Phase.TROUBLESHOOTING, Phase.RESTARTING)
    moved(Phase.TROUBLESHOOTING, Phase.FAILED)
    moved(Phase.TROUBLESHOOTING, Phase.FAILED)
    found = {
        (sample.labels["round"], sample.labels["outcome"], sample.labels["worker_num"]): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "aegis_rounds_total" and sample.labels["gpu_type"] == "rounds-test"
    }
    assert found == {("bootcheck", "run", "3"): 1.0, ("troubleshoot", "again", "3"): 1.0, ("troubleshoot", "failed", "3"): 2.0}
