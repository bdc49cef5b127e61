"""The way of the lines: in order, each once, bounded, never a brake, over any outage."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import msgspec
import pytest
from aegis_agent import logroad
from aegis_agent.handover import WorkerTask
from aegis_agent.logroad import LogRoad
from aegis_agent.spool import Piece, Spool
from aegis_bus.errors import Rejected, Unreachable
from aegis_proto.logs import MAX_BATCH, PART, LogBatch
from aegis_proto.messages import AegisLog, decode
from aegis_proto.state import JobSpec

TASK = WorkerTask(JobSpec("t"), job="train-abc123", uid="u1", pod="w1", attempt=2, node="n1")


class Store:
    """Takes batches while it is `up`."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.batches: list[LogBatch] = []
        self.ids: list[str] = []
        self.refuse = 0

    async def publish(self, subject: str, data: bytes, msg_id: str) -> None:
        assert subject == "aegis.job.train-abc123.log.w1" and len(data) <= MAX_BATCH
        if self.refuse:
            self.refuse -= 1
            raise Unreachable("E101 away")
        await self.up.wait()
        self.batches.append(decode(LogBatch, data))
        self.ids.append(msg_id)

    def texts(self, kind: str = "out") -> list[str]:
        """Lines, joined from their parts."""
        out: list[str] = []
        open_ = ""
        for batch in self.batches:
            for line in batch.lines:
                if line.kind == kind:
                    open_ += line.text
                    if not line.more:
                        out.append(open_)
                        open_ = ""
        return out


def numbered(batches: list[LogBatch]) -> bool:
    """Numbers rise without a hole; what was given up used none."""
    due = 1
    for batch in batches:
        if batch.first != due:
            return False
        due += len(batch.lines)
    return True


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logroad, "MEMORY", 100_000)
    monkeypatch.setattr(logroad, "MOST", 400_000)
    monkeypatch.setattr(logroad, "LINGER", 0.01)


async def test_lines_go_in_order_with_rank_and_incarnation_and_a_lost_answer_is_asked_for_with_the_same_id() -> None:
    store = Store()
    road = LogRoad(TASK, "b1", store.publish)
    pump = asyncio.create_task(road.pump())
    out, err = road.feed(3, 2, "out"), road.feed(3, 2, "err")
    store.up.set()
    store.refuse = 1
    out.take(b"step 1\nste")
    err.take(b"warn\xff\n")
    out.take("p 2 é\n".encode())
    road.say("w1 says so", "command")
    assert await road.flush(10)
    assert store.texts() == ["step 1", "step 2 é"] and store.texts("err") == ["warn\\xff"]
    assert decode(AegisLog, store.texts("aegis")[0].encode()).Message == "w1 says so"
    assert numbered(store.batches) and {(line.rank, line.incarnation) for batch in store.batches for line in batch.lines} == {(3, 2), (-1, -1)}
    assert {(batch.uid, batch.attempt, batch.boot, batch.node, batch.dropped) for batch in store.batches} == {("u1", 2, "b1", "n1", 0)}
    assert len(set(store.ids)) == len(store.ids)
    pump.cancel()


async def test_any_bytes_fit_and_long_lines_are_whole_again_when_their_parts_are_joined() -> None:
    store = Store()
    store.up.set()
    road = LogRoad(TASK, "b1", store.publish)
    pump = asyncio.create_task(road.pump())
    feed = road.feed(0, 0, "out")
    lines = [b"x" * 1_000_000, b"\x00" * 100_000, "é漢".encode() * 30_000, b"\xff\xfe" * 20_000, b'{"first":1,"lines":[]}', b"\x1b[31m", b""]
    data = b"\n".join(lines)
    for at in range(0, len(data), 65_536):
        feed.take(data[at : at + 65_536])
    feed.take(b"\nthe end without a newline")
    feed.end()
    assert await road.flush(20)
    wanted = [line.decode("utf-8", "backslashreplace") for line in lines]
    assert store.texts() == [*wanted, "the end without a newline"]
    assert all(len(line.text) <= PART for batch in store.batches for line in batch.lines)
    pump.cancel()


