"""What an agent may do, and what is refused: on the real server, with the rights as shipped. The agent is w0 of job A; B is somebody else's."""

from __future__ import annotations

import pytest
from aegis_proto import subjects
from aegis_proto.phases import ReportKind
from harness.site import A, B, RawOf, Secured
from harness.waiting import until

pytestmark = pytest.mark.timeout(60)

STREAMS = ("CTL", "LEASES", "NODES", "FLEET", "REPORTS", "EVENTS", "STORY", "LOGS", "METRICS", "BLOBS", "DLQ", "HELD", "KEPT")

# --- what it must be able to do --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind.value for kind in ReportKind])
async def test_an_agent_reports(raw: RawOf, kind: str) -> None:
    agent = await raw("agent", job=A, pod="w0")
    ack = await agent.ask(subjects.report(A, "w0", kind), headers={"Nats-Msg-Id": f"x-{kind}"})
    assert ack["stream"] == "REPORTS"
    assert (await agent.ask(subjects.report(A, "w0", kind), headers={"Nats-Msg-Id": f"x-{kind}"}))["duplicate"] is True


@pytest.mark.parametrize(
    ("subject", "stream"),
    [(subjects.job_log(A, "w0"), "LOGS"), (subjects.job_metric(A, "w0"), "METRICS"), (subjects.blob(A, "w0", "flight-1"), "BLOBS")],
)
async def test_an_agent_stores_bulk(raw: RawOf, subject: str, stream: str) -> None:
    agent = await raw("agent", job=A, pod="w0")
    assert (await agent.ask(subject, b"x" * 48_000))["stream"] == stream


async def test_an_agent_reads_its_jobs_state_and_hears_commits(raw: RawOf, secured: Secured) -> None:
    from aegis_bus.jobstore import JobStore

    agent = await raw("agent", job=A, pod="w0")
    answer = await agent.nc.request(f"$JS.API.DIRECT.GET.CTL.{subjects.job_state(A)}", b"", timeout=2)
    assert (answer.headers or {})["Nats-Subject"] == subjects.job_state(A)
    heard = await agent.listen(subjects.view_job_state(A))
    master = await secured.bus("master")
    store = JobStore(master)
    loaded = await store.load(A)
    assert loaded is not None
    await store.commit(loaded, loaded.state.with_head(step=loaded.state.head.step + 1))
    await agent.settle()
    await until(lambda: heard, what="the republished head")
    await master.close()


async def test_an_agent_never_hears_what_was_refused(raw: RawOf, secured: Secured) -> None:
    """A core subscriber of the state itself would: publishes reach it before the stream says no. The view is fed by what was stored."""
    agent, stale = await raw("agent", job=A, pod="w0"), await raw("master")
    heard, seen_raw = await agent.listen(subjects.view_job_state(A)), await (await raw("admin")).listen(subjects.job_state(A))
    refused = await stale.ask(subjects.job_state(A), b'{"stale":1}', headers={"Nats-Expected-Last-Subject-Sequence": "999999"})
    assert refused["error"]["err_code"] == 10071
    await until(lambda: seen_raw, what="the core message, to show that there was something to hear")
    await agent.settle()
    assert not [msg for msg in heard if b"stale" in msg.data]


async def test_an_agents_heartbeat_reaches_the_master(raw: RawOf) -> None:
    master, agent = await raw("master"), await raw("agent", job=A, pod="w0")
    heard = await master.listen("aegis.job.*.hb.*")
    assert not await agent.publish(subjects.heartbeat(A, "w0"))
    await until(lambda: [msg.subject for msg in heard] == [subjects.heartbeat(A, "w0")])


# --- what is refused: publish and request ----------------------------------------------------------------------------------------

