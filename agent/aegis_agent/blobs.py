"""Evidence of a worker on its way to the store (stream BLOBS). Nothing waits for it, and loss is allowed. Writes `aegis.job.<j>.blob.<pod>.<id>`."""

from __future__ import annotations

import asyncio
import secrets
import zlib
from typing import TYPE_CHECKING

import msgspec
from aegis_proto import subjects
from aegis_proto.blobs import PACKED, BlobKind, pieces
from aegis_proto.messages import encode

from aegis_agent.handover import now_ms

if TYPE_CHECKING:
    from aegis_agent.worker import Worker

SMALL = 256 << 10
"""Bytes up to which a blob travels as it is; a longer one is packed."""


def packed(data: bytes) -> tuple[bytes, str]:
    """(as it travels, end of its name)."""
    return (data, "") if len(data) <= SMALL else (zlib.compress(data, 1), PACKED)


async def send(worker: Worker, kind: BlobKind, data: bytes, incarnation: int, *, name: str, rank: int = -1) -> None:
    """All pieces, each dated when it goes, so that the store can tell this machine's clock. ValueError when it is too large, BusError."""
    task = worker.task
    body, end = await asyncio.to_thread(packed, data)
    sent = pieces(body, kind, uid=task.uid, attempt=task.attempt, incarnation=incarnation, rank=rank, name=f"{name}{end}")
    ident = f"{kind[0]}{rank if rank >= 0 else ''}-{secrets.token_hex(4)}"
    await worker.uplink.wait_connected()
    for piece in sent:
        dated = encode(msgspec.structs.replace(piece, at=now_ms()))
        await worker.uplink.publish(subjects.blob(task.job, task.pod, ident), dated, f"{ident}-{piece.index}-{worker.boot}")