async def test_while_the_road_is_away_lines_lie_on_disk_and_all_come_in_order(tmp_path: Path, small: None) -> None:
    store = Store()
    spool = Spool(tmp_path / "spool")
    road = LogRoad(TASK, "b1", store.publish, spool)
    pump = asyncio.create_task(road.pump())
    feed = road.feed(0, 0, "out")
    wanted = [f"line {n} {'x' * 100}" for n in range(20_000)]
    for at in range(0, len(wanted), 500):
        feed.take("".join(f"{line}\n" for line in wanted[at : at + 500]).encode())
        await wait_for(lambda: road._spilling is None)  # a pipe is read as fast as the disk takes it
    await wait_for(lambda: spool.files)
    store.up.set()
    for n in range(100):
        feed.take(b"later %d\n" % n)
    assert await road.flush(20)
    assert store.texts() == [*wanted, *(f"later {n}" for n in range(100))]
    assert road.given_up == 0 and numbered(store.batches) and [path.name for path in (tmp_path / "spool").iterdir()] == ["owner"]
    pump.cancel()


async def test_beyond_the_spool_the_oldest_lines_go_and_the_next_batch_says_how_many(tmp_path: Path, small: None) -> None:
    store = Store()
    road = LogRoad(TASK, "b1", store.publish, Spool(tmp_path / "spool", limit=600_000))
    pump = asyncio.create_task(road.pump())
    feed = road.feed(0, 0, "out")
    begun = time.monotonic()
    for at in range(0, 40_000, 500):
        feed.take(b"".join(b"line %05d %b\n" % (n, b"x" * 100) for n in range(at, at + 500)))
        await asyncio.sleep(0.001)  # the spool's thread has its turn, as with a pipe that is read
    assert time.monotonic() - begun < 20.0  # nothing waited for the store, which is away
    store.up.set()
    assert await road.flush(20)
    got = [int(text.split()[1]) for text in store.texts()]
    assert got == sorted(set(got)) and got[-1] == 39_999
    assert road.given_up == 40_000 - len(got) > 0 and sum(batch.dropped for batch in store.batches) == road.given_up
    assert numbered(store.batches)
    pump.cancel()


async def test_a_disk_that_refuses_costs_lines_and_nothing_else(tmp_path: Path, small: None) -> None:
    (tmp_path / "file").write_text("no folder can be here")
    store = Store()
    road = LogRoad(TASK, "b1", store.publish, Spool(tmp_path / "file" / "spool"))
    pump = asyncio.create_task(road.pump())
    feed = road.feed(0, 0, "out")
    for n in range(5_000):
        feed.take(b"line %05d %b\n" % (n, b"x" * 100))
        if n % 500 == 0:
            await asyncio.sleep(0.001)
    store.up.set()
    assert await road.flush(10)
    assert len(store.texts()) + road.given_up == 5_000 and road.given_up == sum(batch.dropped for batch in store.batches) > 0
    assert store.texts()[-1].startswith("line 04999")
    pump.cancel()


async def test_what_is_refused_for_good_is_counted_and_the_rest_goes_on() -> None:
    sent: list[LogBatch] = []
    answers = [Rejected("no room", 10047), None]

    async def publish(subject: str, data: bytes, msg_id: str) -> None:
        if (error := answers.pop(0) if answers else None) is not None:
            raise error
        sent.append(decode(LogBatch, data))

    road = LogRoad(TASK, "b1", publish)
    pump = asyncio.create_task(road.pump())
    feed = road.feed(0, 0, "out")
    feed.take(b"a\nb\n")
    assert await road.flush(10)
    feed.take(b"c\n")
    assert await road.flush(10)
    assert [(batch.first, batch.dropped, [line.text for line in batch.lines]) for batch in sent] == [(1, 2, ["c"])]
    pump.cancel()


