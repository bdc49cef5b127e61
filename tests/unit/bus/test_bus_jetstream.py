"""Writing and reading streams: every answer of the server becomes the one error that says whether it happened."""

from __future__ import annotations

import asyncio

import pytest
from aegis_bus import errors, jetstream
from aegis_bus.connection import Bus
from harness.bus import MakeBus
from harness.waiting import until

EVENT = "aegis.job.x.event"


async def test_an_id_makes_a_repeat_harmless(bus: Bus) -> None:
    first = await bus.publish(EVENT, b"1", msg_id="abc")
    again = await bus.publish(EVENT, b"1", msg_id="abc")
    assert (again.seq, first.duplicate, again.duplicate) == (first.seq, False, True)


async def test_ids_of_two_processes_never_meet_and_cannot_be_guessed(make_bus: MakeBus) -> None:
    one, two = await make_bus(), await make_bus()
    ids = [bus.next_msg_id() for bus in (one, two) for _ in range(3)]
    assert len(set(ids)) == 6
    assert all(len(ident.partition("-")[0]) == 32 for ident in ids)


async def test_a_wrong_expected_sequence_is_told_at_once(bus: Bus) -> None:
    """publish_async of nats-py never resolves on a rejection."""
    ack = await bus.publish("aegis.cred.j.w0", b"1", expect=0)
    async with asyncio.timeout(1):
        with pytest.raises(errors.WrongLastSequence, match=r"aegis\.cred\.j\.w0: wrong last sequence: 1"):
            await bus.publish("aegis.cred.j.w0", b"2", expect=0)
    assert (await bus.publish("aegis.cred.j.w0", b"2", expect=ack.seq)).seq == ack.seq + 1


async def test_a_subject_without_a_stream_is_unreachable_not_a_silence(bus: Bus) -> None:
    async with asyncio.timeout(2):
        with pytest.raises(errors.Unreachable, match="nobody answers"):
            await bus.publish("no.stream.here", b"")


async def test_a_refusal_carries_the_code_of_the_server(bus: Bus) -> None:
    with pytest.raises(errors.Rejected) as caught:
        await bus.publish("aegis.job.x.worker.w0.ack", b"x" * 9000)  # REPORTS takes 8 KB
    assert caught.value.err_code == 10054
    assert not caught.value.retryable


async def test_a_ttl_removes_the_message_and_leaves_a_marker(bus: Bus) -> None:
    await bus.publish("aegis.lease.a", b"1", ttl=1.0)
    stored = await bus.get("LEASES", "aegis.lease.a")
    assert stored is not None and not stored.marker

    async def expired() -> bool:
        item = await bus.get("LEASES", "aegis.lease.a")
        return item is None or item.marker

    await until(expired)


async def test_a_batch_is_stored_whole_and_in_order(bus: Bus) -> None:
    ack = await bus.batch([("aegis.job.j.state", b"h", 0), *((f"aegis.job.j.pods.{k}", b"%d" % k, None) for k in range(40))])
    stored = await bus.get_many("CTL", ["aegis.job.j.state", "aegis.job.j.pods.*"])
    assert [item.seq for item in stored] == list(range(ack.seq - 40, ack.seq + 1))
    assert stored[0].subject == "aegis.job.j.state"


async def test_a_batch_with_one_wrong_sequence_stores_nothing(bus: Bus) -> None:
    await bus.publish("aegis.job.j.state", b"h", expect=0)
    with pytest.raises(errors.WrongLastSequence):
        await bus.batch([("aegis.job.j.state", b"h2", 0), ("aegis.job.j.pods.0", b"p", None)])
    with pytest.raises(errors.WrongLastSequence):
        await bus.batch([("aegis.job.j.pods.0", b"p", None), ("aegis.job.j.state", b"h2", 0)])
    assert await bus.get("CTL", "aegis.job.j.pods.0") is None


async def test_two_expected_sequences_decide_a_placement_once(bus: Bus) -> None:
    place, slot = ("aegis.place.j.w0", b"n1", 0), ("aegis.node.n1.slot.0", b"j", 0)
    await bus.batch([place, slot])
    with pytest.raises(errors.WrongLastSequence):
        await bus.batch([("aegis.place.j.w1", b"n1", 0), slot])
    assert await bus.get("NODES", "aegis.place.j.w1") is None


async def test_a_batch_whose_body_cannot_be_made_stores_nothing(bus: Bus) -> None:
    def broken() -> bytes:
        raise ValueError("no body")

    with pytest.raises(ValueError, match="no body"):
        await bus.batch([("aegis.cred.j.w0", b"1", 0), ("aegis.cred.j.w1", lambda: b"1", None), ("aegis.cred.j.w2", broken, None)])
    assert await bus.get("CTL", "aegis.cred.j.w0") is None
    assert (await bus.batch([("aegis.cred.j.w0", b"1", 0), ("aegis.cred.j.w1", lambda: b"1", None)])).seq == 2


