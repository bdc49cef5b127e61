"""The state of jobs in stream CTL: a head and shards (`aegis_proto.state`). Reads and writes `aegis.job.<j>.{state,spec,pods.<k>}`.

The fence is the head: every commit expects the head sequence that this process last read or wrote, state-only commits too. No shard dirty: one
CAS publish; else one atomic batch, head first. An unknown result is settled by reading the head through the stream's leader, never by repeating.

A sequence says which head only within one store: a store restored from a copy gives its numbers out again, and a commit from before could meet the
number that it expects by chance. A store is replaced only while its servers are down, so no connection lives through it: a commit goes only over the
connection over which its head was read or written, and on a new one the head is first compared, byte for byte.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from aegis_proto import WIRE_VERSION, messages, shards, subjects
from aegis_proto.state import Head, JobSpec, JobState, Owner, Pod

from aegis_bus import errors, metrics
from aegis_bus.connection import Bus, Stored
from aegis_bus.crashpoint import crashpoint
from aegis_bus.jetstream import Part

log = logging.getLogger(__name__)

Extra = tuple[str, Callable[[], bytes]]
"""Subject and what makes the body: shards are packed while the server opens the batch."""
S = TypeVar("S", bound=msgspec.Struct)

STREAM = "CTL"
KEEP_ENDED = 7 * 86400.0
"""Seconds that an ended job stays readable."""

_version_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Loaded:
    """A state as stored: `seq` is the sequence of its head (what the next commit expects), `time_ms` the server's time of that head.

    After a write that set no deadline `time_ms` is 0: nothing needs it, so it is not asked for. `data`: the head as it is stored; `over`: the
    connection (`Bus.generation`) over which that is known.
    """

    state: JobState
    seq: int
    time_ms: int = field(compare=False)
    data: bytes = field(default=b"", compare=False, repr=False)
    over: int = field(default=-1, compare=False)


class JobStore:
    """Commits of one process. At most one in flight per job."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._locks: dict[str, asyncio.Lock] = {}
        self._clock_offset = 0  # server's clock - ours, ms

    # --- reading -------------------------------------------------------------------------------------------------------------

    async def load(self, job: str) -> Loaded | None:
        """State of a job as of one moment; None when there is no such job. `Unreadable` when a newer version wrote it."""
        over = self._bus.generation
        stored = await self._bus.get_many(STREAM, [subjects.job_state(job), subjects.job_spec(job), subjects.job_pods(job, 0)[:-1] + "*"])
        by_subject = {item.subject: item for item in stored if not item.marker}
        head_item = by_subject.get(subjects.job_state(job))
        if head_item is None:
            return None
        head = decode_head(job, head_item.data)
        spec_item = by_subject.get(subjects.job_spec(job))
        if spec_item is None:
            raise errors.Unreadable(f"job {job}: the head is there, the specification ({subjects.job_spec(job)}) is not")
        spec = _decode(job, JobSpec, spec_item.data)
        pods = tuple(decode_shard(head, k, by_subject.get(subjects.job_pods(job, k))) for k in range(shards.count(head.workerNum)))
        return self._loaded(JobState(head, pods, spec), head_item.seq, head_item.time_ms, head_item.data, over)

    async def head(self, job: str) -> tuple[Head, int, int] | None:
        """(head, sequence, server time in ms) alone."""
        item = await self._bus.get(STREAM, subjects.job_state(job))
        return None if item is None or item.marker else (decode_head(job, item.data), item.seq, item.time_ms)

    async def list_jobs(self) -> list[Head]:
        """Heads of all jobs, oldest commit first. One that cannot be read is logged and left out."""
        heads: list[Head] = []
        for item in await self._bus.get_many(STREAM, ["aegis.job.*.state"], timeout=15.0):
            if item.marker:
                continue
            try:
                heads.append(decode_head(subjects.token(item.subject, 2), item.data))
            except errors.Unreadable as error:
                log.warning("%s", error)
        return heads

    # --- writing -------------------------------------------------------------------------------------------------------------

    async def create(self, state: JobState) -> Loaded:
        """Store a new job: head (expected: none), specification and all shards in one batch. `WrongLastSequence` when the job exists."""
        return await self._write(state, None, _whole(state))

    async def commit(self, old: Loaded, new: JobState) -> Loaded:
        """Store `new` on top of `old`; shards that are other objects than in `old` are written with the head.

        A terminal phase makes it the last commit of the job, which stays readable for 7 days.

        `WrongLastSequence`: somebody else committed since `old` was read; load again and see who owns the job. `Unreachable`, `Rejected`: not stored.
        `UnknownResult`: not even the leader could be asked in time; load again.
        """
        head = new.head
        if head.job != old.state.head.job or head.uid != old.state.head.uid or len(new.shards) != len(old.state.shards):
            raise ValueError(f"commit of {head.job} on top of {old.state.head.job}: another job")
        if head.owner != old.state.head.owner:
            raise ValueError(f"commit of {head.job} changes its owner: that is take_over")
        dirty = [k for k, shard in enumerate(new.shards) if shard is not old.state.shards[k]]
        return await self._write(new, old, _shards(new, dirty))

    async def take_over(self, loaded: Loaded, replica: str) -> Loaded:
        """Make `replica` the owner, term + 1. From then on every commit of the old owner is refused. Errors as `commit`."""
        state = loaded.state.with_head(owner=Owner(replica, loaded.state.head.owner.term + 1))
        return await self._write(state, loaded, [])

    async def _write(self, state: JobState, old: Loaded | None, extra: list[Extra]) -> Loaded:
        # What has ended is written whole, with an end of its own for every subject and no history under it.
        job, final = state.head.job, state.head.phase.terminal
        async with self._locks.setdefault(job, asyncio.Lock()):
            try:
                over = self._bus.generation if old is None else await self._still(job, old)
                return await self._write_locked(job, state, 0 if old is None else old.seq, _whole(state) if final else extra, over)
            finally:
                if final:
                    self._locks.pop(job, None)

    async def _still(self, job: str, old: Loaded) -> int:
        """The connection over which `old` is known to be what the store holds.

        `WrongLastSequence` when it holds another head, or is of another era: what was stepped since `old` was read came out of the store before it.
        """
        over = self._bus.generation
        if old.over == over:
            return over
        try:
            found = await self._bus.get(STREAM, subjects.job_state(job), leader=True)
            era = await self._bus.get(STREAM, subjects.ERA, leader=True)
        except errors.UnknownResult as error:
            raise errors.Unreachable(f"job {job}: the head could not be read over the new connection: {error}") from error
        if found is None or found.marker or found.seq != old.seq or found.data != old.data:
            raise errors.WrongLastSequence(f"job {job}: over the new connection the head is not the one of {old.seq}", 10071)
        if era is not None and not era.marker and _era_in(era) != old.state.head.era:
            raise errors.WrongLastSequence(f"job {job}: over the new connection the store is of another era than {old.state.head.era}", 10071)
        return over

    async def _write_locked(self, job: str, state: JobState, expect: int, extra: list[Extra], over: int) -> Loaded:
        subject, data = subjects.job_state(job), messages.encode(state.head)
        final = state.head.phase.terminal
        ttl = KEEP_ENDED if final else None
        crashpoint("bus.before-commit")
        started = time.perf_counter()
        try:
            if extra:
                whole: list[Part] = [(subject, data, expect), *((name, body, None) for name, body in extra)]
                seq = (await self._bus.batch(whole, ttl=ttl, rollup=final, over=over)).seq - len(extra)
            else:
                seq = (await self._bus.publish(subject, data, expect=expect, over=over)).seq
        except (errors.UnknownResult, errors.WrongLastSequence) as error:
            seq = await self._settle(job, data, expect, error)
            over = -1  # of the era nothing was asked: a copy that holds this commit is compared before the next one
        metrics.COMMITS.labels("batch" if extra else "head").observe(time.perf_counter() - started)
        crashpoint("bus.after-commit")
        deadline = state.head.deadline
        return self._loaded(state, seq, await self._time_of(seq) if deadline is not None and deadline.setAt == 0 else 0, data, over)

    async def _settle(self, job: str, data: bytes, expect: int, error: errors.BusError) -> int:
        """Did it happen? The head read through the leader says: ours (its sequence), the old one (not stored), another's (`WrongLastSequence`)."""
        try:
            found = await self._bus.get(STREAM, subjects.job_state(job), leader=True, timeout=10.0)
        except errors.BusError as away:
            raise errors.UnknownResult(f"job {job}: commit without an answer, and the leader could not be asked: {away}") from error
        seq = found.seq if found is not None and not found.marker else 0
        if found is not None and seq > expect and found.data == data:
            log.info("job %s: commit %d had arrived: %s", job, seq, error)
            return seq
        if seq == expect and isinstance(error, errors.UnknownResult):
            raise errors.Rejected(f"job {job}: commit not stored ({error})", retryable=True)
        raise errors.WrongLastSequence(f"job {job}: the head is at {seq}, expected {expect}: another replica owns it now", 10071) from error

    async def _time_of(self, seq: int) -> int:
        """Server time of a message just stored; by our clock and the last known difference when it cannot be read."""
        try:
            item = await self._bus.get_seq(STREAM, seq, timeout=2.0)
        except errors.BusError as error:
            log.debug("time of commit %d: %s", seq, error)
            item = None
        now = int(time.time() * 1000)
        if item is None:
            return now + self._clock_offset
        self._clock_offset = item.time_ms - now
        return item.time_ms

    def _loaded(self, state: JobState, seq: int, time_ms: int, data: bytes, over: int) -> Loaded:
        """Fill `deadline.setAt`, 0 in the commit that sets it, with the server's time of that commit."""
        deadline = state.head.deadline
        if deadline is not None and deadline.setAt == 0:
            state = state.with_head(deadline=msgspec.structs.replace(deadline, setAt=time_ms))
        return Loaded(state, seq, time_ms, data, over)


