"""Services (account AEGIS): each can do its work, and what is another's work is refused. They are trusted not to aim replies, and nothing else."""

from __future__ import annotations

import asyncio
import json

import pytest
from aegis_bus.connection import Msg
from aegis_bus.ordered import OrderedReader
from aegis_proto import streams, subjects
from aegis_proto.roles import SERVICES
from harness.site import A, RawOf, Secured
from harness.waiting import until

WORKERS = [role for role in SERVICES if role != "admin"]

WRITES = {
    "credentials": [subjects.cred("zeta-777777"), subjects.dlq("credentials", "rpc")],
    "master": [
        subjects.job_event(A),
        subjects.job_progress(A),
        subjects.fact(A, "job"),
        subjects.lease("m1"),
        subjects.dlq("master", "REPORTS", A),
        "aegis.job.zeta-777777.state",
        "aegis.job.zeta-777777.pods.0",
        "aegis.job.zeta-777777.spec",
    ],
    "jobcontroller": [
        subjects.place("zeta-777777", "w0"),
        subjects.node_slot("n9", 0),
        subjects.node_taint("n9"),
        subjects.fact(A, "w0"),
        subjects.lease("j1"),
        subjects.dlq("jobcontroller", "NODES"),
    ],
    "lognexus": [subjects.verdict("lognexus", "job", "x"), subjects.fact(A, "w0"), subjects.lease("logs1"), subjects.dlq("lognexus", "LOGS", A)],
    "lemon": [
        subjects.verdict("lemon", "node", "x"),
        subjects.node_taint("n9"),
        subjects.node_risk("n9"),
        subjects.lease("lemon1"),
        subjects.dlq("lemon", "EVENTS"),
    ],
    "netmon": [
        subjects.verdict("netmon", "link", "x"),
        subjects.fact(A, "job"),
        subjects.kept("netmon", "head"),
        subjects.lease("net1"),
        subjects.dlq("netmon", "METRICS"),
    ],
}
READS = {
    "credentials": ["CTL"],
    "master": ["CTL", "REPORTS", "EVENTS", "STORY"],
    "jobcontroller": ["CTL", "NODES", "FLEET", "HELD"],
    "lognexus": ["LOGS", "METRICS", "BLOBS", "EVENTS"],
    "lemon": ["EVENTS", "STORY", "NODES", "FLEET"],
    "netmon": ["METRICS", "EVENTS"],
}
GETS = {
    "credentials": ["CTL"],
    "master": ["CTL", "LEASES", "NODES", "FLEET", "EVENTS", "STORY"],
    "jobcontroller": ["CTL", "NODES", "FLEET", "HELD"],
    "lognexus": ["LEASES", "EVENTS"],
    "lemon": ["LEASES", "NODES", "FLEET", "EVENTS"],
    "netmon": ["LEASES", "FLEET", "EVENTS", "KEPT"],
}
HEARS = {
    "credentials": ["aegis.rpc.credentials.do.*.*", "aegis.view.job.*.state"],
    "master": ["aegis.rpc.master.>", "aegis.job.*.hb.*", "aegis.view.>"],
    "jobcontroller": ["aegis.rpc.jobcontroller.>", "aegis.view.>", "aegis.node.*.hb"],
    "lognexus": ["aegis.rpc.lognexus.>", "aegis.view.>"],
    "lemon": ["aegis.rpc.lemon.>", "aegis.view.>"],
    "netmon": ["aegis.rpc.netmon.>", "aegis.view.>"],
}


def pairs(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(role, item) for role, items in table.items() for item in items]


@pytest.mark.parametrize(("role", "subject"), pairs(WRITES))
async def test_a_service_writes_what_is_its_work(secured: Secured, role: str, subject: str) -> None:
    bus = await secured.bus(role)
    assert (await bus.publish(subject, b"{}", msg_id="auto")).stream == streams.stream_of(subject)
    await bus.close()


@pytest.mark.parametrize(("role", "stream"), pairs(READS))
async def test_a_service_reads_its_streams_in_order(secured: Secured, role: str, stream: str) -> None:
    bus, admin = await secured.bus(role), await secured.bus("admin")
    config = next(item for item in streams.STREAMS if item["name"] == stream)
    if "subjects" in config:
        await admin.publish(config["subjects"][0].replace("*", "probe-888888"), b"{}")
    else:
        await admin.publish("aegis.job.probe-888888.state", b"{}")
    filters = [">"] if stream == "STORY" else config["subjects"]
    async with OrderedReader(bus, stream, filters, start=1) as reader:
        item = await anext(aiter(reader))
        assert item is not None
    await bus.close()
    await admin.close()


@pytest.mark.parametrize(("role", "stream"), pairs(GETS))
async def test_a_service_gets_last_messages(secured: Secured, role: str, stream: str) -> None:
    bus = await secured.bus(role)
    assert await bus.get(stream, "aegis.nothing.here") is None
    assert await bus.get(stream, "aegis.nothing.here", leader=True) is None
    await bus.close()


@pytest.mark.parametrize(("role", "subject"), pairs(HEARS))
async def test_a_service_hears_its_subjects(raw: RawOf, role: str, subject: str) -> None:
    service = await raw(role)
    assert not await service.subscribe(subject)


