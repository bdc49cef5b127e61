"""The first layer of a job: snapshots of its machines that its agents sent when a run failed (BLOBS), on the server's clock.

A machine's clock is measured by what it sends: the server's time of a message minus the time at which it was sent. The smallest such difference of a
snapshot's pieces has the least delay in it. An agent runs in the pod: what it tells is evidence, and accuses nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

from aegis_bus.connection import Bus
from aegis_parsers.causes import CAUSES
from aegis_proto import subjects
from aegis_proto.blobs import BlobPiece, whole
from aegis_proto.messages import BadMessage, decode
from aegis_proto.snapshots import NodeSnapshot, Snapshot

from aegis_lognexus.dumps import any_blobs, collect
from aegis_lognexus.evidence import NodeEvent

log = logging.getLogger(__name__)

MOST = 256
"""Snapshots of a job that are told: the last ones."""


async def snapshots(bus: Bus, job: str, nodes: Sequence[str] = ()) -> tuple[NodeSnapshot, ...]:
    """All that the stream has of a job, oldest first. `nodes[i]`: where worker i is, when the platform's word is at hand. BusError."""
    return await asyncio.to_thread(put_together, await collect(bus, job), nodes) if await any_blobs(bus, job) else ()


def put_together(found: Iterable[tuple[str, BlobPiece, int]], nodes: Sequence[str] = ()) -> tuple[NodeSnapshot, ...]:
    """`found`: (subject, piece, server's time in ms)."""
    blobs: dict[str, list[tuple[BlobPiece, int]]] = defaultdict(list)
    for subject, piece, time_ms in found:
        if piece.kind == "snapshot":
            blobs[subject].append((piece, time_ms))
    out: list[NodeSnapshot] = []
    for subject, parts in blobs.items():
        data = whole(piece for piece, _ in parts)
        try:
            snapshot = decode(Snapshot, data) if data is not None else None
        except BadMessage as error:
            log.info("%s: %s", subject, error)
            continue
        if snapshot is None:
            continue
        pod, piece = subjects.token(subject, 4), parts[0][0]
        index = int(pod[1:]) if pod[1:].isdecimal() else -1
        node = nodes[index] if 0 <= index < len(nodes) and nodes[index] else piece.name
        offset = min(time_ms - piece.at for piece, time_ms in parts)
        out.append(NodeSnapshot(pod, node, piece.incarnation, offset, snapshot))
    return tuple(sorted(out, key=lambda item: item.snapshot.at + item.offset)[-MOST:])


def node_events(found: Iterable[NodeSnapshot], incarnation: int) -> tuple[NodeEvent, ...]:
    """What the kernels of the machines said about a failure: words of agents, so trusted by nobody."""
    return tuple(
        NodeEvent(item.node or item.pod, line.label, line.cause, line.text, line.at + item.offset, trusted=False)
        for item in found
        if item.incarnation == incarnation
        for line in item.snapshot.kernel
        if line.cause in CAUSES and line.cause != "unknown"
    )
