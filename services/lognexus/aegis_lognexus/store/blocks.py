"""One segment: a file of JSON lines, and the index of its blocks. Reading, and cutting back to what is whole.

A block is a run of whole lines of about BLOCK bytes; what it holds is told in one line of the index, so that a query reads only blocks that may
answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from aegis_proto.logs import StoredLine

BLOCK = 256 << 10
NAMES = 64
"""Workers and ranks listed in a block's entry; with more it says None: any."""
FIRST = 1

_lines = msgspec.json.Decoder(StoredLine)
_encoder = msgspec.json.Encoder()


class Block(msgspec.Struct, array_like=True):
    """Where a block lies and what is in it. `workers`, `ranks`: None = more than NAMES."""

    offset: int
    size: int
    lines: int
    first_at: int
    last_at: int
    workers: tuple[str, ...] | None
    ranks: tuple[int, ...] | None
    incarnations: tuple[int, int]


_blocks = msgspec.json.Decoder(Block)


class BlockMaker:
    """Gathers what the entry of the block being written will say."""

    def __init__(self, offset: int) -> None:
        self.offset, self.size, self.lines = offset, 0, 0
        self._first, self._last = 1 << 62, 0
        self._workers: set[str] = set()
        self._ranks: set[int] = set()
        self._low, self._high = 1 << 62, -(1 << 62)

    def add(self, lines: Sequence[StoredLine], size: int) -> None:
        self.size += size
        self.lines += len(lines)
        for line in lines:
            at, incarnation = line.at, line.incarnation
            self._first = min(self._first, at)
            self._last = max(self._last, at)
            self._low = min(self._low, incarnation)
            self._high = max(self._high, incarnation)
        if len(self._workers) <= NAMES:
            self._workers.update(line.worker for line in lines)
        if len(self._ranks) <= NAMES:
            self._ranks.update(line.rank for line in lines)

    def made(self) -> Block:
        workers = tuple(sorted(self._workers)) if len(self._workers) <= NAMES else None
        ranks = tuple(sorted(self._ranks)) if len(self._ranks) <= NAMES else None
        return Block(self.offset, self.size, self.lines, self._first, self._last, workers, ranks, (self._low, self._high))


def encode_lines(lines: Sequence[StoredLine]) -> bytes:
    return _encoder.encode_lines(lines)


def encode_block(block: Block) -> bytes:
    return _encoder.encode(block) + b"\n"


def decode_line(data: bytes) -> StoredLine:
    """msgspec.MsgspecError, or UnicodeDecodeError, for anything else than a line of the store."""
    return _lines.decode(data)


def segment_numbers(folder: Path) -> list[int]:
    """Numbers of the segments of a job, ascending."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(name[:-6]) for name in names if name.endswith(".jsonl") and name[:-6].isdigit())


def segment(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.jsonl"


def index_of(path: Path) -> Path:
    return path.with_suffix(".idx")


def read_index(path: Path, size: int) -> list[Block]:
    """The entries of a segment's index that hold together and lie within its `size` bytes."""
    try:
        data = index_of(path).read_bytes()
    except FileNotFoundError:
        return []
    found: list[Block] = []
    end = 0
    for raw in data.split(b"\n")[:-1]:
        try:
            block = _blocks.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            break
        if block.offset != end or block.size <= 0 or block.offset + block.size > size:
            break
        found.append(block)
        end = block.offset + block.size
    return found


def whole_lines(path: Path, start: int) -> Iterator[tuple[int, StoredLine, int]]:
    """(offset, line, size with its end) from `start` on, up to the first that is no whole line of the store."""
    with path.open("rb") as file:
        file.seek(start)
        at = start
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            try:
                line = decode_line(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return
            yield at, line, len(raw)
            at += len(raw)


def chunks(lines: Sequence[StoredLine], size: int = 500) -> Iterable[Sequence[StoredLine]]:
    return (lines[at : at + size] for at in range(0, len(lines), size)) if len(lines) > size else (lines,)
