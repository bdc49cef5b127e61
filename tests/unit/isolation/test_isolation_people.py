"""People and tools (account PEOPLE): what each role asks, hears, and is refused."""

from __future__ import annotations

import asyncio

import pytest
from aegis_bus.connection import Msg
from aegis_bus.jobstore import JobStore
from aegis_proto import subjects
from harness.site import A, B, RawOf, Secured
from harness.waiting import until

ROLES = {"reader": {}, "nsreader": {"namespace": "ml"}, "user": {"namespace": "ml"}, "operator": {}}

MAY_ASK = [
    ("reader", "aegis.rpc.master.query.jobs"),
    ("reader", "aegis.rpc.master.query.jobs.prod"),
    ("reader", "aegis.rpc.jobcontroller.query.nodes"),
    ("nsreader", "aegis.rpc.master.query.jobs.ml"),
    ("user", "aegis.rpc.master.query.jobs.ml"),
    ("user", "aegis.rpc.master.do.submit.ml"),
    ("user", "aegis.rpc.master.do.stop.ml"),
    ("operator", "aegis.rpc.master.query.jobs"),
    ("operator", "aegis.rpc.master.do.stop.prod"),
    ("operator", "aegis.rpc.jobcontroller.do.taint.all"),
    ("operator", "aegis.rpc.credentials.do.issue.ml"),
    ("operator", "aegis.rpc.credentials.do.revoke.ml"),
    ("operator", "aegis.rpc.credentials.do.list.ml"),
]


@pytest.mark.parametrize(("role", "subject"), MAY_ASK)
async def test_a_role_asks_what_it_may(secured: Secured, raw: RawOf, role: str, subject: str) -> None:
    service = await secured.bus(subject.split(".")[2])

    async def answer(msg: Msg) -> None:
        await msg.respond(b'{"ok":true}')

    await service.subscribe(f"aegis.rpc.{subject.split('.')[2]}.>", answer)
    person = await raw(role, **ROLES[role])
    assert (await person.ask(subject))["ok"] is True
    await service.close()


NEVER = [
    subjects.job_state(A),
    subjects.job_spec(A),
    subjects.job_pods(A, 0),
    subjects.fact(A, "job"),
    subjects.report(A, "w0", "finish"),
    subjects.heartbeat(A, "w0"),
    subjects.place(A, "w0"),
    subjects.node_slot("n1", 0),
    subjects.node_held("n1", 0),
    subjects.ADOPT,
    subjects.node_taint("n1"),
    subjects.node_status("n1"),
    subjects.cred(A),
    subjects.ERA,
    subjects.lease("m1"),
    subjects.job_event(A),
    subjects.verdict("lemon", "node", "n1"),
    subjects.view_job_state(A),
    subjects.rpc_do("credentials", "join", "ml"),
    subjects.rpc_do("credentials", "vouch", "ml"),
    subjects.rpc_do("lemon", "tune", "ml"),
    f"$JS.API.DIRECT.GET.CTL.{subjects.job_state(A)}",
    f"$JS.API.DIRECT.GET.CTL.{subjects.job_spec(A)}",
    f"$JS.API.DIRECT.GET.NODES.{subjects.node_slot('n1', 0)}",
    "$JS.API.STREAM.INFO.CTL",
    "$JS.API.STREAM.PURGE.CTL",
    "$JS.API.CONSUMER.CREATE.CTL.x",
    "$SYS.REQ.CLAIMS.UPDATE",
]
REFUSED = [
    *((role, subject) for role in ROLES for subject in NEVER),
    *(
        ("reader", f"aegis.rpc.{service}.do.{verb}.ml")
        for service, verb in (("master", "stop"), ("master", "submit"), ("jobcontroller", "taint"), ("credentials", "issue"))
    ),
    *(("nsreader", subject) for subject in ("aegis.rpc.master.query.jobs", "aegis.rpc.master.query.jobs.prod", "aegis.rpc.master.do.stop.ml")),
    *(
        ("user", subject)
        for subject in (
            "aegis.rpc.master.query.jobs",
            "aegis.rpc.master.query.jobs.prod",
            "aegis.rpc.master.do.stop.prod",
            "aegis.rpc.master.do.submit.prod",
            "aegis.rpc.jobcontroller.do.taint.ml",
            "aegis.rpc.credentials.do.issue.ml",
            "aegis.rpc.credentials.do.revoke.ml",
            "aegis.rpc.credentials.do.list.ml",
        )
    ),
]


