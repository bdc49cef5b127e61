"""Shards on the wire: what is written is read, short ones stay JSON, and nothing hostile unpacks."""

from __future__ import annotations

import msgspec
import pytest
import zstandard
from aegis_bus import errors
from aegis_bus.connection import Bus
from aegis_bus.jobstore import JobStore
from aegis_proto import messages, shards, subjects
from aegis_proto.state import Head, JobSpec, JobState, Pod, empty_shards
from hypothesis import given
from hypothesis import strategies as st

PODS = st.builds(
    Pod, ip=st.text(max_size=20), node=st.text(max_size=20), retries=st.integers(0, 1 << 40), boot=st.text(max_size=20), suspect=st.booleans()
)


def full(count: int) -> tuple[Pod, ...]:
    return tuple(Pod(f"10.0.0.{k % 256}", f"node-{k}", boot=f"{k * 7919:016x}", uid=f"uid-{k}") for k in range(count))


@given(st.lists(PODS, max_size=80))
def test_what_is_written_is_read(pods: list[Pod]) -> None:
    assert shards.decode(shards.encode(tuple(pods)), len(pods)) == tuple(pods)


def test_a_short_shard_is_json_and_a_long_one_is_packed() -> None:
    short, long = full(3), full(256)
    assert msgspec.json.decode(shards.encode(short), type=tuple[Pod, ...]) == short
    packed = shards.encode(long)
    assert packed.startswith(shards.MAGIC) and len(packed) < len(messages.encode(long)) / 3
    assert shards.decode(packed, 256) == long


def test_a_long_shard_written_as_json_is_read_too() -> None:
    assert shards.decode(messages.encode(full(256)), 256) == full(256)


def test_what_is_no_shard_is_refused() -> None:
    packed = shards.encode(full(256))
    huge = zstandard.ZstdCompressor(level=19).compress(b" " * (shards.MAX_SHARD + 1))
    without_size = zstandard.ZstdCompressor(write_content_size=False).compress(messages.encode(full(256)))
    torn = (packed[:-1], packed[: len(packed) // 2], packed + b"x", packed + packed)
    other = (messages.encode(full(255)), messages.encode(full(257)), shards.encode(full(255)), b"[]")
    for bad in (b"", b"[", b"{}", b"\xff\xfe", shards.MAGIC, shards.MAGIC + b"x" * 40, huge, without_size, *torn, *other):
        with pytest.raises(messages.BadMessage):
            shards.decode(bad, 256)
    for k in range(len(packed)):  # no flipped byte escapes as another kind of error
        try:
            shards.decode(packed[:k] + bytes([packed[k] ^ 0x41]) + packed[k + 1 :], 256)
        except messages.BadMessage:
            pass


async def test_a_job_whose_shard_is_broken_is_unreadable_and_named(bus: Bus) -> None:
    store = JobStore(bus)
    await store.create(JobState(Head("j", "j", "default", "uid-j", 600, 3), empty_shards(600), JobSpec("j", workers=600, command=("x",))))
    await bus.publish(subjects.job_pods("j", 1), shards.MAGIC + b"broken")
    with pytest.raises(errors.Unreadable, match="job j: shard 1"):
        await store.load("j")


async def test_a_shard_with_too_few_pods_is_not_this_job(bus: Bus) -> None:
    store = JobStore(bus)
    await store.create(JobState(Head("j", "j", "default", "uid-j", 600, 3), empty_shards(600), JobSpec("j", workers=600, command=("x",))))
    await bus.publish(subjects.job_pods("j", 2), shards.encode(full(87)))
    with pytest.raises(errors.Unreadable, match="job j: shard 2 is not readable: 87 pods in a shard of 88"):
        await store.load("j")
