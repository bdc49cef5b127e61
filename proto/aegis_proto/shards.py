"""A shard of pods on the wire: JSON as it is while it is short, zstd over the same JSON when it is long.

Only services read shards. A full shard of 256 pods is 60 KB of JSON and 12 KB packed (`bench/commit_scale.py`): the server writes every message of
a batch twice. Small jobs stay readable with any NATS tool. A reader tells the two by the first bytes.
"""

from __future__ import annotations

import functools

import msgspec
import zstandard

from aegis_proto import messages
from aegis_proto.state import SHARD, Pod

PACK_FROM = 4096
"""Bytes of JSON from which a shard is packed."""
LEVEL = 1
"""zstd's fastest level that still finds what pods have in common: 6 ms for 10,000 pods; level 3 takes 11 ms and saves nothing more."""
MAX_SHARD = 1 << 20
"""Bytes a shard may unpack to: more than the longest there can be (what workers say of themselves is cut before it comes into the state)."""
MAGIC = zstandard.FRAME_HEADER

_decoder = msgspec.json.Decoder(tuple[Pod, ...])


@functools.cache
def _compressor() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=LEVEL)


@functools.cache
def _decompressor() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor()


def encode(pods: tuple[Pod, ...]) -> bytes:
    """What is stored of one shard."""
    data = messages.encode(pods)
    return data if len(data) < PACK_FROM else _compressor().compress(data)


def count(worker_num: int) -> int:
    """Shards of a job."""
    return -(-worker_num // SHARD)


def places(worker_num: int, k: int) -> int:
    """Pods in shard k of a job."""
    return min(SHARD, worker_num - k * SHARD)


def decode(data: bytes, places: int) -> tuple[Pod, ...]:
    """The pods of a stored shard of so many places; `messages.BadMessage` on anything else."""
    try:
        if data.startswith(MAGIC):
            if not 0 < zstandard.frame_content_size(data) <= MAX_SHARD:
                raise messages.BadMessage("a packed shard without its size, or over the limit")
            data = _decompressor().decompress(data, allow_extra_data=False)
        pods = _decoder.decode(data)
    except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise messages.BadMessage(f"not a shard of pods: {error}") from None
    if len(pods) != places:
        raise messages.BadMessage(f"{len(pods)} pods in a shard of {places}")
    return pods
