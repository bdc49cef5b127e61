"""Requests over the real bus: submitted once, refused clearly, acted on exactly once."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from aegis_bus.connection import Bus
from aegis_proto import messages, subjects
from aegis_proto.api import Events, EventsRequest, JobDetail, JobRequest, Jobs, JobsRequest, RequestRefused, Status, Submit, SubmitReply, read_reply
from aegis_proto.state import JobSpec
from harness.masters import QUICK, InProcess, act, events_of, state_of, submit, until_phase, write_era
from harness.simagent import Behaviour, SimPlatform
from harness.waiting import until

MakeBus = Callable[..., Awaitable[Bus]]
SPEC = JobSpec("api", ("python", "train.py"), namespace="ml", workers=2, maxRetry=2)


async def start(bus: Bus, make_bus: MakeBus, **changes: Any) -> InProcess:
    await write_era(bus)
    return await InProcess(await make_bus(name="master-m1"), "m1", replace(QUICK, **changes)).start()


async def ask(bus: Bus, kind: Any, verb: str, request: Any, namespace: str = "") -> Any:
    body = messages.encode(request) if request is not None else b""
    return read_reply(kind, await bus.request(subjects.rpc_query("master", verb, namespace), body, timeout=5.0))


async def refused(bus: Bus, subject: str, body: bytes) -> RequestRefused:
    with pytest.raises(RequestRefused) as error:
        read_reply(SubmitReply, await bus.request(subject, body, timeout=5.0))
    return error.value


async def test_a_repeated_submit_is_the_same_job(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus)
    uid = str(uuid.uuid4())
    first = await submit(bus, SPEC, uid)
    again = await submit(bus, SPEC, uid)
    other = await submit(bus, SPEC)
    assert (first.job, first.existed, again.existed) == (again.job, False, True)
    assert other.job != first.job
    jobs = await ask(bus, Jobs, "jobs", JobsRequest())
    assert {item.job for item in jobs.items} == {first.job, other.job}


@pytest.mark.parametrize(
    ("spec", "code", "text"),
    [
        (JobSpec("Bad_Name", ("x",), namespace="ml"), "E110", "Nearest: bad-name"),
        (JobSpec("a", ("x",), namespace="ml", workers=0), "E116", "workers 0 is out of range: 1 to 20000"),
        (JobSpec("a", ("x",), namespace="ml", workers=20001), "E116", "workers 20001 is out of range: 1 to 20000"),
        (JobSpec("a", ("x",), namespace="ml", maxRetry=-1), "E116", "maxRetry -1 is out of range: 0 to 1000000"),
        (JobSpec("a", ("x",), namespace="ml", maxRetry=1_000_001), "E116", "maxRetry 1000001 is out of range"),
        (JobSpec("a", (), namespace="ml"), "E116", "command is empty"),
        (JobSpec("a", ("torchrun", "--max-restarts=3", "t.py"), namespace="ml"), "E112", "two budgets would multiply"),
        (JobSpec("a", ("x",), namespace="other"), "E103", 'cannot be submitted to "ml"'),
    ],
)
async def test_a_bad_job_is_refused_with_its_code(bus: Bus, make_bus: MakeBus, spec: JobSpec, code: str, text: str) -> None:
    await start(bus, make_bus)
    error = await refused(bus, subjects.rpc_do("master", "submit", "ml"), messages.encode(Submit(spec, str(uuid.uuid4()))))
    assert error.code == code
    assert text in str(error)
    assert error.exit_code in (2, 4)
    assert (await ask(bus, Jobs, "jobs", JobsRequest())).items == ()


async def test_what_is_no_request_is_answered_and_the_service_lives(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus)
    submit_subject = subjects.rpc_do("master", "submit", "ml")
    for body in (b"", b"\xff", b"[]", b'{"spec":{"name":"a"},"uid":5}', b'{"spec":{"name":"a","workers":"three"},"uid":"abcdefgh"}', b"[" * 60_000):
        assert (await refused(bus, submit_subject, body)).code == "E107"
    assert (await refused(bus, submit_subject, messages.encode(Submit(SPEC, "short")))).code == "E107"
    assert (await refused(bus, subjects.rpc_do("master", "dance", "ml"), b"{}")).code == "E107"
    assert (await refused(bus, subjects.rpc_query("master", "dance"), b"{}")).code == "E107"
    assert (await submit(bus, SPEC)).job.startswith("api-")


async def test_a_store_that_is_filling_takes_no_new_jobs(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus, store_full=0.0)
    error = await refused(bus, subjects.rpc_do("master", "submit", "ml"), messages.encode(Submit(SPEC, str(uuid.uuid4()))))
    assert (error.code, error.exit_code) == ("E106", 7)
    assert "no new jobs" in str(error)


async def test_a_job_of_another_namespace_does_not_exist(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus)
    job = (await submit(bus, SPEC)).job
    for verb in ("stop", "suspend", "resume", "restart"):
        with pytest.raises(RequestRefused) as error:
            await act(bus, verb, job, namespace="other")
        assert (error.value.code, error.value.exit_code) == ("E104", 3)
    for verb, request in (("job", JobRequest(job)), ("events", EventsRequest(job))):
        with pytest.raises(RequestRefused) as error:
            await ask(bus, JobDetail, verb, request, "other")
        assert error.value.code == "E104"
    assert (await ask(bus, Jobs, "jobs", JobsRequest(), "other")).items == ()
    assert [item.job for item in (await ask(bus, Jobs, "jobs", JobsRequest(), "ml")).items] == [job]
    assert (await state_of(bus, job)).state.head.phase.value == "Pending"


async def test_stop_ends_the_job_once_however_often_it_is_asked(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus)
    reply = await submit(bus, SPEC)
    platform = await SimPlatform(bus, reply.job, reply.uid).start()
    await until_phase(bus, reply.job, "RunCommand")
    request_id = str(uuid.uuid4())
    first = await act(bus, "stop", reply.job, request_id, "ml", reason="enough")
    loaded = await until_phase(bus, reply.job, "Failed")
    head = loaded.state.head
    assert head.failedReason is not None
    assert (head.failedReason.value, head.recoverCount, head.exitCode) == ("stopped", 0, 143)
    assert head.cursor >= first.seq
    with pytest.raises(RequestRefused) as error:
        await act(bus, "stop", reply.job, str(uuid.uuid4()), "ml")
    assert (error.value.code, error.value.exit_code) == ("E105", 7)
    await until(lambda: all(not agent.alive and agent.left == "quit" for agent in platform.agents.values()), 5, "agents left")
    assert [event.phase for event in await events_of(bus, reply.job) if event.cause == "stopped"] == ["Failed"]
    await platform.stop()


async def test_a_repeated_request_is_one_action(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus)
    reply = await submit(bus, SPEC)
    platform = await SimPlatform(bus, reply.job, reply.uid).start()
    await until_phase(bus, reply.job, "RunCommand", incarnation=0)
    request_id = str(uuid.uuid4())
    first = await act(bus, "restart", reply.job, request_id, "ml")
    await until_phase(bus, reply.job, "RunCommand", incarnation=1)
    again = await act(bus, "restart", reply.job, request_id, "ml")
    assert (again.seq, again.duplicate) == (first.seq, True)
    loaded = await until_phase(bus, reply.job, "RunCommand")
    assert (loaded.state.head.incarnation, loaded.state.head.recoverCount) == (1, 0)
    await platform.stop()


async def test_suspend_stops_the_children_and_resume_runs_them_again_uncounted(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus)
    reply = await submit(bus, SPEC)
    platform = await SimPlatform(bus, reply.job, reply.uid).start()
    await until_phase(bus, reply.job, "RunCommand")
    await act(bus, "suspend", reply.job, namespace="ml")
    await until_phase(bus, reply.job, "Pending")
    await until(lambda: all(agent.running == -1 for agent in platform.agents.values()), 5, "children stopped")
    detail = await ask(bus, JobDetail, "job", JobRequest(reply.job), "ml")
    assert detail.summary.suspended
    assert detail.waiting.startswith("suspended")
    await act(bus, "resume", reply.job, namespace="ml")
    loaded = await until_phase(bus, reply.job, "RunCommand")
    assert loaded.state.head.recoverCount == 0
    await platform.stop()


async def test_max_retry_can_be_set_within_its_range_and_nothing_else(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus)
    job = (await submit(bus, SPEC)).job
    reply = await act(bus, "set", job, namespace="ml", settings={"max-retry": "7"})

    async def applied() -> bool:
        head = (await state_of(bus, job)).state.head
        return head.cursor >= reply.seq and head.maxRetry == 7

    await until(applied, 5, "max-retry 7")
    for settings, code in (
        ({"max-retry": "1000001"}, "E116"),
        ({"max-retry": "-1"}, "E116"),
        ({"max-retry": "x"}, "E116"),
        ({"workers": "3"}, "E117"),
        ({}, "E107"),
    ):
        with pytest.raises(RequestRefused) as error:
            await act(bus, "set", job, namespace="ml", settings=settings)
        assert error.value.code == code, settings


async def test_answers_show_the_job_its_story_and_the_sequence_from_which_to_watch(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus)
    reply = await submit(bus, SPEC)
    detail = await ask(bus, JobDetail, "job", JobRequest(reply.job))
    assert detail.waiting == "2 of 2 workers are not there yet: w0 w1"
    platform = await SimPlatform(bus, reply.job, reply.uid, behaviour=Behaviour(heartbeat=0.1)).start()
    loaded = await until_phase(bus, reply.job, "RunCommand")
    await platform.agents[1].fail(message="boom")
    loaded = await until_phase(bus, reply.job, "RunCommand", incarnation=1)
    await events_of(bus, reply.job)
    detail = await ask(bus, JobDetail, "job", JobRequest(reply.job), "ml")
    assert (detail.summary.phase, detail.retries, detail.summary.lastReason, detail.waiting) == ("RunCommand", "1:1", "error", "")
    assert detail.seq >= loaded.seq
    assert [(worker.pod, worker.node, worker.state) for worker in detail.workers] == [("w0", "node0", "RunCommand"), ("w1", "node1", "RunCommand")]
    assert sum(detail.ledger.values()) > 0
    page = await ask(bus, Events, "events", EventsRequest(reply.job, limit=3), "ml")
    assert len(page.items) == 3
    everything = await ask(bus, Events, "events", EventsRequest(reply.job), "ml")
    assert [event.event.eventId for event in everything.items[-3:]] == [event.event.eventId for event in page.items]
    rest = await ask(bus, Events, "events", EventsRequest(reply.job, afterSeq=everything.items[1].seq, limit=2), "ml")
    assert [item.seq for item in rest.items] == [item.seq for item in everything.items[2:4]]
    assert rest.more

    async def progressed() -> bool:
        jobs: Jobs = await ask(bus, Jobs, "jobs", JobsRequest(), "ml")
        return jobs.items[0].step > 0 and jobs.seq >= reply.seq

    await until(progressed, 5, "step in job ls")
    status: Status = await ask(bus, Status, "status", None)
    assert (status.answeredBy, status.era, status.jobs, status.unowned) == ("m1", "era1", {"RunCommand": 1}, 0)
    assert [(replica.replica, replica.jobs) for replica in status.replicas] == [("m1", 1)]
    await platform.stop()
