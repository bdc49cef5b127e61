"""The ordered reader: everything once and in order, whatever dies; a gap where the stream has forgotten."""

from __future__ import annotations

import asyncio
import json

import pytest
from aegis_bus import ordered
from aegis_bus.connection import Bus, Stored
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer
from aegis_bus.ordered import Gap, OrderedReader
from aegis_proto import roles
from harness.bus import create_streams
from harness.waiting import until


async def report(bus: Bus, n: int, pod: str = "w0", job: str = "x") -> None:
    await bus.publish(f"aegis.job.{job}.worker.{pod}.ack", b"%d" % n, msg_id="auto", timeout=30)


async def take(reader: OrderedReader, count: int, timeout: float = 20) -> list[Stored | Gap]:
    async with asyncio.timeout(timeout):
        return [await anext(reader) for _ in range(count)]


async def test_it_starts_at_the_sequence_and_keeps_to_its_subjects(bus: Bus) -> None:
    for n in range(1, 11):
        await report(bus, n, pod=f"w{n % 2}", job="x" if n % 2 else "y")
    await bus.publish("aegis.job.x.fact.w0", b"fact")
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.worker.>", "aegis.job.x.fact.*"], start=4) as reader:
        items = await take(reader, 4)
        assert [item.data for item in items if isinstance(item, Stored)] == [b"5", b"7", b"9", b"fact"]
        assert [item.subject for item in items if isinstance(item, Stored)][-1] == "aegis.job.x.fact.w0"
        assert reader.next_seq == 12
        assert reader.pending == 0


async def test_more_than_one_request_holds(bus: Bus) -> None:
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], batch=7) as reader:
        for n in range(60):
            await report(bus, n)
        assert [item.data for item in await take(reader, 60) if isinstance(item, Stored)] == [b"%d" % n for n in range(60)]


async def test_read_takes_together_what_comes_together(bus: Bus) -> None:
    for n in range(5):
        await report(bus, n)
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"]) as reader:
        assert len(await reader.read(limit=3, wait=5.0)) == 3
        assert len(await reader.read(limit=100, wait=0.1)) == 2
        later = asyncio.create_task(reader.read(limit=1, wait=0))
        await report(bus, 9)
        items = await later
        assert isinstance(items[0], Stored) and items[0].data == b"9"


async def test_kill_9_of_the_server_while_reading_loses_and_repeats_nothing(nats_server: NatsServer, bus: Bus) -> None:
    """Subscriptions of nats-py to a stream stay silent after a restart of the server."""
    total = 300

    async def write() -> None:
        for n in range(total):
            await report(bus, n, pod=f"w{n % 10}")

    writer = asyncio.create_task(write())
    seen: list[int] = []
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], heartbeat=0.5) as reader:
        kills = [60, 150, 240]
        async with asyncio.timeout(60):
            while len(seen) < total:
                item = await anext(reader)
                assert isinstance(item, Stored), item
                seen.append(int(item.data))
                if kills and len(seen) >= kills[0]:
                    kills.pop(0)
                    nats_server.kill9()
                    await asyncio.to_thread(nats_server.start)
    await writer
    assert seen == list(range(total))


async def test_a_consumer_that_vanishes_is_replaced(bus: Bus) -> None:
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], heartbeat=0.3) as reader:
        await report(bus, 1)
        await take(reader, 1)
        assert (await bus.js_api(f"CONSUMER.DELETE.REPORTS.{reader._consumer}"))["success"]
        await report(bus, 2)
        (item,) = await take(reader, 1)
        assert isinstance(item, Stored) and item.data == b"2"


async def test_a_message_lost_on_the_way_is_fetched_again(bus: Bus) -> None:
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], heartbeat=0.3) as reader:
        await report(bus, 0)
        await take(reader, 1)
        for n in range(1, 6):
            await report(bus, n)
        await until(lambda: reader._queue.qsize() == 5)
        reader._queue.get_nowait()  # 1 is lost, as a full buffer would lose it
        assert [item.data for item in await take(reader, 5) if isinstance(item, Stored)] == [b"1", b"2", b"3", b"4", b"5"]
        await report(bus, 6)
        await until(lambda: reader._queue.qsize() == 1)
        reader._queue.get_nowait()  # the last one is lost: only the heartbeat knows
        assert [item.data for item in await take(reader, 1) if isinstance(item, Stored)] == [b"6"]


