"""Flight records that workers sent (BLOBS): put together, and read as any folder of dumps is: in limited children, since they are a tenant's.

Writes a temporary folder, gone afterwards. A rank that sent several has its last whole one read.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from aegis_bus.connection import Bus, Stored
from aegis_bus.ordered import OrderedReader
from aegis_proto import subjects
from aegis_proto.blobs import BlobPiece, unpacked, whole
from aegis_proto.messages import BadMessage, decode

from aegis_lognexus.flight import Dump, Report, analyze, broken, read_folder
from aegis_lognexus.flight.dump import REFUSED
from aegis_lognexus.intake import Reading

log = logging.getLogger(__name__)

STREAM = "BLOBS"
MAX_BYTES = 1 << 30
MAX_RANK = 1_000_000
MAX_RECORD = 64 << 20
"""Bytes of one record, unpacked."""
AT_ONCE = 64
"""Records that are unpacked at a time."""
MAX_ENTRIES = 20_000_000
"""Operations in the records of a job, about."""
PATIENCE = 180.0
"""Seconds after which what is not read of a job's records is left out: a tenant may make each slow to read."""


async def flight_report(bus: Bus, job: str, incarnation: int) -> Report | None:
    """What the flight records of an incarnation say; None when none were sent. BusError."""
    return await report_of(await collect(bus, job), incarnation) if await any_blobs(bus, job) else None


async def report_of(found: Iterable[tuple[str, BlobPiece, int]], incarnation: int) -> Report | None:
    """The same of blobs that were collected."""
    records = by_rank([(subject, piece) for subject, piece, _ in found], incarnation)
    return await asyncio.to_thread(read, records) if records else None


async def any_blobs(bus: Bus, job: str) -> bool:
    """Does the stream hold anything of a job? BusError."""
    info = await bus.js_api(f"STREAM.INFO.{STREAM}", {"subjects_filter": subjects.blob(job, "*", "*")})
    return bool(info["state"].get("subjects"))


async def collect(bus: Bus, job: str) -> list[tuple[str, BlobPiece, int]]:
    """(subject, piece, server's time in ms) of everything that the stream holds of a job, in order, up to MAX_BYTES."""
    found: list[tuple[str, BlobPiece, int]] = []
    size = 0
    async with OrderedReader(bus, STREAM, [subjects.blob(job, "*", "*")], batch=64) as reader:
        reading = Reading(reader)
        try:
            while size < MAX_BYTES and (items := await reading.items(2.0)):
                for item in items:
                    if isinstance(item, Stored):
                        try:
                            piece = decode(BlobPiece, item.data)
                        except BadMessage as error:
                            log.info("%s: %s", item.subject, error)
                            continue
                        size += len(piece.data)
                        found.append((item.subject, piece, item.time_ms))
                if not reader.pending:
                    break
        finally:
            reading.close()
    return found


Records = dict[int, list[list[BlobPiece]]]
"""rank -> its records in the order in which they were sent, each in pieces."""


def by_rank(found: Iterable[tuple[str, BlobPiece]], incarnation: int) -> Records:
    """The flight records of this incarnation."""
    blobs: dict[str, list[BlobPiece]] = defaultdict(list)
    for subject, piece in found:
        if piece.kind == "flight" and piece.incarnation == incarnation and 0 <= piece.rank < MAX_RANK:
            blobs[subject].append(piece)
    records: Records = defaultdict(list)
    for parts in blobs.values():
        records[parts[0].rank].append(parts)
    return dict(records)


def last_whole(records: Iterable[list[BlobPiece]]) -> bytes:
    """The last whole record of a rank; an empty one where only pieces are left, so that it counts as cut."""
    data = (unpacked(whole(parts), parts[0].name, MAX_RECORD) for parts in reversed([*records]))
    return next((each for each in data if each is not None), b"")


def read(records: Records) -> Report:
    """Blocking. A few records at a time are unpacked: a small blob may hold much, and a tenant may send many."""
    dumps: dict[int, Dump] = {}
    ranks, until = sorted(records), time.monotonic() + PATIENCE
    for at in range(0, len(ranks), AT_ONCE):
        some = ranks[at : at + AT_ONCE]
        if sum(map(len, dumps.values())) > MAX_ENTRIES:
            dumps |= {rank: broken(rank, REFUSED, "the records before it hold more than is read of a job") for rank in some}
            continue
        with tempfile.TemporaryDirectory(prefix="aegis-flight-") as folder:
            for rank in some:
                (Path(folder) / f"rank_{rank}").write_bytes(last_whole(records[rank]))
            dumps |= read_folder(Path(folder), seconds=until - time.monotonic())
    return analyze(dumps)
