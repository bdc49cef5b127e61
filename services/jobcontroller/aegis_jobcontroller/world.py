"""What the job controller knows, as plain values: the input of `plan`, `facts` and `pending`. Reads and writes nothing.

Everything here is a cache of the store and may be old: what is decided from it is written by compare-and-set, and decided again when refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from aegis_proto.lemon import Risk
from aegis_proto.messages import Held, NodeSpec, NodeStatus, Place, Slot, SlotStatus, Taint
from aegis_proto.phases import FailedReason, Mode
from aegis_proto.state import Head, JobSpec, Pod

Key = tuple[str, str, int]
"""(uid, pod, attempt): one attempt of one worker, the key of every placement."""


@dataclass(frozen=True, slots=True)
class Placed:
    """`aegis.place.<job>.<pod>` and its sequence."""

    place: Place
    seq: int

    @property
    def key(self) -> Key:
        return (self.place.uid, self.place.pod, self.place.attempt)


NOBODY = Slot()
"""Content of a slot that is to be empty."""


@dataclass(frozen=True, slots=True)
class Holding:
    """`aegis.node.<n>.slot.<i>` and its sequence; a slot never written has sequence 0."""

    slot: Slot = NOBODY
    seq: int = 0

    @property
    def key(self) -> Key | None:
        """Which attempt the slot is to hold, None when it is to be empty."""
        return (self.slot.uid, self.slot.pod, self.slot.attempt) if self.slot.job else None


EMPTY = Holding()
SILENT = 15.0
"""Seconds without a heartbeat after which a node is silent, and no place for new workers."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job: head and pods as last read. `ended_for`: seconds since this replica first saw it ended, -1.0 while it runs."""

    head: Head
    pods: tuple[Pod, ...]
    spec: JobSpec
    seq: int = 0
    ended_for: float = -1.0

    def error_nodes(self, now: int) -> frozenset[str]:
        """Nodes that this job keeps off at `now` (ms)."""
        return frozenset(node.name for node in self.head.errorNodes if node.avoided(now))

    @property
    def stop_after(self) -> float:
        """Seconds after its end until what still runs is told to stop by the platform: agents leave by themselves, plain ones hear nothing."""
        if self.head.mode is Mode.PLAIN:
            return 0.0
        return 0.0 if self.head.failedReason is FailedReason.PLACING else max(self.spec.stopGrace, self.head.order.grace or 0.0) + 10.0


@dataclass(frozen=True, slots=True)
class Node:
    """A registered node. `alive`: its heartbeat was heard within SILENT seconds. `silent_for`: seconds since it was last heard, or since we
    could hear at all (our start, a reconnect, a stall of ours), whichever is later: a silence that may be ours is nobody's."""

    spec: NodeSpec
    status: NodeStatus | None = None
    alive: bool = False
    silent_for: float = 0.0
    taint: Taint | None = None
    slots: Mapping[str, Holding] = field(default_factory=dict)
    risk: Risk | None = None

    @property
    def doubt(self) -> float:
        """0 as good as any, 1 certainly bad; what nobody judged is good."""
        return self.risk.risk if self.risk is not None else 0.0

    @property
    def name(self) -> str:
        return self.spec.node

    def holding(self, slot: str) -> Holding:
        return self.slots.get(slot, EMPTY)

    def reported(self, slot: str) -> SlotStatus:
        """The daemon's last word about a slot."""
        for status in self.status.slots if self.status is not None else ():
            if status.slot == slot:
                return status
        return SlotStatus(slot)

    def names(self) -> list[str]:
        return [str(i) for i in range(self.spec.slots)]

    @property
    def silent(self) -> bool:
        return not self.alive and self.silent_for >= SILENT

    @property
    def rebooted(self) -> bool:
        """The machine was started anew since the daemon's last status: nothing that status calls running can live."""
        return self.status is not None and bool(self.status.boot) and bool(self.spec.boot) and self.status.boot != self.spec.boot


def plain_port(job: Job) -> int:
    """Where w0 would listen if the job ran without Aegis: the same for all of its workers, and another one for each job."""
    low, high = job.spec.masterPortRange
    digest = int.from_bytes(hashlib.sha256(job.head.uid.encode()).digest()[:8], "big")
    return low + digest % (high - low + 1)


def reported_key(status: SlotStatus) -> Key | None:
    return (status.uid, status.pod, status.attempt) if status.uid else None


def excluded(taint: Taint | None, now: int) -> bool:
    """`now` in ms since 1970. A taint without end lasts until it is lifted."""
    return taint is not None and taint.excluded and (taint.until == 0 or taint.until > now)


def free(node: Node, slot: str) -> bool:
    """Nothing is to be in this slot, and nothing of an earlier holder is left in it."""
    status = node.reported(slot)
    return node.holding(slot).key is None and (status.state == "empty" or (status.state == "gone" and status.clean))


@dataclass(frozen=True, slots=True)
class World:
    """`now` in ms since 1970. `era`: of the store that this was read from, "" when it has none. `held`: what daemons run that no record tells of."""

    jobs: Mapping[str, Job] = field(default_factory=dict)
    places: Mapping[tuple[str, str], Placed] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    now: int = 0
    era: str = ""
    known: Collection[str] = ()
    """Every job that the store has a head of, readable or not."""
    held: Sequence[Held] = ()
    taints: Mapping[str, Taint] = field(default_factory=dict)
    """By node, also of nodes that have no daemon."""
    risks: Mapping[str, Risk] = field(default_factory=dict)
    """By node, also of nodes that have no daemon."""
    settled: bool = True
    """False for a while after a restore: what runs on the nodes may not be known yet, so nothing is begun."""

    def gone(self, placed: Placed) -> bool:
        """The platform knows by itself that nothing of this placement lives any more."""
        node = self.nodes.get(placed.place.node)
        if node is None:
            return False
        status = node.reported(placed.place.slot)
        if reported_key(status) == placed.key:
            return (status.state == "gone" and status.clean) or node.rebooted
        # A daemon takes a new holder only when the old one is verified gone.
        holding = node.holding(placed.place.slot).key
        return holding is not None and holding != placed.key and reported_key(status) == holding