FOREIGN = [
    *(subjects.report(B, "w0", kind.value) for kind in ReportKind),
    *(subjects.report(A, "w1", kind.value) for kind in ReportKind),
    subjects.report(A, "w0", "invented"),
    subjects.report(A, "w0", "pending.more"),
    subjects.heartbeat(B, "w0"),
    subjects.heartbeat(A, "w1"),
    subjects.job_log(B, "w0"),
    subjects.job_log(A, "w1"),
    subjects.job_metric(B, "w0"),
    subjects.job_metric(A, "w1"),
    subjects.blob(B, "w0", "x"),
    subjects.blob(A, "w1", "x"),
    subjects.job_state(A),
    subjects.job_state(B),
    subjects.job_pods(A, 0),
    subjects.job_pods(B, 0),
    subjects.job_spec(A),
    subjects.job_event(A),
    subjects.job_progress(A),
    subjects.fact(A, "w0"),
    subjects.fact(A, "job"),
    subjects.fact(B, "w0"),
    subjects.view_job_state(A),
    subjects.view_job_state(B),
    subjects.cred(A),
    subjects.cred(B),
    subjects.ERA,
    subjects.lease("m1"),
    subjects.place(A, "w0"),
    subjects.node_slot("n1", 0),
    subjects.node_held("n1", 0),
    subjects.ADOPT,
    subjects.node_taint("n1"),
    subjects.node_spec("n1"),
    subjects.node_status("n1"),
    subjects.node_hb("n1"),
    subjects.node_event("n1", "xid"),
    subjects.net_counter("n1"),
    subjects.verdict("lognexus", "node", "n1"),
    subjects.dlq("master", "REPORTS", A),
    subjects.rpc_query("master", "jobs"),
    subjects.rpc_do("master", "stop", "default"),
    subjects.rpc_do("credentials", "join", "default"),
    subjects.rpc_do("credentials", "vouch", "default"),
    subjects.rpc_do("credentials", "issue", "default"),
    subjects.rpc_do("credentials", "revoke", "default"),
]

JETSTREAM = [
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.META.LEADER.STEPDOWN",
    "$JS.hub.API.STREAM.NAMES",
    "$JS.FC.CTL.x.y",
    "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.CTL.x",
    "$JS.ACK.REPORTS.m.1.1.1.1.0",
    "$JS.API.STREAM.CREATE.EVIL",
    *(f"$JS.API.STREAM.{verb}.{stream}" for verb in ("INFO", "UPDATE", "DELETE", "PURGE", "MSG.GET", "MSG.DELETE", "SNAPSHOT") for stream in STREAMS),
    *(f"$JS.API.CONSUMER.{verb}.{stream}" for verb in ("CREATE", "NAMES", "LIST") for stream in STREAMS),
    *(f"$JS.API.CONSUMER.{verb}.REPORTS.m" for verb in ("CREATE", "DURABLE.CREATE", "INFO", "DELETE", "PAUSE", "UNPIN", "RESET", "MSG.NEXT")),
    f"$JS.API.CONSUMER.CREATE.CTL.e.{subjects.job_state(A)}",
    f"$JS.API.CONSUMER.CREATE.REPORTS.e.{subjects.report(A, 'w0', 'ack')}",
    *(f"$JS.API.DIRECT.GET.{stream}" for stream in STREAMS),
    f"$JS.API.DIRECT.GET.CTL.{subjects.job_state(B)}",
    f"$JS.API.DIRECT.GET.CTL.{subjects.job_pods(A, 0)}",
    f"$JS.API.DIRECT.GET.CTL.{subjects.job_spec(A)}",
    f"$JS.API.DIRECT.GET.CTL.{subjects.job_spec(B)}",
    f"$JS.API.DIRECT.GET.CTL.{subjects.cred(A)}",
    f"$JS.API.DIRECT.GET.CTL.{subjects.ERA}",
    "$JS.API.DIRECT.GET.CTL.aegis.job.*.state",
    "$JS.API.DIRECT.GET.CTL.>",
    f"$JS.API.DIRECT.GET.NODES.{subjects.node_slot('n1', 0)}",
    f"$JS.API.DIRECT.GET.FLEET.{subjects.node_spec('n1')}",
    f"$JS.API.DIRECT.GET.STORY.{subjects.job_state(A)}",
    f"$JS.API.DIRECT.GET.EVENTS.{subjects.job_event(A)}",
]

SYSTEM = [
    "$SYS.REQ.USER.INFO",
    "$SYS.REQ.SERVER.PING",
    "$SYS.REQ.ACCOUNT.PING.CONNZ",
    "$SYS.REQ.CLAIMS.UPDATE",
    "$SYS.REQ.CLAIMS.DELETE",
    "$SYS.REQ.CLAIMS.LIST",
    "$SRV.PING",
    "$G.x",
    "_R_.x.y",
]


