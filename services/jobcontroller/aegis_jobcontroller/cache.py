"""The store as this replica last saw it. Follows streams NODES and FLEET in order, heads of jobs by their view, heartbeats of nodes; makes a `World`.

Reads only. Losing it costs a re-read. Heads: a core subscription wakes, all heads are read again every 30 s; pods are loaded when the head shows that
something about places may have changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from aegis_bus.connection import Bus, Msg, Stored
from aegis_bus.errors import BusError, Unreadable
from aegis_bus.jobstore import JobStore, decode_head
from aegis_bus.ordered import Gap, OrderedReader
from aegis_proto import subjects
from aegis_proto.api import DeadLetter
from aegis_proto.lemon import Risk
from aegis_proto.messages import BadMessage, Era, Held, NodeSpec, NodeStatus, Place, Slot, Taint, decode, encode
from aegis_proto.state import Head
from aegis_proto.streams import stream_of

from aegis_jobcontroller import checked, metrics
from aegis_jobcontroller.world import SILENT, Holding, Job, Node, Placed, World

log = logging.getLogger(__name__)

REREAD = 30.0
ANSWER = 10.0
"""Seconds for each answer of a stream that is read whole; then it is asked for anew. Nothing is placed until all were read once."""
SETTLE = 15.0
"""Seconds after a restored store was first seen in which nothing new is begun: its nodes have yet to come back (up to 5 s between two tries of
theirs) and to say what runs, of which this store may know nothing."""
FILTERS = {
    "NODES": ["aegis.node.*.taint", "aegis.node.*.risk", "aegis.node.*.slot.*", "aegis.place.*.*"],
    "FLEET": ["aegis.node.*.spec", "aegis.node.*.status"],
    "HELD": ["aegis.node.*.held.*"],
}
HELD_FOR = 90.0
"""Seconds that a daemon's word about a lost record counts; it is said again every half minute."""
MOMENT = 0.02
LOADS = 8
"""Jobs loaded side by side."""


def matters(old: Head | None, new: Head) -> bool:
    """Whether places may have changed between two heads of a job. While a place is empty every commit may have said that an attempt is gone."""
    if old is None or new.tally.filled < new.workerNum:
        return True
    return (old.phase, old.mode, old.seqNum, old.suspended, old.errorNodesTotal, old.tally.filled) != (
        new.phase,
        new.mode,
        new.seqNum,
        new.suspended,
        new.errorNodesTotal,
        new.tally.filled,
    )