@pytest.mark.parametrize("role", WORKERS)
async def test_what_daemons_hold_is_read_by_the_job_controller_alone_and_written_by_no_service(raw: RawOf, role: str) -> None:
    """It carries specifications, with what a user put into the environment."""
    service = await raw(role)
    assert await service.publish(subjects.node_held("n1", 0))
    assert await service.subscribe("aegis.node.*.held.*")
    assert bool(await service.publish(f"$JS.API.DIRECT.GET.HELD.{subjects.node_held('n1', 0)}")) is (role != "jobcontroller")
    assert bool(await service.publish(subjects.ADOPT)) is (role != "jobcontroller")
    assert bool(await service.publish(subjects.rpc_do("credentials", "vouch", "ml"))) is (role != "master")


@pytest.mark.parametrize("role", ["lognexus", "lemon", "netmon"])
async def test_who_judges_reads_heads_and_places_and_no_specification(raw: RawOf, role: str) -> None:
    """A specification carries what a user put into the environment."""
    service = await raw(role)
    for subject in (subjects.job_state(A), subjects.job_pods(A, 0), subjects.ERA):
        assert not await service.publish(f"$JS.API.DIRECT.GET.CTL.{subject}")
    for subject in (
        "$JS.API.DIRECT.GET.CTL",
        f"$JS.API.DIRECT.GET.CTL.{subjects.job_spec(A)}",
        f"$JS.API.DIRECT.GET.CTL.{subjects.cred(A)}",
        "$JS.API.STREAM.MSG.GET.CTL",
        "$JS.API.CONSUMER.CREATE.CTL.x",
    ):
        assert await service.publish(subject), subject


EVERY_WRITE = sorted({subject for subjects_ in WRITES.values() for subject in subjects_})


@pytest.mark.parametrize(
    ("role", "subject"),
    [
        (role, subject)
        for role in WORKERS
        for subject in EVERY_WRITE
        if subject not in WRITES[role]
        # lease and fact subjects are shared by design
        and not (subject.startswith("aegis.lease.") and role in ("master", "jobcontroller", "lemon", "netmon", "lognexus"))
        and not (".fact." in subject and role in ("master", "jobcontroller", "lognexus"))
    ],
)
async def test_a_service_may_not_do_anothers_work(raw: RawOf, role: str, subject: str) -> None:
    service = await raw(role)
    assert await service.publish(subject)


POWERS = [
    *(
        f"$JS.API.STREAM.{verb}.{stream}"
        for verb in ("CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE", "SNAPSHOT", "RESTORE")
        for stream in ("CTL", "LEASES", "REPORTS", "NODES", "HELD")
    ),
    "$JS.API.STREAM.CREATE.EVIL",
    "$JS.API.CONSUMER.DURABLE.CREATE.CTL.x",
    "$JS.API.META.LEADER.STEPDOWN",
    "$SYS.REQ.CLAIMS.UPDATE",
    "$SYS.REQ.CLAIMS.DELETE",
    subjects.report(A, "w0", "finish"),
    subjects.heartbeat(A, "w0"),
    subjects.ERA,
    subjects.net_counter("n9"),
    "_INBOX.UAAAA.x",
]


@pytest.mark.parametrize("subject", POWERS)
@pytest.mark.parametrize("role", WORKERS)
async def test_no_service_has_these_powers(raw: RawOf, role: str, subject: str) -> None:
    service = await raw(role)
    assert await service.publish(subject)


@pytest.mark.parametrize("role", WORKERS)
async def test_a_service_may_not_hear_the_others(raw: RawOf, role: str) -> None:
    service = await raw(role)
    other = "lemon" if role != "lemon" else "netmon"
    for subject in (
        ">",
        "aegis.>",
        "aegis.job.>",
        "aegis.job.*.spec",
        "aegis.node.*.slot.*",
        "aegis.cred.>",
        f"aegis.rpc.{other}.>",
        "_INBOX.>",
        "$JS.>",
        "$SYS.>",
    ):
        assert await service.subscribe(subject), subject


async def test_a_responder_answers_the_one_who_asked_and_only_once(raw: RawOf) -> None:
    asker, service = await raw("jobcontroller"), await raw("credentials")
    heard = await service.listen("aegis.rpc.credentials.do.*.*")
    answers = await asker.listen(f"_INBOX.{asker.public}.>")
    await asker.nc.publish("aegis.rpc.credentials.do.join.default", b"{}", reply=f"_INBOX.{asker.public}.q")
    await until(lambda: heard)
    assert not await service.publish(heard[0].reply, b"one")
    assert await service.publish(heard[0].reply, b"two")
    await until(lambda: [msg.data for msg in answers] == [b"one"])


async def test_the_sys_user_may_push_accounts_and_nothing_else(secured: Secured, raw: RawOf) -> None:
    system = await raw(creds=secured.site.system_user())
    assert json.loads((await system.nc.request("$SYS.REQ.CLAIMS.LIST", b"", timeout=2)).data)["data"]
    for subject in ("$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.SERVER.X.RELOAD", "$JS.API.INFO", "aegis.job.x.state"):
        assert await system.publish(subject), subject
    for subject in (">", "$SYS.>", "$SYS.ACCOUNT.>"):
        assert await system.subscribe(subject), subject


async def test_an_answer_that_takes_long_still_arrives(secured: Secured, raw: RawOf) -> None:
    """The right to answer ends some time after the request; it must outlast what a busy service needs (2 s did not)."""
    service, reader = await secured.bus("master"), await raw("reader")

    async def slowly(msg: Msg) -> None:
        await asyncio.sleep(3.0)
        await msg.respond(b'{"late":true}')

    await service.subscribe("aegis.rpc.master.query.*", slowly)
    assert (await reader.ask("aegis.rpc.master.query.jobs", timeout=20))["late"] is True
    await service.close()