async def test_a_stream_that_has_forgotten_says_so_before_what_it_still_has(bus: Bus) -> None:
    for n in range(1, 11):
        await report(bus, n)
    await bus.js_api("STREAM.PURGE.REPORTS", {"seq": 7})
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], start=3) as reader:
        items = await take(reader, 5)
        assert items[0] == Gap(first_seq=7, wanted=3)
        assert [item.seq for item in items[1:] if isinstance(item, Stored)] == [7, 8, 9, 10]
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], start=7) as reader:
        assert isinstance((await take(reader, 1))[0], Stored)


async def test_an_empty_stream_and_a_caught_up_cursor_are_no_gap(bus: Bus) -> None:
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], start=1) as reader:
        waiting = asyncio.create_task(take(reader, 1))
        await until(lambda: reader._left > 0)
        await report(bus, 1)
        assert isinstance((await waiting)[0], Stored)
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], start=2) as reader:
        waiting = asyncio.create_task(take(reader, 1))
        await until(lambda: reader._left > 0)
        await report(bus, 2)
        assert isinstance((await waiting)[0], Stored)


async def test_a_stream_made_anew_is_a_gap_backwards(bus: Bus) -> None:
    """The store was lost: its sequences begin again, below the cursor."""
    await report(bus, 1)
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], start=500) as reader:
        items = await take(reader, 2)
        assert items[0] == Gap(first_seq=1, wanted=500)
        assert isinstance(items[1], Stored) and items[1].seq == 1


async def test_it_ends_with_its_block_and_leaves_no_consumer(bus: Bus) -> None:
    async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"]) as reader:
        await report(bus, 1)
        await take(reader, 1)

    async def consumers() -> int:
        return int((await bus.js_api("STREAM.INFO.REPORTS"))["state"]["consumer_count"])

    async def none() -> bool:
        return await consumers() == 0

    await until(none)


async def test_it_needs_exactly_the_rights_of_a_reader(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A server that knows one key with the rights of `roles._reads` and its inbox: the reader works, and another stream is refused."""
    admin, reader_id = Identity.new(), Identity.new()
    publish = ", ".join(json.dumps(subject) for subject in roles._reads("REPORTS"))
    rights = f'publish: {{ allow: [{publish}] }}, subscribe: {{ allow: ["_INBOX.{reader_id.public}.>"] }}'
    users = f"authorization {{ users: [ {{ nkey: {admin.public} }}, {{ nkey: {reader_id.public}, permissions: {{ {rights} }} }} ] }}"
    with NatsServer(tmp_path_factory.mktemp("nats"), extra=users) as server:
        async with await Bus.connect(admin, [server.url]) as boss, await Bus.connect(reader_id, [server.url]) as bus:
            await create_streams(boss, {"REPORTS", "CTL"})
            await report(boss, 1)
            async with OrderedReader(bus, "REPORTS", ["aegis.job.x.worker.>", "aegis.job.x.fact.>"]) as reader:
                assert isinstance((await take(reader, 1))[0], Stored)
            async with OrderedReader(bus, "CTL", ["aegis.>"]) as reader:
                with pytest.raises(ordered.errors.NotAllowed, match=r"^E103 .* may not publish to \$JS\.API\.CONSUMER\.CREATE\.CTL"):
                    await take(reader, 1)


async def test_a_reader_given_up_in_the_middle_of_a_step_still_tells_of_the_gap(bus: Bus) -> None:
    """A cancelled read (a deadline, a group commit) at any point loses nothing: neither a message nor the gap before it."""
    for n in range(1, 9):
        await report(bus, n)
    await bus.js_api("STREAM.PURGE.REPORTS", {"seq": 5})
    for given_up_after in range(1, 12):
        async with OrderedReader(bus, "REPORTS", ["aegis.job.x.>"], start=2) as reader:
            first = asyncio.ensure_future(anext(reader))
            for _ in range(given_up_after):
                await asyncio.sleep(0)
            first.cancel()
            done = await asyncio.gather(first, return_exceptions=True)
            got = [item for item in done if isinstance(item, Stored | Gap)]
            got += await take(reader, 5 - len(got))
            assert [item if isinstance(item, Gap) else item.seq for item in got] == [Gap(5, 2), 5, 6, 7, 8]