@pytest.mark.parametrize("subject", FOREIGN + JETSTREAM + SYSTEM)
async def test_an_agent_may_not_publish(raw: RawOf, subject: str) -> None:
    agent = await raw("agent", job=A, pod="w0")
    assert await agent.publish(subject, b"{}"), "the server took it"
    assert not await agent.answered(subject, timeout=0.05)


async def test_an_agent_may_not_write_into_a_foreign_inbox(raw: RawOf) -> None:
    agent, other = await raw("agent", job=A, pod="w0"), await raw("agent", job=B, pod="w0")
    heard = await other.listen(f"_INBOX.{other.public}.guess")
    assert await agent.publish(f"_INBOX.{other.public}.guess")
    assert await agent.publish(f"_INBOX.{agent.public}.own"), "not even into its own: only the server answers there"
    await other.settle()
    assert not heard


# --- what is refused: subscribe --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "subject",
    [
        ">",
        "*",
        "aegis.>",
        "aegis.job.>",
        "aegis.view.>",
        "aegis.view.job.*.state",
        subjects.view_job_state(B),
        f"aegis.job.{A}.>",
        f"aegis.job.{B}.>",
        subjects.job_state(A),
        subjects.job_state(B),
        subjects.job_spec(A),
        f"aegis.job.{A}.worker.>",
        f"aegis.job.{A}.hb.*",
        f"aegis.job.{A}.fact.*",
        subjects.node_slot("n1", 0),
        subjects.node_held("n1", 0),
        "aegis.node.>",
        "aegis.rpc.>",
        "aegis.dlq.>",
        "_INBOX.>",
        "_INBOX.*.>",
        "$JS.>",
        "$JS.API.>",
        "$JS.ACK.>",
        "$JS.EVENT.>",
        "$SYS.>",
        "$SYS.ACCOUNT.>",
        "_R_.>",
        "$KV.>",
        "$JSC.>",
        "$NRG.>",
        "$SRV.>",
    ],
)
async def test_an_agent_may_not_subscribe(raw: RawOf, subject: str) -> None:
    agent = await raw("agent", job=A, pod="w0")
    assert await agent.subscribe(subject)


async def test_an_agent_may_not_subscribe_a_foreign_inbox_nor_join_a_queue(raw: RawOf) -> None:
    agent, other = await raw("agent", job=A, pod="w0"), await raw("agent", job=B, pod="w0")
    assert await agent.subscribe(f"_INBOX.{other.public}.>")
    assert await agent.subscribe("aegis.rpc.master.>", queue="master")


# --- bounds ----------------------------------------------------------------------------------------------------------------------


async def test_a_report_above_8_kb_is_not_stored(raw: RawOf) -> None:
    agent = await raw("agent", job=A, pod="w0")
    answer = await agent.ask(subjects.report(A, "w0", "error"), b"x" * 8193)
    assert answer["error"]["err_code"] == 10054


async def test_a_message_above_64_kb_ends_the_connection_of_its_sender_only(raw: RawOf) -> None:
    agent, other = await raw("agent", job=A, pod="w0"), await raw("agent", job=A, pod="w1")
    agent.nc._max_payload = 1 << 20
    await agent.nc.publish(subjects.job_log(A, "w0"), b"x" * 70_000)
    await until(lambda: agent.nc.is_closed or any("maximum payload" in text for text in agent.errors))
    assert (await other.ask(subjects.report(A, "w1", "ack")))["stream"] == "REPORTS"


async def test_an_agent_has_few_subscriptions_and_a_job_few_connections(raw: RawOf, secured: Secured) -> None:
    agent = await raw("agent", job=A, pod="w0")
    for _ in range(40):
        await agent.nc.subscribe(f"_INBOX.{agent.public}.>")
    await until(lambda: agent.nc.is_closed or any("maximum subscriptions" in text for text in agent.errors))
    with pytest.raises(Exception, match=r"(?i)no servers|maximum|authorization"):
        for _ in range(64):  # two workers: 3 * 2 + 16
            await raw("agent", job=B, pod="w0")