@pytest.mark.parametrize(("role", "subject"), REFUSED)
async def test_a_role_may_not_publish(raw: RawOf, role: str, subject: str) -> None:
    person = await raw(role, **ROLES[role])
    assert await person.publish(subject)


DEAF = [
    ">",
    "aegis.>",
    "aegis.job.>",
    subjects.job_spec(A),
    subjects.job_state(A),
    f"aegis.job.{A}.worker.>",
    f"aegis.job.{A}.log.*",
    "aegis.node.>",
    "aegis.node.*.slot.*",
    "aegis.cred.>",
    "aegis.rpc.>",
    "_INBOX.>",
    "$JS.>",
    "$SYS.>",
    "_R_.>",
]


@pytest.mark.parametrize("subject", DEAF)
@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_not_subscribe(raw: RawOf, role: str, subject: str) -> None:
    person = await raw(role, **ROLES[role])
    assert await person.subscribe(subject)


@pytest.mark.parametrize("role", ["nsreader", "user"])
@pytest.mark.parametrize("subject", ["aegis.view.>", subjects.view_job_state(A), "aegis.view.node.>"])
async def test_views_are_not_for_those_of_one_namespace(raw: RawOf, role: str, subject: str) -> None:
    person = await raw(role, **ROLES[role])
    assert await person.subscribe(subject)


async def test_a_reader_hears_states_and_never_slots_or_specifications(secured: Secured, raw: RawOf) -> None:
    reader = await raw("reader")
    heard = await reader.listen("aegis.view.job.>")
    heard_nodes = await reader.listen("aegis.view.node.>")
    operator = await raw("operator")
    everything = await operator.listen("aegis.view.>")
    master, controller = await secured.bus("master"), await secured.bus("jobcontroller")
    daemon = await raw("node", node="n1")
    store = JobStore(master)
    loaded = await store.load(B)
    assert loaded is not None
    await controller.publish(subjects.node_slot("n1", 3), b'{"token":"secret"}')
    await controller.publish(subjects.place(B, "w1"), b"{}")
    await controller.publish(subjects.node_taint("n1"), b"{}")
    await daemon.ask(subjects.node_spec("n1"))
    await secured.add_job("delta-555555", "uid-delta")
    await store.commit(loaded, loaded.state.with_head(step=loaded.state.head.step + 1))
    await master.publish(subjects.job_event(B), b"{}")
    await until(
        lambda: (
            {msg.subject for msg in heard}
            >= {subjects.view_job_state(B), subjects.view(subjects.job_event(B)), subjects.view_job_state("delta-555555")}
        )
    )
    await until(lambda: {msg.subject for msg in heard_nodes} >= {subjects.view(subjects.node_taint("n1")), subjects.view(subjects.node_spec("n1"))})
    await until(lambda: len(everything) >= len(heard) + len(heard_nodes))
    seen = {msg.subject for msg in [*heard, *heard_nodes, *everything]}
    assert not [subject for subject in seen if "slot" in subject or "place" in subject or "cred" in subject]
    assert not [subject for subject in seen if subject.startswith("aegis.view.job.") and subject.endswith(".spec")]
    assert not [msg for msg in [*heard, *heard_nodes, *everything] if b"of the user" in msg.data or b"secret" in msg.data]
    await asyncio.gather(master.close(), controller.close())


async def test_two_people_do_not_hear_each_others_answers(secured: Secured, raw: RawOf) -> None:
    one, other = await raw("user", namespace="ml"), await raw("user", namespace="prod")
    assert await one.subscribe(f"_INBOX.{other.public}.>")
    assert await one.publish(f"_INBOX.{other.public}.x")
