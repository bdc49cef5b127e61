"""The reply subject of a request is not permission-checked by the server. Across an import it is rewritten: an answer cannot be aimed at anything.

Every subject that somebody outside AEGIS may request is asked with a reply that names something worth overwriting; nothing may change.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from aegis_bus.connection import Bus, Msg
from aegis_proto import messages, streams, subjects
from aegis_proto.phases import ReportKind
from harness.site import A, B, Raw, RawOf, Secured

TARGETS = [
    subjects.job_state(B),
    subjects.job_state(A),
    subjects.job_pods(B, 0),
    subjects.job_spec(B),
    subjects.cred(B),
    subjects.cred(A),
    subjects.ERA,
    subjects.lease("m1"),
    subjects.place(B, "w0"),
    subjects.node_slot("n2", 0),
    subjects.node_taint("n2"),
    subjects.node_spec("n2"),
    subjects.node_status("n2"),
    subjects.report(B, "w0", "finish"),
    subjects.report(A, "w1", "finish"),
    subjects.report(A, "w0", "finish"),
    subjects.fact(B, "w0"),
    subjects.fact(A, "w0"),
    subjects.job_event(B),
    subjects.verdict("lemon", "node", "n1"),
    subjects.job_log(B, "w0"),
    subjects.job_metric(B, "w0"),
    subjects.net_counter("n2"),
    subjects.blob(B, "w0", "x"),
    subjects.dlq("master", "REPORTS", B),
]

AGENT_REQUESTS = [
    *(subjects.report(A, "w0", kind.value) for kind in ReportKind),
    subjects.heartbeat(A, "w0"),
    subjects.job_log(A, "w0"),
    subjects.job_metric(A, "w0"),
    subjects.blob(A, "w0", "x"),
    f"$JS.API.DIRECT.GET.CTL.{subjects.job_state(A)}",
]
NODE_REQUESTS = [
    subjects.node_spec("n1"),
    subjects.node_status("n1"),
    subjects.node_hb("n1"),
    subjects.node_event("n1", "xid"),
    subjects.net_counter("n1"),
    f"$JS.API.DIRECT.GET.NODES.{subjects.node_slot('n1', 0)}",
    f"$JS.API.DIRECT.GET.FLEET.{subjects.node_spec('n1')}",
    f"$JS.API.DIRECT.GET.FLEET.{subjects.node_status('n1')}",
]


async def counts(bus: Bus) -> dict[str, int]:
    """Last sequence of every target, 0 = none."""
    found = {}
    for target in TARGETS:
        stored = await bus.get(streams.stream_of(target), target, leader=True)
        found[target] = stored.seq if stored else 0
    return found


async def attack(secured: Secured, attacker: Raw, request: str) -> list[str]:
    """Ask `request` once for each target as the reply; the targets that changed."""
    admin = await secured.bus("admin")
    try:
        # The attacker's own request is stored where it belongs; only what the answer did counts.
        own = [target for target in TARGETS if target == request]
        before = await counts(admin)
        for target in TARGETS:
            await attacker.nc.publish(request, b"{}", reply=target)
        await attacker.settle()
        await admin.request("$JS.API.INFO", b"")
        after = await counts(admin)
        return [target for target in TARGETS if before[target] != after[target] and target not in own]
    finally:
        await admin.close()


async def test_inside_one_account_the_attack_works(secured: Secured, raw: RawOf) -> None:
    """Why nobody but services is in AEGIS; and that the checks below can fail."""
    insider = await raw("master")
    target = "aegis.job.control-000000.state"
    await insider.nc.publish("aegis.job.control-000000.event", b"{}", reply=target)
    await insider.settle()
    admin = await secured.bus("admin")
    stored = await admin.get("CTL", target, leader=True)
    assert stored is not None
    assert b'"stream":"EVENTS"' in stored.data
    await admin.close()


@pytest.mark.parametrize("request_subject", AGENT_REQUESTS)
async def test_an_agents_reply_reaches_nothing(secured: Secured, raw: RawOf, request_subject: str) -> None:
    assert await attack(secured, await raw("agent", job=A, pod="w0"), request_subject) == []


@pytest.mark.parametrize("request_subject", NODE_REQUESTS)
async def test_a_node_daemons_reply_reaches_nothing(secured: Secured, raw: RawOf, request_subject: str) -> None:
    assert await attack(secured, await raw("node", node="n1"), request_subject) == []


@pytest.mark.parametrize(
    ("role", "tags", "request_subject"),
    [
        ("reader", {}, "aegis.rpc.master.query.jobs"),
        ("reader", {}, "aegis.rpc.master.query.jobs.other"),
        ("nsreader", {"namespace": "ml"}, "aegis.rpc.master.query.jobs.ml"),
        ("user", {"namespace": "ml"}, "aegis.rpc.master.query.jobs.ml"),
        ("user", {"namespace": "ml"}, "aegis.rpc.master.do.stop.ml"),
        ("operator", {}, "aegis.rpc.master.do.stop.ml"),
    ],
)
async def test_a_service_that_answers_is_no_ones_pen(secured: Secured, raw: RawOf, role: str, tags: dict[str, str], request_subject: str) -> None:
    """The master may write states and answers whoever asks: in one account, `reply=aegis.job.<other>.state` made its answer that state."""
    master = await secured.bus("master")
    asked: list[Msg] = []

    async def answer(msg: Msg) -> None:
        asked.append(msg)
        await msg.respond(b'{"forged":true}')

    await master.subscribe("aegis.rpc.master.>", answer)
    attacker = await raw(role, **tags)
    assert await attack(secured, attacker, request_subject) == []
    assert len(asked) == len(TARGETS), "the master did answer, each time"
    assert all(msg.reply.startswith("_R_.") for msg in asked)
    await master.close()


async def test_an_answer_does_not_become_a_request_of_a_stronger_role(raw: RawOf, secured: Secured) -> None:
    master = await secured.bus("master")
    asked: list[str] = []

    async def answer(msg: Msg) -> None:
        asked.append(msg.subject)
        await msg.respond(b"{}")

    await master.subscribe("aegis.rpc.master.>", answer)
    user = await raw("user", namespace="ml")
    await user.nc.publish("aegis.rpc.master.query.jobs.ml", b"{}", reply="aegis.rpc.master.do.stop.prod")
    await user.settle()
    assert (await user.ask("aegis.rpc.master.query.job.ml")) == {}
    assert asked == ["aegis.rpc.master.query.jobs.ml", "aegis.rpc.master.query.job.ml"]
    await master.close()


@pytest.mark.parametrize(
    "reply", ["$JS.ACK.REPORTS.m.1.1.1.1.0", "_R_.a.b", "$SYS.REQ.CLAIMS.UPDATE", "$JS.API.STREAM.PURGE.CTL", "$JS.API.STREAM.DELETE.CTL"]
)
async def test_reserved_replies_do_nothing(secured: Secured, raw: RawOf, reply: str) -> None:
    agent = await raw("agent", job=A, pod="w0")
    admin = await secured.bus("admin")
    before = json.loads(await admin.request("$JS.API.STREAM.INFO.CTL", b""))["state"]["messages"]
    await agent.publish(subjects.report(A, "w0", "ack"), b"{}", reply=reply)
    assert json.loads(await admin.request("$JS.API.STREAM.INFO.CTL", b""))["state"]["messages"] == before
    await admin.close()


async def test_a_pub_ack_does_not_reach_another_jobs_inbox(raw: RawOf) -> None:
    agent, other = await raw("agent", job=A, pod="w0"), await raw("agent", job=B, pod="w0")
    heard = await other.listen(f"_INBOX.{other.public}.guess")
    await agent.publish(subjects.report(A, "w0", "ack"), b"{}", reply=f"_INBOX.{other.public}.guess")
    await other.settle()
    assert not heard


BODIES: list[Any] = [
    {"last_by_subj": subjects.job_state(B)},
    {"seq": 1},
    {"seq": 1, "next_by_subj": ">"},
    {"multi_last": [">"]},
    {"multi_last": ["aegis.job.*.spec"], "batch": 100},
    {"batch": 100, "next_by_subj": "aegis.>"},
]


@pytest.mark.parametrize("body", BODIES, ids="-".join)
async def test_the_body_of_a_direct_get_widens_nothing(raw: RawOf, body: dict[str, Any]) -> None:
    """The right is for one subject; what is asked for stands in the subject and nowhere else."""
    agent = await raw("agent", job=A, pod="w0")
    answer = await agent.nc.request(f"$JS.API.DIRECT.GET.CTL.{subjects.job_state(A)}", json.dumps(body).encode(), timeout=1)
    headers = dict(answer.headers or {})
    assert headers.get("Nats-Subject", subjects.job_state(A)) == subjects.job_state(A)
    assert b"of the user" not in answer.data


async def test_a_state_of_another_job_cannot_be_forged_by_an_answer_of_ones_own(secured: Secured, raw: RawOf) -> None:
    """End to end: after all of the above, the states are what the master wrote."""
    from aegis_bus.jobstore import JobStore

    master = await secured.bus("master")
    for job in (A, B):
        loaded = await JobStore(master).load(job)
        assert loaded is not None
        assert loaded.state.head.job == job
    era = await master.get("CTL", subjects.ERA)
    assert era is not None
    assert messages.decode(messages.Era, era.data).reason == "created"
    await master.close()