async def test_nobody_who_will_ever_read_keeps_nothing(tmp_path: Path, small: None) -> None:
    store = Store()
    road = LogRoad(TASK, "b1", store.publish, Spool(tmp_path / "spool"))
    feed = road.feed(0, 0, "out")
    road.close()
    for _ in range(5_000):
        feed.take(b"x" * 200 + b"\n")
    assert not (tmp_path / "spool").exists() and not road._ready and not road._open


def test_a_spool_that_is_cut_or_gone_says_how_many_lines_are_missing(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.put([Piece(2, b"[1],[2]"), Piece(3, b"[3],[4],[5]")])
    file = spool.files[0].path
    file.write_bytes(file.read_bytes()[:-1])
    assert spool.take() == ([Piece(2, b"[1],[2]")], 3)
    spool.put([Piece(7, b"x")])
    spool.files[0].path.unlink()
    assert spool.take() == ([], 7) and spool.take() == ([], 0)
    left = tmp_path / "s" / "00000009"
    left.write_bytes(b"of an earlier agent")
    Spool(tmp_path / "s", owner="u1.w1")
    assert not left.exists()


async def killed(folder: Path, stored: int, answered: int) -> tuple[list[LogBatch], int]:
    """An agent that was killed while it waited for the next answer: what of its batches is in the store, and how many lines it had spooled before."""
    store = Store()
    road = LogRoad(TASK, "b1", store.publish, Spool(folder, owner="u1.w1"))
    feed = road.feed(0, 0, "out")
    for k in range(3_000):
        feed.take(b"%06d" % k + b"x" * 200 + b"\n")
        await wait_for(lambda: road._spilling is None)  # a pipe is read as fast as the disk takes it
    await wait_for(lambda: road._spilling is None and road._spool is not None and road._spool.files)

    spooled = sum(file.lines for file in road._spool.files) if road._spool is not None else 0
    asked = 0

    async def publish(subject: str, data: bytes, msg_id: str) -> None:
        nonlocal asked
        asked += 1
        if asked <= stored:
            store.batches.append(decode(LogBatch, data))
        if asked > answered:
            await asyncio.Event().wait()

    road._publish = publish
    pump = asyncio.create_task(road.pump())
    await wait_for(lambda: asked == answered + 1)
    assert road._under_way is not None and road._under_way.at >= 0, "one from the disk is on its way"
    pump.cancel()
    await asyncio.gather(pump, return_exceptions=True)
    return store.batches, spooled


@pytest.mark.parametrize(("stored", "answered"), [(0, 0), (1, 0), (2, 1), (3, 2), (2, 2)])
async def test_what_a_killed_agent_left_on_disk_its_successor_sends_and_the_store_keeps_it_once(
    tmp_path: Path, small: None, stored: int, answered: int
) -> None:
    batches, lines = await killed(tmp_path / "spool", stored, answered)
    store = Store()
    store.up.set()
    road = LogRoad(TASK, "b2", store.publish, Spool(tmp_path / "spool", owner="u1.w1"))
    feed = road.feed(0, 1, "out")
    feed.take(b"of the successor\n")
    pump = asyncio.create_task(road.pump())
    assert await road.flush(20)
    pump.cancel()
    last: dict[str, int] = {}
    kept: list[str] = []
    for batch in (*batches, *store.batches):  # as the store keeps them: numbers of a boot only rise
        for n, line in enumerate(batch.lines, batch.first):
            if n > last.get(batch.boot, 0):
                last[batch.boot] = n
                kept.append(line.text[:6])
    spooled = [text for text in kept if text.isdecimal()]
    assert spooled == [f"{k:06d}" for k in range(lines)] and lines > 500, "what lay in memory is gone with it"
    assert kept[-1] == "of the" and not list((tmp_path / "spool").glob("0*"))
    assert numbered([batch for batch in store.batches if batch.boot == "b2"])


async def test_an_agent_that_leaves_while_the_road_is_away_leaves_everything_to_its_successor(tmp_path: Path, small: None) -> None:
    away, store = Store(), Store()
    store.up.set()
    road = LogRoad(TASK, "b1", away.publish, Spool(tmp_path / "spool", owner="u1.w1"))
    pump = asyncio.create_task(road.pump())
    road.feed(0, 0, "out").take(b"one\ntwo\n")
    await wait_for(lambda: road._under_way is not None)
    road.feed(0, 0, "err").take(b"three\n")
    pump.cancel()
    await road.leave()
    after = LogRoad(TASK, "b2", store.publish, Spool(tmp_path / "spool", owner="u1.w1"))
    pump = asyncio.create_task(after.pump())
    assert await after.flush(10)
    pump.cancel()
    assert [(batch.boot, batch.first, [line.text for line in batch.lines]) for batch in store.batches] == [
        ("b1", 1, ["one", "two"]),
        ("b2", 1, ["three"]),
    ]


def test_of_what_a_killed_agent_left_one_file_that_cannot_be_read_is_counted_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "s", owner="u1.w1")
    for n in range(3):
        spool.put([Piece(n + 1, b"x" * (n + 1))])
    broken, torn = (file.path for file in list(spool.files)[1:])
    torn.write_bytes(b"")
    stat, unlink = Path.stat, Path.unlink

    def broken_stat(path: Path, **options: bool) -> object:
        if path == broken:
            raise OSError(5, "Input/output error")
        return stat(path, **options)

    def stays(path: Path, missing_ok: bool = False) -> None:
        if path == broken:
            raise OSError(30, "Read-only file system")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "stat", broken_stat)
    monkeypatch.setattr(Path, "unlink", stays)
    after = Spool(tmp_path / "s", owner="u1.w1")
    assert (after.take(), after.take(), after.take()) == (([Piece(1, b"x")], 0), ([], 3), ([], 0)) and after.lost == 2
    assert LogRoad(TASK, "b2", Store().publish, after).given_up == 2
    assert after.put([Piece(1, b"y")]) == 0 and after.files[0].path.name == "00000004.1"


