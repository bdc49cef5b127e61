"""One contract for two servers: the real nats-server, and the double on which simulations run. The Bus above it is the real one in both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest
from aegis_bus import errors
from aegis_bus.connection import Bus, Msg, Stored
from aegis_bus.identity import Identity
from aegis_bus.jobstore import JobStore
from aegis_bus.lease import Lease, live_replicas
from aegis_bus.natsserver import NatsServer
from aegis_bus.ordered import Gap, OrderedReader
from aegis_master import machine
from aegis_proto.state import JobSpec
from aegis_proto.streams import stream_configs
from harness.waiting import until
from simulation import patches
from simulation.client import Network
from simulation.loop import Loop, Process
from simulation.server import Server

NOW = 1_800_000_000_000
MakeBus = Callable[[], Awaitable[Bus]]
Work = Callable[["Road", MakeBus], Coroutine[Any, Any, None]]


class Road(Protocol):
    """A server, and a way to run something against it."""

    def run(self, work: Work) -> None: ...

    async def restart(self) -> None:
        """The server ends as by kill -9 and comes back with what is on its disk."""


class Real:
    def __init__(self, folder: Path) -> None:
        self._server = NatsServer(folder / "nats", die_with_parent=True)

    def run(self, work: Work) -> None:
        self._server.start()
        try:
            asyncio.run(_with_buses(self, work, lambda: Bus.connect(Identity.new(), [self._server.url], name="contract")))
        finally:
            self._server.stop(grace=10)

    async def restart(self) -> None:
        self._server.kill9()
        await asyncio.to_thread(self._server.start)


class Simulated:
    def __init__(self) -> None:
        rng = random.Random(1)
        self._loop = Loop()
        self._server = Server(self._loop, rng)
        self._network = Network(self._loop, self._server, lambda: rng.uniform(0.0001, 0.002))
        self._rng = rng

    def run(self, work: Work) -> None:
        with patches.installed(self._network, self._rng):
            connect = lambda: Bus.connect(patches.new_identity(), ["sim"], name="contract")  # noqa: E731
            task = self._loop.spawn(Process("contract"), _with_buses(self, work, connect))
            task.add_done_callback(lambda _: self._loop.stop())
            self._loop.run(until=3600.0)
            assert task.done(), "it waits for ever"
            task.result()
        assert self._loop.errors == []

    async def restart(self) -> None:
        self._server.stop()
        await asyncio.sleep(0.3)
        self._server.start()


async def _with_buses(road: Road, work: Work, connect: Callable[[], Awaitable[Bus]]) -> None:
    made: list[Bus] = []

    async def make() -> Bus:
        made.append(await connect())
        return made[-1]

    try:
        await work(road, make)
    finally:
        for bus in made:
            await bus.close(grace=1.0)


@pytest.fixture(params=["nats-server", "simulated"])
def road(request: pytest.FixtureRequest, tmp_path: Path) -> Road:
    return Real(tmp_path) if request.param == "nats-server" else Simulated()


async def shipped(make: MakeBus) -> Bus:
    """A bus, with the streams as shipped."""
    bus = await make()
    for config in stream_configs():
        if config["name"] not in ("STORY", "LOGS", "METRICS", "BLOBS"):
            await bus.js_api(f"STREAM.CREATE.{config['name']}", config)
    return bus


# --- writing -----------------------------------------------------------------------------------------------------------------


def test_an_id_makes_a_repeat_harmless(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        first = await bus.publish("aegis.job.x.event", b"1", msg_id="abc")
        again = await bus.publish("aegis.job.x.event", b"1", msg_id="abc")
        assert (again.stream, again.seq, first.duplicate, again.duplicate) == ("EVENTS", first.seq, False, True)
        await road.restart()
        assert (await bus.publish("aegis.job.x.event", b"1", msg_id="abc", timeout=20)).duplicate

    road.run(work)


def test_an_expected_sequence_lets_one_writer_pass(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        ack = await bus.publish("aegis.cred.j.0", b"1", expect=0)
        for expect in (0, ack.seq + 1):
            with pytest.raises(errors.WrongLastSequence, match="wrong last sequence: 1"):
                await bus.publish("aegis.cred.j.0", b"2", expect=expect)
        assert (await bus.publish("aegis.cred.j.0", b"2", expect=ack.seq)).seq == ack.seq + 1
        assert (await bus.publish("aegis.cred.k.0", b"2", expect=0)).seq == ack.seq + 2

    road.run(work)


def test_refusals_have_the_codes_of_the_server(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        with pytest.raises(errors.Unreachable, match="nobody answers"):
            await bus.publish("no.stream.here", b"")
        with pytest.raises(errors.Rejected) as caught:
            await bus.publish("aegis.job.x.worker.w0.ack", b"x" * 9000)
        assert caught.value.err_code == 10054
        with pytest.raises(errors.Rejected) as caught:
            await bus.publish("aegis.job.x.worker.w0.ack", b"x", ttl=1.0)
        assert caught.value.err_code == 10166
        with pytest.raises(errors.Rejected) as caught:
            await bus.js_api("STREAM.INFO.NONE")
        assert caught.value.err_code == 10059

    road.run(work)


def test_a_batch_is_stored_whole_or_not_at_all(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        ack = await bus.batch([("aegis.job.j.state", b"h", 0), ("aegis.job.j.pods.0", b"p", None), ("aegis.job.j.pods.1", b"q", None)])
        assert (ack.stream, ack.seq) == ("CTL", 3)
        for messages in (
            [("aegis.job.j.state", b"h2", 0), ("aegis.job.j.pods.0", b"p2", None)],
            [("aegis.job.j.pods.0", b"p2", None), ("aegis.job.j.state", b"h2", 2)],
        ):
            with pytest.raises(errors.WrongLastSequence):
                await bus.batch(messages)
        found = await bus.get_many("CTL", ["aegis.job.j.state", "aegis.job.j.pods.*"])
        assert [(item.seq, item.data) for item in found] == [(1, b"h"), (2, b"p"), (3, b"q")]
        assert (await bus.batch([("aegis.job.j.state", b"h2", 1)])).seq == 4

    road.run(work)


def test_fifty_open_batches_refuse_the_next_one_for_a_while(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        assert bus._link is not None
        for n in range(50):
            await bus._link.call(f"aegis.job.a{n}.state", b"x", {"Nats-Batch-Id": f"left{n}", "Nats-Batch-Sequence": "1"}, 5.0)
        with pytest.raises(errors.Rejected) as caught:
            await bus.batch([("aegis.job.j.state", b"h", 0), ("aegis.job.j.pods.0", b"p", None)])
        assert caught.value.retryable
        assert (await bus.publish("aegis.job.j.state", b"h", expect=0)).seq == 1

    road.run(work)


def test_a_rollup_leaves_nothing_of_the_past(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        for n in range(10):
            await bus.publish("aegis.job.j.state", b"%d" % n)
        info = await bus.js_api("STREAM.INFO.CTL", {"subjects_filter": "aegis.job.j.>"})
        assert info["state"]["subjects"] == {"aegis.job.j.state": 8}
        assert (info["state"]["first_seq"], info["state"]["last_seq"]) == (3, 10)
        await bus.batch([("aegis.job.j.state", b"end", None), ("aegis.job.j.pods.0", b"end", None)], ttl=60.0, rollup=True)
        info = await bus.js_api("STREAM.INFO.CTL", {"subjects_filter": "aegis.job.j.>"})
        assert info["state"]["subjects"] == {"aegis.job.j.state": 1, "aegis.job.j.pods.0": 1}

    road.run(work)


def test_a_lease_ends_with_its_time_and_leaves_a_marker(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        lease = Lease(bus, "m1", ttl=2.0)
        await lease.start()
        await asyncio.sleep(3.0)
        assert list(await live_replicas(bus)) == ["m1"]
        assert lease._task is not None
        lease._task.cancel()

        async def over() -> bool:
            return not await live_replicas(bus)

        await until(over, timeout=10)
        item = await bus.get("LEASES", "aegis.lease.m1")
        assert item is None or item.marker

    road.run(work)


# --- reading -----------------------------------------------------------------------------------------------------------------


def test_direct_get_gives_the_last_message(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        for leader in (False, True):
            assert await bus.get("CTL", "aegis.cred.j.0", leader=leader) is None
        assert await bus.get_many("CTL", ["aegis.cred.*.*"]) == []
        await bus.publish("aegis.cred.j.0", b"old")
        ack = await bus.publish("aegis.cred.j.0", b"new", msg_id="m1")
        for leader in (False, True):
            stored = await bus.get("CTL", "aegis.cred.j.0", leader=leader)
            assert stored is not None
            assert (stored.subject, stored.seq, stored.data, stored.headers["Nats-Msg-Id"]) == ("aegis.cred.j.0", ack.seq, b"new", "m1")
            assert stored.time_ms > 1_700_000_000_000
        by_seq = await bus.get_seq("CTL", 1)
        assert by_seq is not None and by_seq.data == b"old"
        assert await bus.get_seq("CTL", 99) is None
        await road.restart()
        stored = await bus.get("CTL", "aegis.cred.j.0", timeout=20)
        assert stored is not None and stored.data == b"new"

    road.run(work)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_answer_of_several_that_is_lost_is_noticed(road: Road, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        await bus.batch([(f"aegis.job.j.pods.{k}", b"%d" % k, None) for k in range(3)])
        ask, asked = bus.call_many, 0

        async def loses_one(*args: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            replies = await ask(*args, **options)
            return [reply for k, reply in enumerate(replies) if k != lost or asked > 1]

        monkeypatch.setattr(bus, "call_many", loses_one)
        found = await bus.get_many("CTL", ["aegis.job.j.pods.*"])
        assert [item.data for item in found] == [b"0", b"1", b"2"]
        assert asked == 2

    road.run(work)


async def take(reader: OrderedReader, count: int) -> list[Stored | Gap]:
    async with asyncio.timeout(40):
        return [await anext(reader) for _ in range(count)]


def test_a_reader_gets_everything_once_and_in_order_over_restarts(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus, other = await shipped(make), await make()
        for n in range(1, 11):
            await bus.publish(f"aegis.job.{'x' if n % 2 else 'y'}.worker.w0.ack", b"%d" % n)
        async with OrderedReader(other, "REPORTS", ["aegis.job.x.worker.>"], start=4, batch=3, heartbeat=0.5) as reader:
            assert [item.data for item in await take(reader, 3) if isinstance(item, Stored)] == [b"5", b"7", b"9"]
            assert reader.pending == 0
            await road.restart()
            await bus.publish("aegis.job.x.worker.w0.ack", b"11", timeout=20, msg_id="auto")
            (item,) = await take(reader, 1)
            assert isinstance(item, Stored) and (item.seq, item.data) == (11, b"11")

    road.run(work)


def test_a_reader_is_told_what_the_stream_has_forgotten(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        for n in range(1, 11):
            await bus.publish("aegis.job.x.worker.w0.ack", b"%d" % n)
        await bus.js_api("STREAM.PURGE.REPORTS", {"seq": 7})
        async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], start=3) as reader:
            items = await take(reader, 5)
        assert items[0] == Gap(first_seq=7, wanted=3)
        assert [item.seq for item in items[1:] if isinstance(item, Stored)] == [7, 8, 9, 10]
        async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], start=500) as reader:
            gap, item = await take(reader, 2)
            assert gap == Gap(first_seq=7, wanted=500)
            assert isinstance(item, Stored) and (item.seq, item.data) == (7, b"7")
            assert reader.next_seq == 8

    road.run(work)


def test_a_consumer_that_vanishes_is_replaced(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], heartbeat=0.3) as reader:
            await bus.publish("aegis.job.x.fact.w0", b"1")
            await take(reader, 1)
            assert (await bus.js_api(f"CONSUMER.DELETE.REPORTS.{reader._consumer}"))["success"]
            await bus.publish("aegis.job.x.fact.w0", b"2")
            (item,) = await take(reader, 1)
        assert isinstance(item, Stored) and item.data == b"2"

    road.run(work)


# --- core messages -----------------------------------------------------------------------------------------------------------


def test_what_was_accepted_is_republished_in_order(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus, other = await shipped(make), await make()
        heard: list[tuple[str, bytes, str]] = []

        async def on(msg: Msg) -> None:
            heard.append((msg.subject, msg.data, msg.headers.get("Nats-Sequence", "")))

        await other.subscribe("aegis.view.>", on)
        await bus.batch([("aegis.job.j.state", b"h", 0), ("aegis.job.j.pods.0", b"p", None)])
        with pytest.raises(errors.WrongLastSequence):
            await bus.publish("aegis.job.j.state", b"no", expect=0)
        await bus.publish("aegis.node.n1.taint", b"t")
        await bus.publish("aegis.job.j.event", b"e")
        await until(lambda: len(heard) >= 3, timeout=10)
        assert heard == [("aegis.view.job.j.state", b"h", "1"), ("aegis.view.node.n1.taint", b"t", "1"), ("aegis.view.job.j.event", b"e", "1")]

    road.run(work)


def test_a_core_message_reaches_who_listens_now_also_after_a_restart(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus, other = await make(), await make()
        heard: list[bytes] = []

        async def on(msg: Msg) -> None:
            heard.append(msg.data)
            await msg.respond(b"to " + msg.data)

        await other.subscribe("aegis.rpc.master.query.*.default", on, queue="master")
        assert await bus.request("aegis.rpc.master.query.jobs.default", b"1") == b"to 1"
        with pytest.raises(errors.Unreachable):
            await bus.request("aegis.rpc.nobody.query.jobs.default", b"")
        await road.restart()

        async def answered() -> bool:
            try:
                return await bus.request("aegis.rpc.master.query.jobs.default", b"2") == b"to 2"
            except errors.BusError:
                return False

        await until(answered, timeout=20)
        assert heard[0] == b"1"

    road.run(work)


# --- job state ---------------------------------------------------------------------------------------------------------------


def test_a_stale_owner_cannot_commit(road: Road) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus, other = await shipped(make), await make()
        state = machine.create("j-000001", JobSpec("j", workers=300), "uid1", "era1", NOW)
        one, two = JobStore(bus), JobStore(other)
        mine = await one.take_over(await one.create(state), "m1")
        with pytest.raises(errors.WrongLastSequence):
            await one.create(state)
        mine = await one.commit(mine, mine.state.with_pod(299, mine.state.pod(299)))
        found = await two.load("j-000001")
        assert found is not None and found.state == mine.state and found.seq == mine.seq
        theirs = await two.take_over(found, "m2")
        with pytest.raises(errors.WrongLastSequence):
            await one.commit(mine, mine.state.with_head(cursor=7))
        assert (theirs.state.head.owner.replica, theirs.state.head.owner.term) == ("m2", 2)

    road.run(work)


def test_a_commit_whose_answer_was_lost_is_settled_by_reading(road: Road, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(road: Road, make: MakeBus) -> None:
        bus = await shipped(make)
        store = JobStore(bus)
        mine = await store.create(machine.create("j-000001", JobSpec("j", workers=3), "uid1", "era1", NOW))
        publish = bus.publish

        async def stored_but_not_told(*args: Any, **options: Any) -> Any:
            await publish(*args, **options)
            raise errors.UnknownResult("lost")

        async def lost(*args: Any, **options: Any) -> Any:
            raise errors.UnknownResult("lost")

        monkeypatch.setattr(bus, "publish", stored_but_not_told)
        after = await store.commit(mine, mine.state.with_head(cursor=1))
        assert after.seq > mine.seq
        monkeypatch.setattr(bus, "publish", lost)
        with pytest.raises(errors.Rejected, match="not stored"):
            await store.commit(after, after.state.with_head(cursor=2))

    road.run(work)
