"""The first layer: what a machine looked like when a run of its job ended (BLOBS, kind `snapshot`), and the question for all of a job.

Reads and writes nothing. Taken by the agent in the pod: evidence for people, it accuses nobody.

| subject | who | request | reply |
|---|---|---|---|
| aegis.rpc.lognexus.query.snapshots[.<ns>] | reader | SnapshotsQuery | SnapshotsAnswer |
"""

from __future__ import annotations

import msgspec

from aegis_proto import WIRE_VERSION


class KernelLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the kernel log that says something: `label` and `cause` as in the pattern table."""

    at: int  # ms, by the machine's clock
    text: str
    label: str = ""
    cause: str = ""


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """One machine. `pressure`: share of the last 10 s in which something waited, per cent, by resource. `ports`: port -> counters that are not 0.
    `missing`: what could not be read, a sentence each."""

    at: int  # ms, by the machine's clock
    uptime: float = 0.0  # seconds
    load: float = 0.0  # 1 minute
    cpus: int = 0
    memory: float = -1.0  # share that is available; -1 = not known
    pressure: dict[str, float] = {}
    kernel: tuple[KernelLine, ...] = ()
    gpus: tuple[str, ...] = ()
    ports: dict[str, dict[str, int]] = {}
    missing: tuple[str, ...] = ()
    v: int = WIRE_VERSION


class NodeSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """A snapshot as it was received. `offset`: server's clock minus the machine's, ms, measured when it was sent: add it to every time of it."""

    pod: str
    node: str
    incarnation: int
    offset: int
    snapshot: Snapshot


class SnapshotsQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    job: str
    v: int = WIRE_VERSION


class SnapshotsAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    items: tuple[NodeSnapshot, ...] = ()
    v: int = WIRE_VERSION
