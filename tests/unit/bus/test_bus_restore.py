"""The store is replaced by a copy of itself, on a real server: a copy gives its numbers out again, and the fence of a commit is a number."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aegis_bus import errors
from aegis_bus.connection import Bus, PubAck
from aegis_bus.jobstore import JobStore
from aegis_bus.natsserver import NatsServer
from aegis_proto import messages, subjects
from aegis_proto.messages import Era
from aegis_proto.state import Head, JobSpec, JobState, Owner, Pod, empty_shards
from harness.bus import MakeBus, replaced_by
from harness.waiting import until


@pytest.fixture
def store(bus: Bus) -> JobStore:
    return JobStore(bus)


def new_job() -> JobState:
    head = Head("j", "j", "default", "uid-j", 3, 3, owner=Owner("m1", 1))
    return JobState(head, empty_shards(3), JobSpec("j", workers=3, command=("sh", "-c", "x")))


async def test_a_commit_for_the_store_before_is_refused_though_a_copy_gave_its_number_out_again(
    nats_server: NatsServer, bus: Bus, store: JobStore, make_bus: MakeBus
) -> None:
    await store.create(new_job())
    copy = await replaced_by(nats_server, bus, None)
    loaded = await store.load("j")
    assert loaded is not None
    stale = await store.commit(loaded, loaded.state.with_head(cursor=5))
    await replaced_by(nats_server, bus, copy)
    theirs = JobStore(await make_bus())
    restored = await theirs.load("j")
    assert restored is not None
    owned = await theirs.take_over(restored, "m2")
    assert owned.seq == stale.seq, "else this test shows nothing"
    for new in (stale.state.with_head(cursor=6), stale.state.with_head(cursor=6).with_pod(1, Pod(ip="x"))):
        with pytest.raises(errors.WrongLastSequence, match="the head is not the one"):
            await store.commit(stale, new)
    assert await store.load("j") == owned


async def test_what_was_read_of_the_store_before_is_not_committed_to_one_of_another_era(nats_server: NatsServer, bus: Bus, store: JobStore) -> None:
    await bus.publish(subjects.ERA, messages.encode(Era("e1")))
    created = await store.create(new_job().with_head(era="e1"))
    copy = await replaced_by(nats_server, bus, None)
    again = await store.commit(created, created.state)
    assert again.state == created.state, "the same store over a new connection"
    await replaced_by(nats_server, bus, copy)
    await bus.publish(subjects.ERA, messages.encode(Era("e2", reason="restored")))
    with pytest.raises(errors.WrongLastSequence, match="of another era than e1"):
        await store.commit(created, created.state.with_head(cursor=7))
    loaded = await store.load("j")
    assert loaded is not None
    await store.commit(loaded, loaded.state.with_head(era="e2"))


async def test_a_commit_that_was_found_in_the_copy_says_nothing_of_its_era(
    nats_server: NatsServer, bus: Bus, store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bus.publish(subjects.ERA, messages.encode(Era("e1")))
    created = await store.create(new_job().with_head(era="e1"))
    publish = bus.publish

    async def answer_lost(*args: Any, **kwargs: Any) -> PubAck:
        await publish(*args, **kwargs)
        await replaced_by(nats_server, bus, await replaced_by(nats_server, bus, None))
        await publish(subjects.ERA, messages.encode(Era("e2", reason="restored")))
        raise errors.UnknownResult("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(bus, "publish", answer_lost)
        stored = await store.commit(created, created.state.with_head(cursor=5))
    with pytest.raises(errors.WrongLastSequence, match="of another era than e1"):
        await store.commit(stored, stored.state.with_head(cursor=6))


@pytest.mark.parametrize("written", [b'{"v":99,"era":"e2"}', b"rubbish"])
async def test_an_era_that_cannot_be_read_is_another_one(nats_server: NatsServer, bus: Bus, store: JobStore, written: bytes) -> None:
    created = await store.create(new_job().with_head(era="e1"))
    await bus.publish(subjects.ERA, written)
    await replaced_by(nats_server, bus, None)
    with pytest.raises(errors.WrongLastSequence, match="of another era than e1"):
        await store.commit(created, created.state.with_head(cursor=7))
    loaded = await store.load("j")
    assert loaded is not None
    await store.commit(loaded, loaded.state.with_head(cursor=7))


async def test_a_write_for_one_connection_is_not_sent_over_the_next(nats_server: NatsServer, bus: Bus) -> None:
    before = bus.generation
    nats_server.kill9()
    await asyncio.to_thread(nats_server.start)
    await until(lambda: bus.generation > before and bus.connected)
    for write in (bus.publish("aegis.job.j.state", b"{}", over=before), bus.batch([("aegis.job.j.state", b"{}", None)], over=before)):
        with pytest.raises(errors.Unreachable, match="not sent"):
            await write
    assert await bus.get("CTL", "aegis.job.j.state") is None