async def test_a_disk_that_does_not_answer_holds_no_agent_that_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logroad, "LEAVE", 0.05)
    answers = threading.Event()
    spool = Spool(tmp_path / "s", owner="u1.w1")
    monkeypatch.setattr(spool, "put", lambda pieces: answers.wait(60))
    road = LogRoad(TASK, "b1", Store().publish, spool)
    road.feed(0, 0, "out").take(b"one\n")
    try:
        async with asyncio.timeout(30):
            await road.leave()
        assert not answers.is_set()
    finally:
        answers.set()


async def test_what_is_stored_is_removed_beside_the_loop(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "s", owner="u1.w1")
    spool.put([Piece(1, b'[1,0,0,"out","x",0,false]')])
    store = Store()
    store.up.set()
    where: list[bool] = []
    done = spool.done

    def noted() -> None:
        where.append(threading.current_thread() is threading.main_thread())
        done()

    monkeypatch.setattr(spool, "done", noted)
    road = LogRoad(TASK, "b1", store.publish, spool)
    pump = asyncio.create_task(road.pump())
    assert await road.flush(20)
    pump.cancel()
    assert where and not any(where) and not list((tmp_path / "s").glob("0*"))


async def wait_for(what: object) -> None:
    assert callable(what)
    async with asyncio.timeout(10):
        while not what():
            await asyncio.sleep(0.005)


def test_the_envelope_written_by_hand_is_a_batch() -> None:
    head = msgspec.json.encode(LogBatch("u", 1, "b", 5, (), "n", 3))
    assert decode(LogBatch, head[:-1] + b',"lines":[[1,0,0,"out","x",0,false]]}').lines[0].text == "x"
