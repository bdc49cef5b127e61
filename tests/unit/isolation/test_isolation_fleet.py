"""Node daemons (account FLEET): the daemon of n1 speaks for n1 alone, reads the slots of n1 alone, and nothing of any job."""

from __future__ import annotations

import pytest
from aegis_proto import subjects
from harness.site import A, B, RawOf, Secured
from harness.waiting import until

NODES_STREAMS = ("CTL", "LEASES", "NODES", "FLEET", "REPORTS", "EVENTS", "LOGS", "METRICS", "BLOBS", "DLQ", "STORY", "HELD", "KEPT")


@pytest.mark.parametrize(
    ("subject", "stream"),
    [
        (subjects.node_spec("n1"), "FLEET"),
        (subjects.node_status("n1"), "FLEET"),
        (subjects.node_held("n1", 0), "HELD"),
        (subjects.node_event("n1", "xid"), "EVENTS"),
        (subjects.net_counter("n1"), "METRICS"),
    ],
)
async def test_a_daemon_tells_of_its_node(raw: RawOf, subject: str, stream: str) -> None:
    daemon = await raw("node", node="n1")
    assert (await daemon.ask(subject))["stream"] == stream


async def test_a_daemon_reads_its_slots_and_is_woken_by_them(raw: RawOf, secured: Secured) -> None:
    daemon, controller = await raw("node", node="n1"), await secured.bus("jobcontroller")
    heard = await daemon.listen("aegis.node.n1.slot.*")
    place, slot = subjects.place("gamma-444444", "w0"), subjects.node_slot("n1", 0)
    stored = await controller.get("NODES", slot)
    await controller.batch([(place, b'{"place":1}', 0), (slot, b'{"slot":1}', stored.seq if stored else 0)])
    await until(lambda: heard)
    answer = await daemon.nc.request(f"$JS.API.DIRECT.GET.NODES.{slot}", b"", timeout=2)
    assert answer.data == b'{"slot":1}'
    asked = await daemon.listen("aegis.node.n1.test")
    await controller.publish(subjects.node_test("n1"), b'{"test":1}')
    await until(lambda: asked)
    assert (await daemon.nc.request(f"$JS.API.DIRECT.GET.NODES.{subjects.node_test('n1')}", b"", timeout=2)).data == b'{"test":1}'
    await controller.close()


async def test_a_daemons_heartbeat_and_status_reach_the_job_controller(raw: RawOf, secured: Secured) -> None:
    controller, daemon = await raw("jobcontroller"), await raw("node", node="n1")
    beats, views = await controller.listen("aegis.node.*.hb"), await controller.listen("aegis.view.node.*.status")
    await daemon.nc.publish(subjects.node_hb("n1"), b"{}")
    await daemon.ask(subjects.node_status("n1"), b'{"n":1}')
    await until(lambda: beats and views)
    bus = await secured.bus("jobcontroller")
    stored = await bus.get("FLEET", subjects.node_status("n1"))
    assert stored is not None
    assert stored.data == b'{"n":1}'
    await bus.close()


@pytest.mark.parametrize(
    "subject",
    [
        subjects.node_spec("n2"),
        subjects.node_status("n2"),
        subjects.node_held("n2", 0),
        "aegis.node.n1.held.0.more",
        subjects.node_hb("n2"),
        subjects.node_event("n2", "xid"),
        subjects.net_counter("n2"),
        subjects.node_slot("n1", 0),
        subjects.node_slot("n2", 0),
        subjects.node_taint("n1"),
        subjects.node_test("n1"),
        subjects.node_taint("n2"),
        subjects.place(A, "w0"),
        subjects.job_state(A),
        subjects.job_spec(A),
        subjects.job_pods(A, 0),
        subjects.report(A, "w0", "finish"),
        subjects.fact(A, "w0"),
        subjects.fact(A, "job"),
        subjects.heartbeat(A, "w0"),
        subjects.job_log(A, "w0"),
        subjects.job_event(A),
        subjects.cred(A),
        subjects.cred_node("n1"),
        subjects.ERA,
        subjects.lease("m1"),
        subjects.verdict("lemon", "node", "n2"),
        subjects.dlq("master", "REPORTS", A),
        subjects.view(subjects.node_status("n2")),
        subjects.rpc_query("master", "jobs"),
        subjects.rpc_do("master", "stop", "default"),
        subjects.rpc_do("credentials", "join", "default"),
        subjects.rpc_do("credentials", "vouch", "default"),
        subjects.ADOPT,
        f"$JS.API.DIRECT.GET.HELD.{subjects.node_held('n1', 0)}",
        f"$JS.API.DIRECT.GET.HELD.{subjects.node_held('n2', 0)}",
        f"$JS.API.DIRECT.GET.NODES.{subjects.node_slot('n2', 0)}",
        "$JS.API.DIRECT.GET.NODES.aegis.node.*.slot.0",
        f"$JS.API.DIRECT.GET.NODES.{subjects.node_taint('n1')}",
        f"$JS.API.DIRECT.GET.NODES.{subjects.node_test('n2')}",
        f"$JS.API.DIRECT.GET.NODES.{subjects.place(A, 'w0')}",
        f"$JS.API.DIRECT.GET.FLEET.{subjects.node_spec('n2')}",
        f"$JS.API.DIRECT.GET.CTL.{subjects.job_state(A)}",
        f"$JS.API.DIRECT.GET.CTL.{subjects.job_spec(A)}",
        *(f"$JS.API.DIRECT.GET.{stream}" for stream in NODES_STREAMS),
        *(f"$JS.API.STREAM.{verb}.NODES" for verb in ("INFO", "PURGE", "DELETE", "UPDATE", "MSG.GET", "MSG.DELETE")),
        "$JS.API.CONSUMER.CREATE.NODES.x",
        f"$JS.API.CONSUMER.CREATE.NODES.x.{subjects.node_slot('n1', 0)}",
        "$JS.API.INFO",
        "$SYS.REQ.CLAIMS.UPDATE",
    ],
)
async def test_a_daemon_may_not_publish(raw: RawOf, subject: str) -> None:
    daemon = await raw("node", node="n1")
    assert await daemon.publish(subject)


@pytest.mark.parametrize(
    "subject",
    [
        ">",
        "aegis.>",
        "aegis.node.>",
        "aegis.node.*.slot.*",
        "aegis.node.n2.slot.*",
        "aegis.node.n2.slot.0",
        "aegis.node.n2.test",
        "aegis.view.>",
        subjects.view_job_state(A),
        subjects.job_state(B),
        "aegis.job.>",
        "aegis.place.*.*",
        "_INBOX.>",
        "$JS.>",
        "$SYS.>",
        "_R_.>",
    ],
)
async def test_a_daemon_may_not_subscribe(raw: RawOf, subject: str) -> None:
    daemon = await raw("node", node="n1")
    assert await daemon.subscribe(subject)


async def test_the_slot_of_another_node_is_not_heard(raw: RawOf, secured: Secured) -> None:
    """A slot carries a join token and the user's environment."""
    daemon, controller = await raw("node", node="n1"), await secured.bus("jobcontroller")
    heard = await daemon.listen("aegis.node.n1.slot.*")
    await controller.publish(subjects.node_slot("n2", 0), b'{"token":"secret"}')
    await controller.publish(subjects.node_slot("n1", 1), b'{"mine":1}')
    await until(lambda: heard)
    assert [msg.subject for msg in heard] == [subjects.node_slot("n1", 1)]
    await controller.close()