def _whole(state: JobState) -> list[Extra]:
    """Everything but the head."""
    return [(subjects.job_spec(state.head.job), functools.partial(messages.encode, state.spec)), *_shards(state, range(len(state.shards)))]


def _shards(state: JobState, which: Iterable[int]) -> list[Extra]:
    return [(subjects.job_pods(state.head.job, k), functools.partial(shards.encode, state.shards[k])) for k in which]


def decode_head(job: str, data: bytes) -> Head:
    """A head; `Unreadable` when it is of a higher version or no head at all."""
    try:
        return messages.decode(Head, data)
    except messages.BadMessage as error:
        bad = error
    try:
        version = msgspec.json.decode(_version_decoder.decode(data).get("v", b"0"), type=int)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise errors.Unreadable(f"job {job}: its state is not readable: {error}") from None
    if version > WIRE_VERSION:
        raise errors.Unreadable(
            f"job {job}: its state has version {version}, this process reads up to {WIRE_VERSION}: a newer Aegis wrote it. "
            "Upgrade this replica; until then it leaves the job alone"
        )
    raise errors.Unreadable(f"job {job}: {bad}")


def _era_in(item: Stored) -> str | None:
    """None, which is nobody's era, when a newer version wrote it (the master says so)."""
    try:
        return messages.decode(messages.Era, item.data).era
    except messages.BadMessage:
        return None


def _decode(job: str, kind: type[S], data: bytes) -> S:
    try:
        return messages.decode(kind, data)
    except messages.BadMessage as error:
        raise errors.Unreadable(f"job {job}: {error}") from None


def decode_shard(head: Head, k: int, item: Stored | None) -> tuple[Pod, ...]:
    """Shard k of the job of `head`; `Unreadable` when it is missing, of a higher version or not this shard."""
    if item is None or item.marker:
        raise errors.Unreadable(f"job {head.job}: shard {k} ({subjects.job_pods(head.job, k)}) is missing")
    try:
        return shards.decode(item.data, shards.places(head.workerNum, k))
    except messages.BadMessage as error:
        raise errors.Unreadable(f"job {head.job}: shard {k} is not readable: {error}") from None
