"""Head and shards: the head is the fence. Whatever two masters do, a report is applied once and a stale one writes nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from aegis_bus import errors
from aegis_bus.connection import Bus, PubAck, Stored
from aegis_bus.jobstore import JobStore, Loaded
from aegis_bus.natsserver import NatsServer
from aegis_bus.ordered import OrderedReader
from aegis_proto import messages
from aegis_proto.phases import Phase
from aegis_proto.state import Deadline, Head, JobSpec, JobState, Owner, Pod, empty_shards
from harness.bus import MakeBus, create_streams
from harness.waiting import until


def new_job(workers: int = 3, job: str = "j") -> JobState:
    head = Head(job, job, "default", f"uid-{job}", workers, 3, owner=Owner("m1", 1))
    return JobState(head, empty_shards(workers), JobSpec(job, workers=workers, command=("sh", "-c", "x"), env={"K": "v"}))


@pytest.fixture
def store(bus: Bus) -> JobStore:
    return JobStore(bus)


async def messages_in(bus: Bus, stream: str = "CTL") -> int:
    return int((await bus.js_api(f"STREAM.INFO.{stream}"))["state"]["last_seq"])


# --- what is stored ----------------------------------------------------------------------------------------------------------


async def test_what_was_created_is_loaded(store: JobStore) -> None:
    state = new_job(600)
    created = await store.create(state)
    loaded = await store.load("j")
    assert loaded is not None
    assert (loaded.state, loaded.seq) == (state, created.seq)
    assert loaded.time_ms > 0
    assert [len(shard) for shard in loaded.state.shards] == [256, 256, 88]
    assert await store.load("k") is None
    assert [head.job for head in await store.list_jobs()] == ["j"]


async def test_a_job_is_created_once(store: JobStore) -> None:
    await store.create(new_job())
    other = new_job()
    other = JobState(msgspec.structs.replace(other.head, uid="another"), other.shards, other.spec)
    with pytest.raises(errors.WrongLastSequence):
        await store.create(other)
    loaded = await store.load("j")
    assert loaded is not None and loaded.state.head.uid == "uid-j"


async def test_a_clean_commit_is_one_message_and_a_dirty_one_carries_only_its_shards(bus: Bus, store: JobStore) -> None:
    loaded = await store.create(new_job(1000))
    before = await messages_in(bus)
    loaded = await store.commit(loaded, loaded.state.with_head(cursor=7))
    assert await messages_in(bus) == before + 1
    changed = loaded.state.with_pod(300, Pod(ip="10.0.0.1", reason="killed")).with_pod(999, Pod(node="n9"))
    committed = await store.commit(loaded, changed)
    assert await messages_in(bus) == before + 4
    assert committed.seq == before + 2  # the head comes first
    again = await store.load("j")
    assert again is not None and again.state == changed and again.seq == committed.seq


async def test_the_time_is_the_servers_and_fills_the_deadline_of_the_commit_that_set_it(bus: Bus, store: JobStore) -> None:
    loaded = await store.create(new_job())
    loaded = await store.commit(loaded, loaded.state.with_head(deadline=Deadline("round", 60.0, 1, 0, 0)))
    stored = await bus.get("CTL", "aegis.job.j.state")
    assert stored is not None and stored.time_ms == loaded.time_ms
    assert messages.decode(Head, stored.data).deadline == Deadline("round", 60.0, 1, 0, 0)
    set_at = loaded.time_ms
    assert loaded.state.head.deadline == Deadline("round", 60.0, 1, 0, set_at)
    reread = await store.load("j")
    assert reread is not None and reread.state.head.deadline == loaded.state.head.deadline
    later = await store.commit(loaded, loaded.state.with_head(cursor=1))
    assert later.time_ms == 0, "nothing needs the time of this commit"
    assert later.state.head.deadline == Deadline("round", 60.0, 1, 0, set_at)
    reread = await store.load("j")
    assert reread is not None and reread.state.head.deadline == Deadline("round", 60.0, 1, 0, set_at)


async def test_a_state_of_a_newer_version_is_left_alone_with_a_clear_word(bus: Bus, store: JobStore) -> None:
    state = new_job()
    head = msgspec.structs.replace(state.head, v=messages.WIRE_VERSION + 1)
    await bus.publish("aegis.job.j.state", messages.encode(head))
    await store.create(new_job(job="ok"))
    with pytest.raises(errors.Unreadable, match=r"job j: its state has version 2, this process reads up to 1: a newer Aegis wrote it"):
        await store.load("j")
    assert [head.job for head in await store.list_jobs()] == ["ok"]


@pytest.mark.parametrize("rubbish", [b"", b"[]", b"{", b'{"v":"x"}', b"\xff", b'{"job":"j"}', b'{"v":1,"job":7}'])
async def test_rubbish_in_place_of_a_state_is_named_not_crashed_on(bus: Bus, store: JobStore, rubbish: bytes) -> None:
    await bus.publish("aegis.job.j.state", rubbish)
    with pytest.raises(errors.Unreadable, match=r"^job j: "):
        await store.load("j")
    assert await store.list_jobs() == []


async def test_a_missing_shard_is_named(bus: Bus, store: JobStore) -> None:
    state = new_job(600)
    await bus.batch([("aegis.job.j.state", messages.encode(state.head), 0), ("aegis.job.j.spec", messages.encode(state.spec), None)])
    with pytest.raises(errors.Unreadable, match=r"job j: shard 0 \(aegis\.job\.j\.pods\.0\) is missing"):
        await store.load("j")


# --- the fence ---------------------------------------------------------------------------------------------------------------


async def test_after_a_takeover_the_old_owner_writes_nothing_not_even_the_head_alone(bus: Bus, store: JobStore, make_bus: MakeBus) -> None:
    old = await store.create(new_job())
    other = JobStore(await make_bus())
    seen = await other.load("j")
    assert seen is not None
    taken = await other.take_over(seen, "m2")
    assert taken.state.head.owner == Owner("m2", 2)
    before = await messages_in(bus)
    for stale in (old.state.with_head(cursor=9), old.state.with_pod(0, Pod(ip="evil"))):
        with pytest.raises(errors.WrongLastSequence, match="another replica owns it now"):
            await store.commit(old, stale)
    assert await messages_in(bus) == before
    await other.commit(taken, taken.state.with_head(cursor=1))


async def test_of_two_takeovers_one_wins(store: JobStore, make_bus: MakeBus) -> None:
    loaded = await store.create(new_job())
    other = JobStore(await make_bus())
    results = await asyncio.gather(store.take_over(loaded, "m2"), other.take_over(loaded, "m3"), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Loaded", "WrongLastSequence"]


async def test_a_commit_may_not_change_owner_or_job(store: JobStore) -> None:
    loaded = await store.create(new_job())
    with pytest.raises(ValueError, match="take_over"):
        await store.commit(loaded, loaded.state.with_head(owner=Owner("m9", 9)))
    with pytest.raises(ValueError, match="another job"):
        await store.commit(loaded, new_job(job="k"))


async def test_commits_of_one_process_go_one_after_another(store: JobStore) -> None:
    loaded = await store.create(new_job())
    both = await asyncio.gather(*(store.commit(loaded, loaded.state.with_head(cursor=n)) for n in (1, 2)), return_exceptions=True)
    assert sorted(type(result).__name__ for result in both) == ["Loaded", "WrongLastSequence"]


# --- an unknown result -------------------------------------------------------------------------------------------------------


class Lossy:
    """The real bus, but the answers of the next writes are lost: before they are sent, or after they are stored."""

    def __init__(self, bus: Bus, stored: bool) -> None:
        self._bus, self._stored = bus, stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish(self, *args: Any, **options: Any) -> PubAck:
        if self._stored:
            await self._bus.publish(*args, **options)
        raise errors.UnknownResult("the answer was lost")

    async def batch(self, *args: Any, **options: Any) -> PubAck:
        if self._stored:
            await self._bus.batch(*args, **options)
        raise errors.UnknownResult("the answer was lost")


@pytest.mark.parametrize("dirty", [False, True])
async def test_an_unknown_commit_that_was_stored_is_found_by_reading(bus: Bus, store: JobStore, dirty: bool) -> None:
    loaded = await store.create(new_job())
    lossy = JobStore(Lossy(bus, stored=True))  # type: ignore[arg-type]
    new = loaded.state.with_head(cursor=5)
    new = new.with_pod(1, Pod(ip="x")) if dirty else new
    committed = await lossy.commit(loaded, new)
    reread = await store.load("j")
    assert reread is not None and (reread.state, reread.seq) == (new, committed.seq)
    await store.commit(committed, committed.state.with_head(cursor=6))


@pytest.mark.parametrize("dirty", [False, True])
async def test_an_unknown_commit_that_was_not_stored_is_told_as_such(bus: Bus, store: JobStore, dirty: bool) -> None:
    loaded = await store.create(new_job())
    lossy = JobStore(Lossy(bus, stored=False))  # type: ignore[arg-type]
    new = loaded.state.with_head(cursor=5)
    new = new.with_pod(1, Pod(ip="x")) if dirty else new
    with pytest.raises(errors.Rejected, match="commit not stored") as caught:
        await lossy.commit(loaded, new)
    assert caught.value.retryable and not isinstance(caught.value, errors.WrongLastSequence)
    await store.commit(loaded, new)


async def test_an_unknown_commit_overtaken_by_another_owner_is_a_lost_fence(bus: Bus, store: JobStore, make_bus: MakeBus) -> None:
    loaded = await store.create(new_job())
    await JobStore(await make_bus()).take_over(loaded, "m2")
    with pytest.raises(errors.WrongLastSequence):
        await JobStore(Lossy(bus, stored=False)).commit(loaded, loaded.state.with_head(cursor=5))  # type: ignore[arg-type]


async def test_commits_go_on_over_kill_9_of_the_server(nats_server: NatsServer, store: JobStore) -> None:
    loaded = await store.create(new_job(600))
    for n in range(1, 61):
        if n in (20, 40):
            nats_server.kill9()
            starting = asyncio.create_task(asyncio.to_thread(nats_server.start))
        new = loaded.state.with_head(cursor=n).with_pod(n, Pod(ts=n))
        while True:
            try:
                loaded = await store.commit(loaded, new)
                break
            except errors.WrongLastSequence:
                raise
            except errors.BusError:
                reread = await store.load("j")
                assert reread is not None and reread.seq == loaded.seq
    await starting
    final = await store.load("j")
    assert final is not None and final.state == loaded.state
    assert [pod.ts for pod in final.state.pods()[1:61]] == list(range(1, 61))


# --- the life of a state -----------------------------------------------------------------------------------------------------


async def test_an_idle_job_outlives_any_age_with_ctl_as_shipped(make_bus: MakeBus) -> None:
    """REPORTS shrunk to an age of one second forgets; CTL as shipped does not, and the owner goes on."""
    bus = await make_bus()
    await create_streams(bus, {"CTL", "REPORTS"}, REPORTS={"max_age": 1_000_000_000, "duplicate_window": 500_000_000})
    info = await bus.js_api("STREAM.INFO.CTL")
    assert info["config"]["max_age"] == 0 and info["config"]["discard"] == "new"
    store = JobStore(bus)
    loaded = await store.create(new_job())
    await bus.publish("aegis.job.j.worker.w0.ack", b"{}")

    async def forgotten() -> bool:
        return int((await bus.js_api("STREAM.INFO.REPORTS"))["state"]["messages"]) == 0

    await until(forgotten)
    assert (await store.load("j")) == loaded
    await store.commit(loaded, loaded.state.with_head(cursor=1))


async def test_a_full_ctl_refuses_new_jobs_and_evicts_nobody(make_bus: MakeBus) -> None:
    bus = await make_bus()
    await create_streams(bus, {"CTL"})
    store = JobStore(bus)
    quiet = await store.create(new_job(job="quiet"))
    info = [await bus.js_api("STREAM.INFO.CTL")]
    await store.create(new_job(5000, job="loud0"))
    info.append(await bus.js_api("STREAM.INFO.CTL"))
    before, full = (int(found["state"]["bytes"]) for found in info)
    await bus.js_api("STREAM.UPDATE.CTL", {**info[0]["config"], "max_bytes": full + (full - before) // 2})  # room for heads, not for such a job
    with pytest.raises(errors.Rejected, match="maximum bytes exceeded") as caught:
        await store.create(new_job(5000, job="loud1"))
    assert caught.value.err_code == 10077
    assert (await store.load("quiet")) == quiet
    await store.commit(quiet, quiet.state.with_head(cursor=1))  # a head alone still passes


async def test_the_last_commit_carries_an_end_on_every_subject_and_keeps_no_history(bus: Bus, store: JobStore) -> None:
    loaded = await store.create(new_job(600))
    for n in range(3):
        loaded = await store.commit(loaded, loaded.state.with_head(cursor=n).with_pod(0, Pod(ts=n)))
    done = await store.commit(loaded, loaded.state.with_head(phase=Phase.SUCCEED))
    subjects = (await bus.js_api("STREAM.INFO.CTL", {"subjects_filter": "aegis.job.j.>"}))["state"]["subjects"]
    assert subjects == {f"aegis.job.j.{tail}": 1 for tail in ("state", "spec", "pods.0", "pods.1", "pods.2")}
    for subject in subjects:
        item = await bus.get("CTL", subject)
        assert item is not None and item.headers["Nats-TTL"] == "604800s"
    assert (await store.load("j")) == done
    taken = await store.take_over(done, "m2")  # an ended job may change hands, and ends all the same
    assert (await bus.js_api("STREAM.INFO.CTL", {"subjects_filter": "aegis.job.j.>"}))["state"]["subjects"] == subjects
    item = await bus.get("CTL", "aegis.job.j.state")
    assert item is not None and item.headers["Nats-TTL"] == "604800s" and item.seq == taken.seq


# --- three masters, no lease at all ------------------------------------------------------------------------------------------


class Master:
    """A master that takes over at random, stalls between reading and committing, and applies reports in stream order. No lease, no clock."""

    def __init__(self, bus: Bus, name: str, seed: int, total: int, stats: dict[str, int]) -> None:
        self.store, self.bus, self.name, self.total, self.stats = JobStore(bus), bus, name, total, stats
        self.random = random.Random(seed)

    async def run(self) -> None:
        while True:
            loaded = await self.store.load("j")
            assert loaded is not None
            if loaded.state.head.step >= self.total:
                return
            try:
                owned = await self.store.take_over(loaded, self.name)
                self.stats["takeovers"] += 1
                await self.own(owned)
                return
            except errors.WrongLastSequence:
                self.stats["refused"] += 1
                await asyncio.sleep(self.random.uniform(0, 0.15))

    async def own(self, loaded: Loaded) -> None:
        async with OrderedReader(self.bus, "REPORTS", ["aegis.job.j.worker.>"], start=loaded.state.head.cursor + 1) as reader:
            while loaded.state.head.step < self.total:
                items = await reader.read(limit=40, wait=0.005)
                state = loaded.state
                for item in items:
                    assert isinstance(item, Stored), item
                    number, head = int(item.data), state.head
                    # exactly once and in order: the n-th report finds n applied before it
                    assert number == head.step, f"{self.name}: report {number} after {head.step} were applied"
                    state = state.with_head(step=head.step + 1, cursor=item.seq).with_pod(number % 3, Pod(ts=number))
                if self.random.random() < 0.15:
                    await asyncio.sleep(self.random.uniform(0.05, 0.3))  # a stall between decide and commit
                loaded = await self.store.commit(loaded, state)


@pytest.mark.parametrize("seed", [1, 2])
async def test_three_masters_that_take_over_at_random_apply_every_report_once_and_in_order(bus: Bus, make_bus: MakeBus, seed: int) -> None:
    total = 1000
    await JobStore(bus).create(JobState(msgspec.structs.replace(new_job().head, step=0), new_job().shards, new_job().spec))
    stats = {"takeovers": 0, "refused": 0}
    masters = [Master(await make_bus(), f"m{n}", seed * 10 + n, total, stats) for n in range(3)]

    async def write() -> None:
        for n in range(total):
            await bus.publish(f"aegis.job.j.worker.w{n % 40}.ack", b"%d" % n, msg_id="auto")
            if n % 50 == 0:
                await asyncio.sleep(0.01)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(write())
        for master in masters:
            group.create_task(master.run())
    final = await JobStore(bus).load("j")
    assert final is not None and final.state.head.step == total
    assert max(pod.ts for pod in final.state.pods()) == total - 1
    assert stats["takeovers"] >= 5 and stats["refused"] >= 5, stats  # the fight did take place


async def test_the_fullest_shard_still_fits_a_message(store: JobStore) -> None:
    """256 pods with the longest ids, addresses and reasons that are allowed."""
    loaded = await store.create(new_job(256))
    longest = Pod(
        ip="fd00:1234:5678:9abc:def0:1234:5678:9abc",
        node="n" * 40,
        innerPhase=Phase.TROUBLESHOOTING,
        finished=True,
        retries=10_000,
        reason="e" * 64,
        ts=10**13,
        attempt=10_000,
        boot="b" * 32,
        uid="u" * 36,
        stopped=10_000,
        acked=10**6,
        suspect=True,
        toQuit=True,
        mark="hang",
        uncounted=3,
        exitCode=255,
        gone=True,
        errored=True,
    )
    state = JobState(loaded.state.head, ((longest,) * 256,), loaded.state.spec)
    loaded = await store.commit(loaded, state)
    assert (await store.load("j")) == loaded


async def test_an_unknown_commit_that_cannot_be_asked_about_stays_unknown(bus: Bus, store: JobStore) -> None:
    """Never "nothing was sent" for something that may have been stored."""
    loaded = await store.create(new_job())

    class Deaf(Lossy):
        async def get(self, *args: Any, **options: Any) -> Stored | None:
            raise errors.Unreachable("E101 away")

    with pytest.raises(errors.UnknownResult, match="the leader could not be asked: E101 away"):
        await JobStore(Deaf(bus, stored=True)).commit(loaded, loaded.state.with_head(cursor=1))  # type: ignore[arg-type]
