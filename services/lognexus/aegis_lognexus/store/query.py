"""Questions to the files of a job: the last lines, or lines from a place on. Reads only; any process may ask while another writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aegis_proto.logs import StoredLine

from aegis_lognexus.store.blocks import Block, encode_lines, read_index, segment, segment_numbers
from aegis_lognexus.store.matching import Question

MAX_LINES = 10_000
MAX_BYTES = 200_000
"""Bytes of the lines of one answer as JSON: the servers take messages of 256 KB, and an answer that is larger reaches nobody."""
LONGEST = 30_000
"""Characters of a line in an answer, each at most six bytes: the rest is cut, and it says so. The files have it whole."""
BUDGET = 5.0
"""Seconds after which an answer is given with what was found, and where to go on."""


@dataclass(frozen=True)
class Asked:
    """`tail` > 0: the last lines that answer, before the place `before` ("" = the end); else lines after `cursor` ("" = the oldest), at most `limit`.

    A place is "segment:offset". `max_bytes`: of the lines as they are stored. `longest`: characters of a line; 0 = whole.
    """

    question: Question
    tail: int = 0
    cursor: str = ""
    limit: int = 1000
    budget: float = BUDGET
    max_bytes: int = MAX_BYTES
    most: int = MAX_LINES
    before: str = ""
    longest: int = 0


@dataclass(frozen=True)
class Page:
    """`cursor`: behind the last line looked at. `more`: not everything was looked at, or there were more than asked for. `start`, of the last lines:
    everything from there on was looked at."""

    lines: tuple[StoredLine, ...]
    cursor: str
    more: bool
    start: str = ""


def ask(folder: Path, asked: Asked) -> Page:
    """Lines of the job whose folder this is. No folder: no lines. ValueError for a cursor that is none."""
    return _tail(folder, asked) if asked.tail > 0 else _forward(folder, asked)


def workers_of(folder: Path, most: int = 64) -> tuple[str, ...]:
    """Workers of whom the files have lines, at most `most`: by the index, and by the lines behind it."""
    found: set[str] = set()
    for number in segment_numbers(folder):
        path = segment(folder, number)
        for block in _blocks(path):
            if block.workers is not None:
                found.update(block.workers)
            elif len(found) < most:
                found.update(line.worker for _, _, line in Question().lines(_read(path, block)))
    return tuple(sorted(found, key=lambda name: (len(name), name))[:most])


def _blocks(path: Path) -> list[Block]:
    """The blocks of a segment; what lies behind the index is one more, of which nothing is known."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return []
    found = read_index(path, size)
    end = found[-1].offset + found[-1].size if found else 0
    if size > end:
        found.append(Block(end, size - end, -1, 0, 1 << 62, None, None, (-(1 << 62), 1 << 62)))
    return found


def _read(path: Path, block: Block) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(block.offset)
            return file.read(block.size)
    except FileNotFoundError:  # dropped by retention
        return b""


def _tail(folder: Path, asked: Asked) -> Page:
    deadline = time.monotonic() + asked.budget
    wanted = min(asked.tail, asked.most)
    found: list[StoredLine] = []
    numbers = segment_numbers(folder)
    cursor = _end(folder, numbers)
    start = asked.before or cursor
    end = _position(start)
    size = 0
    for number in reversed(numbers):
        if number > end[0]:
            continue
        path = segment(folder, number)
        for block in reversed(_blocks(path)):
            if number == end[0] and block.offset >= end[1]:
                continue
            if time.monotonic() > deadline:
                return Page(tuple(reversed(found)), cursor, True, start)
            if asked.question.may(block):
                data = _read(path, block)
                if number == end[0]:  # what comes while this is read belongs to whoever goes on from the cursor
                    data = data[: end[1] - block.offset]
                for offset, length, line in reversed(asked.question.lines(data)):
                    told, told_length = _fitted(line, length, asked.longest)
                    size += told_length
                    if len(found) >= wanted or (size > asked.max_bytes and found):
                        return Page(tuple(reversed(found)), cursor, len(found) < wanted, start)
                    found.append(told)
                    start = f"{number}:{block.offset + offset}"
                if len(found) >= wanted:
                    return Page(tuple(reversed(found)), cursor, False, start)
            start = f"{number}:{block.offset}"
    return Page(tuple(reversed(found)), cursor, False, start)


def _fitted(line: StoredLine, length: int, longest: int) -> tuple[StoredLine, int]:
    """A line that takes `length` bytes as it is stored, and as it is told: no longer than `longest` characters."""
    if not longest or (more := len(line.message) - longest) <= 0:
        return line, length
    line = msgspec.structs.replace(line, message=f"{line.message[:longest]} [cut: {more} characters more]")
    return line, len(encode_lines([line]))


def _end(folder: Path, numbers: list[int]) -> str:
    """Behind the last whole line."""
    for number in reversed(numbers):
        path = segment(folder, number)
        for block in reversed(_blocks(path)):
            data = _read(path, block) if block.lines < 0 else b""
            end = block.offset + (block.size if block.lines >= 0 else data.rfind(b"\n") + 1)
            return f"{number}:{end}"
        return f"{number}:0"
    return "0:0"


def _position(cursor: str) -> tuple[int, int]:
    number, colon, offset = cursor.partition(":")
    if not colon or not number.isdecimal() or not offset.isdecimal() or len(cursor) > 40:
        raise ValueError(f"cursor {cursor!r}: expected segment:offset, as an answer before gave it")
    return int(number), int(offset)


def _forward(folder: Path, asked: Asked) -> Page:
    deadline = time.monotonic() + asked.budget
    at = _position(asked.cursor) if asked.cursor else (0, 0)
    found: list[StoredLine] = []
    limit = max(1, min(asked.limit, asked.most))
    size = 0
    for number, path, block in _from(folder, at):
        if time.monotonic() > deadline:
            return Page(tuple(found), f"{at[0]}:{at[1]}", True)
        end = block.offset + block.size
        if not asked.question.may(block):
            at = (number, end)
            continue
        data = _read(path, block)
        skip = max(0, at[1] - block.offset) if number == at[0] else 0
        for offset, length, line in asked.question.lines(data[skip:] if skip else data):
            told, told_length = _fitted(line, length, asked.longest)
            size += told_length
            if len(found) >= limit or (size > asked.max_bytes and found):
                return Page(tuple(found), f"{number}:{block.offset + skip + offset}", True)
            found.append(told)
            at = (number, block.offset + skip + offset + length)
        whole = data.rfind(b"\n") + 1
        at = (number, max(block.offset + whole, at[1] if number == at[0] else 0))
    return Page(tuple(found), f"{at[0]}:{at[1]}", False)


def _from(folder: Path, at: tuple[int, int]) -> Iterator[tuple[int, Path, Block]]:
    """(segment, path, block) from a place on."""
    for number in segment_numbers(folder):
        if number < at[0]:
            continue
        path = segment(folder, number)
        for block in _blocks(path):
            if number == at[0] and block.offset + block.size <= at[1]:
                continue
            yield number, path, block