async def test_a_batch_of_one_is_a_publish(bus: Bus) -> None:
    ack = await bus.batch([("aegis.job.j.state", b"h", 0)])
    assert (await bus.batch([("aegis.job.j.state", b"h2", ack.seq)])).seq == ack.seq + 1


async def test_abandoned_batches_of_others_are_a_retryable_refusal(bus: Bus, make_bus: MakeBus) -> None:
    """50 open batches are all the server allows; the 51st commit of anybody is refused until they time out."""
    careless = await make_bus()
    await careless.wait_connected(5)
    assert careless._link is not None
    for n in range(60):
        headers = {"Nats-Batch-Id": f"abandoned{n}", "Nats-Batch-Sequence": "1"}
        await careless._link.call(f"aegis.job.a{n}.state", b"x", headers, 5.0)
    with pytest.raises(errors.Rejected) as caught:
        await bus.batch([("aegis.job.j.state", b"h", 0), ("aegis.job.j.pods.0", b"p", None)])
    assert caught.value.retryable
    assert (await bus.publish("aegis.job.j.state", b"h", expect=0)).seq  # a single CAS publish still passes


async def test_one_bus_never_opens_more_batches_than_its_share(bus: Bus) -> None:
    """40 jobs commit at once: each in its turn, none refused."""
    acks = await asyncio.gather(
        *(bus.batch([(f"aegis.job.j{n}.state", b"h", 0), (f"aegis.job.j{n}.pods.0", b"p", None)], timeout=20) for n in range(80))
    )
    assert len({ack.seq for ack in acks}) == 80


async def test_rollup_with_a_ttl_leaves_nothing_of_the_past(bus: Bus) -> None:
    for n in range(4):
        await bus.publish("aegis.job.j.state", b"%d" % n)
    await bus.batch([("aegis.job.j.state", b"end", None), ("aegis.job.j.pods.0", b"end", None)], ttl=1.0, rollup=True)
    info = await bus.js_api("STREAM.INFO.CTL", {"subjects_filter": "aegis.job.j.>"})
    assert info["state"]["subjects"] == {"aegis.job.j.state": 1, "aegis.job.j.pods.0": 1}

    async def empty() -> bool:
        return (await bus.js_api("STREAM.INFO.CTL"))["state"]["messages"] == 0

    await until(empty, timeout=15)


@pytest.mark.parametrize("leader", [False, True])
async def test_get_gives_the_last_message_with_the_servers_time(bus: Bus, leader: bool) -> None:
    import time

    assert await bus.get("CTL", "aegis.cred.j.w0", leader=leader) is None
    before = int(time.time() * 1000)
    await bus.publish("aegis.cred.j.w0", b"old")
    ack = await bus.publish("aegis.cred.j.w0", b"new", msg_id="m1")
    stored = await bus.get("CTL", "aegis.cred.j.w0", leader=leader)
    assert stored is not None
    assert (stored.subject, stored.seq, stored.data, stored.headers["Nats-Msg-Id"]) == ("aegis.cred.j.w0", ack.seq, b"new", "m1")
    assert before - 50 <= stored.time_ms <= time.time() * 1000 + 50
    by_seq = await bus.get_seq("CTL", 1)
    assert by_seq is not None and by_seq.data == b"old"
    assert await bus.get_seq("CTL", 99) is None


async def test_get_many_beyond_the_servers_limit_of_results(bus: Bus) -> None:
    """Direct Get refuses above 1,024 subjects; a fleet has more nodes."""
    await asyncio.gather(*(bus.publish(f"aegis.node.n{n}.spec", b"%d" % n) for n in range(1100)))
    await bus.publish("aegis.node.n0.spec", b"newest")
    stored = await bus.get_many("FLEET", ["aegis.node.*.spec"], timeout=20)
    assert len(stored) == 1100
    assert stored[-1].data == b"newest"
    assert [item.seq for item in stored] == sorted(item.seq for item in stored)
    assert await bus.get_many("NODES", ["aegis.node.*.taint"]) == []


async def test_get_many_in_several_answers(bus: Bus) -> None:
    """More bytes than one answer holds come in several, and as of one moment."""
    body = b"x" * 60_000
    await bus.batch([(f"aegis.job.j.pods.{k}", body, None) for k in range(200)], timeout=20)
    stored = await bus.get_many("CTL", ["aegis.job.j.pods.*"], timeout=20)
    assert [item.subject for item in stored] == [f"aegis.job.j.pods.{k}" for k in range(200)]


def test_times_of_the_server() -> None:
    assert jetstream.time_ms("1970-01-01T00:00:01.5Z") == 1500
    assert jetstream.time_ms("2026-11-29T20:13:38.451532197Z") == 1795983218451
    assert jetstream.time_ms("1970-01-01T00:00:02Z") == 2000
    assert [jetstream.go_seconds(value) for value in (0.2, 6.0, 6.1)] == ["1s", "6s", "7s"]