class Cache:
    """`changed` gives an event that is set whenever a new plan or a new fact may be due. `ready` when everything was read once."""

    def __init__(self, bus: Bus) -> None:
        self._listeners: list[tuple[asyncio.Event, tuple[str, ...]]] = []
        self.sequence = dict.fromkeys(FILTERS, 0)
        """Last sequence seen of each stream: after an own write, wait until it is here (`seen`)."""
        self._bus = bus
        self._store = JobStore(bus)
        self._places: dict[tuple[str, str], Placed] = {}
        self._slots: dict[str, dict[str, Holding]] = {}
        self._taints: dict[str, Taint] = {}
        self._risks: dict[str, Risk] = {}
        self._specs: dict[str, NodeSpec] = {}
        self._statuses: dict[str, NodeStatus] = {}
        self._held: dict[tuple[str, str], tuple[Held, float]] = {}
        self._stored_era, self._era = b"", ""
        self._reading: dict[str, asyncio.Task[None]] = {}  # stream -> what follows it
        self._settles_at = 0.0
        self._heads_of = -1  # generation of the connection on which era and heads were read
        self._heads: dict[str, tuple[Head, int]] = {}
        self._unreadable: set[str] = set()  # jobs whose head a newer Aegis wrote, or that is none
        self._jobs: dict[str, Job] = {}
        self._ended: dict[str, float] = {}
        self._stale: dict[str, None] = {}  # jobs to load, in order
        self._wanted: set[str] = set()  # ended jobs that are asked for all the same
        self._left: set[str] = set()  # jobs that could not be read; tried again with the next reading of all heads
        self._load = asyncio.Event()
        self._reread = asyncio.Event()
        self._beats: dict[str, float] = {}
        self._hear_since = time.monotonic()
        self._read_once: set[str] = set()
        self._moved = asyncio.Condition()
        self._burials: set[asyncio.Task[None]] = set()
        self._world: World | None = None
        self._world_at = 0.0

    @property
    def ready(self) -> bool:
        """Everything was read once, era and heads on the present connection: behind a new one there may be another store."""
        return self._read_once >= {"NODES", "FLEET", "heads"} and not self._stale and self._heads_of == self._bus.generation

    def changed(self, *of: str) -> asyncio.Event:
        """An event of the caller's own, to wait for and to clear. `of`: only news of these (streams, "heads", "jobs", "beats"); none: of any."""
        event = asyncio.Event()
        self._listeners.append((event, of))
        return event

    def touch(self, of: str) -> None:
        """Something new: of a stream, of heads, jobs or beats, or of the platform."""
        self._world = None
        for event, wanted in self._listeners:
            if not wanted or of in wanted:
                event.set()

    def want(self, name: str) -> None:
        """Load a job also though it has ended and nothing of it is placed in the store: the platform still has something of it."""
        if name not in self._wanted and name in self._heads:
            self._wanted.add(name)
            self._stale[name] = None
            self._load.set()

    def could_not_hear(self) -> None:
        """A reconnect or a stall of this process: silence before now is not the nodes'."""
        self._world = None
        self._hear_since = time.monotonic()
        self._reread.set()

    # --- the world ---------------------------------------------------------------------------------------------------------------

    def world(self) -> World:
        """As it is now. Those who were woken by one change, and come within MOMENT, are given the same."""
        now = time.monotonic()
        if self._world is not None and now - self._world_at < MOMENT:
            return self._world
        jobs = {
            name: job if not job.head.phase.terminal else replace(job, ended_for=now - self._ended.setdefault(name, now))
            for name, job in self._jobs.items()
        }
        nodes = {name: self._node(name, spec, now) for name, spec in self._specs.items()}
        self._held = {where: (held, at) for where, (held, at) in self._held.items() if now - at < HELD_FOR}
        held = [held for held, _ in self._held.values()]
        known = self._heads.keys() | self._unreadable
        self._world = World(
            jobs, self._places, nodes, int(time.time() * 1000), self._era, known, held, self._taints, self._risks, now >= self._settles_at
        )
        self._world_at = now
        return self._world

    def _node(self, name: str, spec: NodeSpec, now: float) -> Node:
        beat = self._beats.get(name)
        silent_for = now - max(beat or 0.0, self._hear_since)
        return Node(
            spec,
            self._statuses.get(name),
            beat is not None and silent_for < SILENT,
            silent_for,
            self._taints.get(name),
            self._slots.get(name, _NO_SLOTS),
            self._risks.get(name),
        )

    # --- following the streams -----------------------------------------------------------------------------------------------------

    async def follow(self, stream: str) -> None:
        """Everything of a stream, then every change, for ever. Another store means: all again.

        A copy that others have written to meanwhile may have reached the number that is due next: then no gap tells of it.
        """
        while True:
            reading = self._reading[stream] = asyncio.ensure_future(self._follow(stream))
            try:
                await asyncio.wait({reading})
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            if not reading.cancelled():
                reading.result()

    async def _follow(self, stream: str) -> None:
        """The same of one store. A gap (or a younger stream) means: all again."""
        while True:
            try:
                found = await self._bus.get_many(stream, FILTERS[stream], timeout=ANSWER)
            except BusError as error:
                log.warning("%s cannot be read yet: %s", stream, error)
                await asyncio.sleep(1.0)
                continue
            self._clear(stream)
            for item in found:
                self._take(stream, item)
            last = max((item.seq for item in found), default=0)
            await self._passed(stream, last)
            self._read_once.add(stream)
            async with OrderedReader(self._bus, stream, FILTERS[stream], start=last + 1) as reader:
                async for change in reader:
                    if isinstance(change, Gap):
                        log.warning("%s begins at %d, %d was due: read anew", stream, change.first_seq, change.wanted)
                        break
                    self._take(stream, change)
                    await self._passed(stream, change.seq)

    def _clear(self, stream: str) -> None:
        if stream == "NODES":
            self._places.clear()
            self._slots.clear()
            self._taints.clear()
            self._risks.clear()
        elif stream == "FLEET":
            self._specs.clear()
            self._statuses.clear()
        else:
            self._held.clear()
        self.sequence[stream] = 0

    async def _passed(self, stream: str, seq: int) -> None:
        self.sequence[stream] = seq
        self.touch(stream)
        async with self._moved:
            self._moved.notify_all()

    async def caught_up(self) -> None:
        """Wait until every place that is stored now is part of the world."""
        stored = await self._bus.get_many("NODES", ["aegis.place.*.*"], timeout=10.0)
        await self.seen(max((item.seq for item in stored), default=0))

    async def seen(self, seq: int, timeout: float = 5.0) -> bool:
        """Wait until sequence `seq` of NODES is part of the world; False after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout), self._moved:
                await self._moved.wait_for(lambda: self.sequence["NODES"] >= seq)
            return True
        except TimeoutError:
            return False

    def _take(self, stream: str, item: Stored) -> None:
        """What cannot be read, or says what its subject may not say, changes nothing and goes to the dead letters."""
        tokens = item.subject.split(".")
        try:
            if item.marker or not item.data:
                if stream == "NODES" and tokens[1] == "place":
                    self._places.pop((tokens[2], tokens[3]), None)
            elif stream == "NODES" and tokens[1] == "place":
                place = checked.place(decode(Place, item.data), tokens[3])
                # A released place is only waiting to be forgotten by the store.
                if place.released:
                    self._places.pop((tokens[2], tokens[3]), None)
                else:
                    self._places[tokens[2], tokens[3]] = Placed(place, item.seq)
            elif tokens[3] == "slot":
                self._slots.setdefault(tokens[2], {})[tokens[4]] = Holding(checked.slot(decode(Slot, item.data), tokens[4]), item.seq)
            elif tokens[3] == "taint":
                self._taints[tokens[2]] = checked.taint(decode(Taint, item.data), tokens[2])
            elif tokens[3] == "risk":
                self._risks[tokens[2]] = checked.risk(decode(Risk, item.data), tokens[2])
            elif tokens[3] == "held":
                self._held[tokens[2], tokens[4]] = (checked.held(decode(Held, item.data), tokens[4]), time.monotonic())
            elif tokens[3] == "spec":
                self._specs[tokens[2]] = checked.spec(decode(NodeSpec, item.data), tokens[2])
            elif tokens[3] == "status":
                self._statuses[tokens[2]] = checked.status(decode(NodeStatus, item.data), tokens[2], item.time_ms)
        except BadMessage as error:
            metrics.UNREADABLE.labels(tokens[1] if tokens[1] == "place" else tokens[3]).inc()
            log.warning("%s: %s", item.subject, error)
            task = asyncio.create_task(self._bury(item, str(error)))
            self._burials.add(task)
            task.add_done_callback(self._burials.discard)

    async def _bury(self, item: Stored, reason: str) -> None:
        """What cannot be read goes to the dead letters, once whichever replica finds it. Of a slot without its body: that holds a join token and
        the environment of a user, and more people read the dead letters than slots."""
        stream = stream_of(item.subject)
        data = b"" if item.subject.startswith("aegis.node.") and stream in ("NODES", "HELD") else item.data[:4096]
        letter = DeadLetter(stream=stream, seq=item.seq, subject=item.subject, reason=reason[:500], data=data, at=item.time_ms)
        subject = subjects.dlq("jobcontroller", stream, subjects.token(item.subject, 2))
        try:
            await self._bus.publish(subject, encode(letter), msg_id=f"{stream}-{item.seq}-{item.time_ms}")
        except BusError as error:
            log.warning("dead letter of %s not stored: %s", item.subject, error)

    # --- heartbeats and heads ------------------------------------------------------------------------------------------------------

    def on_beat(self, msg: Msg) -> None:
        node = subjects.token(msg.subject, 2)
        now = time.monotonic()
        if now - self._beats.get(node, 0.0) >= SILENT:
            self.touch("beats")
        self._beats[node] = now

    def on_head(self, msg: Msg) -> None:
        """`aegis.view.job.<j>.state`: only what was accepted is republished."""
        self._head(subjects.token(msg.subject, 3), msg.data, int(msg.headers.get("Nats-Sequence", "0")))

    def _head(self, job: str, data: bytes, seq: int) -> None:
        known = self._heads.get(job)
        if known is not None and known[1] >= seq:
            return
        try:
            head = decode_head(job, data)
        except Unreadable as error:
            self._unreadable.add(job)
            metrics.UNREADABLE.labels("Head").inc()
            log.warning("%s", error)
            return
        self._unreadable.discard(job)
        self._heads[job] = (head, seq)
        loaded = self._jobs.get(job)
        if matters(loaded.head if loaded is not None else None, head):
            self._stale[job] = None
            self._load.set()

    async def reread_heads(self) -> None:
        """Every 30 s, and whenever something may have been missed."""
        while True:
            self._reread.clear()
            before, generation = {name: seq for name, (_, seq) in self._heads.items()}, self._bus.generation
            try:
                era = await self._bus.get("CTL", subjects.ERA)
                found = await self._bus.get_many("CTL", ["aegis.job.*.state"], timeout=ANSWER)
            except BusError as error:
                log.warning("heads cannot be read yet: %s", error)
                await asyncio.sleep(1.0)
                continue
            if era is not None and era.data != self._stored_era:
                # Another store: its sequences may have gone back, and what is known of the one before counts for nothing.
                found_era = _era_of(era)
                known, self._stored_era, self._era = self._stored_era, era.data, found_era.era
                if found_era.reason == "restored":
                    self._settles_at = time.monotonic() + SETTLE
                if known:
                    self._read_once.clear()
                    for reading in self._reading.values():
                        reading.cancel()
                self._heads.clear()
                self._unreadable.clear()
                self._jobs.clear()
                self._stale.clear()
                self._reread.set()  # also for what a view brought while this was read
            present = set()
            for item in found:
                if not item.marker:
                    job = subjects.token(item.subject, 2)
                    present.add(job)
                    self._head(job, item.data, item.seq)
            self._unreadable &= present
            for job, seq in before.items():
                if job in present or self._heads.get(job, (None, seq))[1] != seq:
                    continue
                # Forgotten by the store (7 days after its end). What a view brought while this was read is newer than the reading, and stays.
                for memory in (self._heads, self._jobs, self._ended, self._stale):
                    memory.pop(job, None)
                self._wanted.discard(job)
            if left := self._left & self._heads.keys():
                self._stale |= dict.fromkeys(left)
                self._load.set()
            self._left.clear()
            self._read_once.add("heads")
            self._heads_of = generation
            self.touch("heads")
            try:
                async with asyncio.timeout(REREAD if era is not None else 1.0):  # without an era: a new store is being made just now
                    await self._reread.wait()
            except TimeoutError:
                pass

    async def load_jobs(self) -> None:
        """Load what is stale, a few at a time."""
        while True:
            await self._load.wait()
            self._load.clear()
            while self._stale:
                names = list(self._stale)[:LOADS]
                for name in names:
                    del self._stale[name]
                results = await asyncio.gather(*(self._load_one(name) for name in names))
                if not all(results):
                    await asyncio.sleep(0.5)
                self.touch("jobs")

    async def _load_one(self, name: str) -> bool:
        known = self._heads.get(name)
        if known is None:
            return True
        if known[0].phase.terminal and name not in self._jobs and name not in self._wanted and not any(job == name for job, _ in self._places):
            return True  # ended, and nothing of it is placed
        try:
            loaded = await self._store.load(name)
        except Unreadable as error:
            metrics.UNREADABLE.labels("Job").inc()
            log.warning("job %s is left alone: %s", name, error)
            self._left.add(name)
            return True
        except BusError as error:
            log.warning("job %s cannot be read yet: %s", name, error)
            self._stale[name] = None
            return False
        except Exception:
            log.exception("job %s is left alone", name)
            self._left.add(name)
            return True
        if loaded is not None:
            self._jobs[name] = Job(loaded.state.head, tuple(loaded.state.pods()), loaded.state.spec, loaded.seq)
        return True


def _era_of(stored: Stored) -> Era:
    try:
        return decode(Era, stored.data)
    except BadMessage as error:
        log.error("the era of the store is not readable: %s", error)
        return Era("")


_NO_SLOTS: Mapping[str, Holding] = {}
