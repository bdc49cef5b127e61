"""Pieces of things too large for a report (`aegis.job.<j>.blob.<pod>.<id>`, stream BLOBS): flight records, stacks, NCCL RAS, snapshots.

Loss is allowed. Reads and writes nothing. Whose blob it is is said by the subject, never by the body.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import Literal

import msgspec

from aegis_proto import WIRE_VERSION

PIECE = 36_000
"""Bytes of one piece, before JSON makes 4 of 3; the stream takes messages of 65,536."""
MAX_PIECES = 64
"""The stream keeps so many per subject, so a blob has at most 2.3 MB: compress what is larger, or leave stacks out."""

PACKED = ".zlib"
"""End of the name of a blob that is packed."""

BlobKind = Literal["flight", "stacks", "ras", "snapshot"]


class BlobPiece(msgspec.Struct, frozen=True, omit_defaults=True):
    """Piece `index` of `count`; `sha256` (hex) and `size` of the whole. The id in the subject is new for each blob."""

    uid: str
    attempt: int
    incarnation: int
    kind: BlobKind
    index: int
    count: int
    size: int
    sha256: str
    data: bytes
    rank: int = -1  # of a flight record
    name: str = ""  # file name, for people
    at: int = 0  # ms, by the worker's clock
    v: int = WIRE_VERSION


def pieces(data: bytes, kind: BlobKind, *, uid: str, attempt: int, incarnation: int, rank: int = -1, name: str = "", at: int = 0) -> list[BlobPiece]:
    """A blob as it travels. ValueError when it has more than MAX_PIECES pieces."""
    count = max(1, -(-len(data) // PIECE))
    if count > MAX_PIECES:
        raise ValueError(f"{name or kind}: {len(data)} bytes, at most {PIECE * MAX_PIECES} travel as one blob")
    digest = hashlib.sha256(data).hexdigest()
    parts = [data[k * PIECE : (k + 1) * PIECE] for k in range(count)]
    return [BlobPiece(uid, attempt, incarnation, kind, k, count, len(data), digest, part, rank, name, at) for k, part in enumerate(parts)]


def whole(found: Iterable[BlobPiece]) -> bytes | None:
    """The blob of its pieces, in any order, doubles allowed; None when one is missing or it is not what its digest says."""
    by_index = {piece.index: piece for piece in found}
    if not by_index:
        return None
    first = next(iter(by_index.values()))
    if not 0 < first.count <= MAX_PIECES or set(by_index) != set(range(first.count)):
        return None
    data = b"".join(by_index[k].data for k in range(first.count))
    return data if len(data) == first.size and hashlib.sha256(data).hexdigest() == first.sha256 else None


def unpacked(data: bytes | None, name: str, most: int) -> bytes | None:
    """A blob as it was before `PACKED`; None for what was never whole, is broken, or has more than `most` bytes once unpacked."""
    if data is None or not name.endswith(PACKED):
        return data
    try:
        unpacker = zlib.decompressobj()
        out = unpacker.decompress(data, max(1, most))  # 0 would be no limit
        return out if unpacker.eof else None
    except zlib.error:
        return None
