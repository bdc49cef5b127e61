"""Which lines of a block answer a question. Raw bytes are asked first: what stands between quotes is never a tenant's text, where quotes are escaped.

Patterns of people are matched by hyperscan, whose time grows with the text alone; plain words need no engine.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

import msgspec
from aegis_parsers import loglevel
from aegis_proto.logs import StoredLine

from aegis_lognexus.store.blocks import Block, decode_line
from aegis_lognexus.store.joining import time_of

hyperscan: Any = None
try:
    hyperscan = import_module("hyperscan")
except ImportError:  # without it only plain words can be searched
    pass

MAX_PATTERN = 1000
PLAIN = re.compile(r"[^.^$*+?{}\[\]\\|()]*")
MESSAGE = b'"message":"'
MESSAGES, NEWLINE = re.compile(MESSAGE + rb'(.*)"\}\n'), re.compile(rb"\n")
ESCAPED = re.compile(rb'["\\\x00-\x1f]')


class BadPattern(ValueError):
    """A pattern that cannot be searched; the message says why and what can."""


def searcher(grep: str) -> Callable[[list[bytes]], list[int]]:
    """Positions of the messages (UTF-8, without their ends) that match. BadPattern."""
    if len(grep) > MAX_PATTERN:
        raise BadPattern(f"--grep: {len(grep)} characters, at most {MAX_PATTERN}")
    if PLAIN.fullmatch(grep):
        word = grep.encode("utf-8", "replace")
        return lambda texts: [at for at, text in enumerate(texts) if word in text]
    if hyperscan is None:
        raise BadPattern("--grep: only plain words here, since the package hyperscan is not installed where the logs lie")
    expression = grep.encode("utf-8", "replace")
    one, many = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK), hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    flags = hyperscan.HS_FLAG_UTF8 | hyperscan.HS_FLAG_ALLOWEMPTY
    try:
        one.compile(expressions=[expression], ids=[0], elements=1, flags=[flags | hyperscan.HS_FLAG_SINGLEMATCH])
        many.compile(expressions=[expression], ids=[0], elements=1, flags=[flags | hyperscan.HS_FLAG_MULTILINE])
    except hyperscan.error as error:
        raise BadPattern(f"--grep {grep!r}: {error}; neither lookaround nor back-references are searched") from None

    def alone(text: bytes) -> bool:
        hits: list[int] = []
        one.scan(text, match_event_handler=lambda *_: hits.append(1))
        return bool(hits)

    return lambda texts: [at for at in candidates(many, texts) if alone(texts[at])]


def candidates(database: Any, texts: list[bytes]) -> Iterable[int]:
    """Texts that may match, by one sweep over all of them; all, where the sweep cannot tell or finds too much to be worth its while."""
    joined = b"\n".join(texts)
    if joined.count(b"\n") != len(texts) - 1:
        return range(len(texts))
    ends: list[int] = []

    def hit(_id: int, _from: int, to: int, _flags: int, _context: object) -> bool | None:
        ends.append(to)
        return len(ends) > 2 * len(texts) or None

    with contextlib.suppress(hyperscan.error):  # ended by `hit`
        database.scan(joined, match_event_handler=hit)
    if len(ends) > 2 * len(texts):
        return range(len(texts))
    found: dict[int, None] = {}
    line, at = 0, 0
    for to in sorted(ends):
        line += joined.count(b"\n", at, to)
        at = max(at, to)
        found[line] = None
    return found


def message_of(data: bytes, start: int, end: int) -> bytes:
    """The message of the line that lies there, UTF-8: it is the last field, and no other holds a quote. Empty for what is no line."""
    at = data.find(MESSAGE, start, end)
    if at < 0:
        return b""
    return plain(data[at + len(MESSAGE) : end - 3])


def plain(raw: bytes) -> bytes:
    """What JSON wrote, as it was: UTF-8."""
    if b"\\" not in raw:
        return raw
    try:
        return msgspec.json.decode(b'"' + raw + b'"', type=str).encode("utf-8", "replace")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return b""


class Question:
    """The conditions of a query, made ready: `may` for a block's entry, `lines` for its bytes."""

    def __init__(
        self,
        *,
        worker: str = "",
        rank: int | None = None,
        incarnation: int | None = None,
        kinds: tuple[str, ...] = (),
        since: int = 0,
        until: int = 0,
        grep: str = "",
        level: str = "",
    ) -> None:
        self.worker, self.rank, self.incarnation, self.since, self.until = worker, rank, incarnation, since, until
        self._search = searcher(grep) if grep else None
        said, self._says = loglevel.wanted(level) if level else ("", True)
        self._level = searcher(said) if said else None
        self._word = self._certain(grep)
        worker_part = re.escape(worker).encode() if worker else rb'[^"\n]*'
        parts = [
            rb'^\{"time":"(?P<time>[^"\n]*)","job":"[^"\n]*","worker":"' + worker_part + rb'"',
            rb',"rank":' + (b"%d" % rank if rank is not None else rb"-?\d+"),
            rb',"incarnation":' + (b"%d" % incarnation if incarnation is not None else rb"-?\d+"),
            rb',"kind":"' + (b"(?:" + b"|".join(kind.encode() for kind in kinds) + b")" if kinds else rb"\w+") + rb'"',
        ]
        self._head = re.compile(b"".join(parts), re.MULTILINE)
        self._selective = bool(worker or rank is not None or incarnation is not None or kinds or since or until)
        self._from = time_of(since).encode() if since else b""
        self._to = time_of(until).encode() if until else b""

    @staticmethod
    def _certain(grep: str) -> bytes:
        """A plain word as it stands in the file, when JSON writes it as it is."""
        word = grep.encode("utf-8", "replace")
        return word if PLAIN.fullmatch(grep) and not ESCAPED.search(word) and "�" not in grep else b""

    def may(self, block: Block) -> bool:
        return not (
            (self.worker and block.workers is not None and self.worker not in block.workers)
            or (self.rank is not None and block.ranks is not None and self.rank not in block.ranks)
            or (self.incarnation is not None and not block.incarnations[0] <= self.incarnation <= block.incarnations[1])
            or (self.since and block.last_at < self.since)
            or (self.until and block.first_at >= self.until)
        )

    def lines(self, data: bytes) -> list[tuple[int, int, StoredLine]]:
        """(offset, size, line) of the whole lines of `data` that answer, in order."""
        if self._word and self._word not in data:
            return []
        spans = self._sweep(data)
        if spans is not None:
            return self._decoded(data, spans)
        spans = list(self._spans(data))
        if self._word:
            spans = [(start, end) for start, end in spans if data.find(self._word, start, end) >= 0]
        if self._search is not None:
            texts = [message_of(data, start, end) for start, end in spans]
            spans = [spans[at] for at in self._search(texts)]
        if self._level is not None:
            hits = set(self._level([message_of(data, start, end) for start, end in spans]))
            spans = [span for at, span in enumerate(spans) if (at in hits) is self._says]
        return self._decoded(data, spans)

    def _decoded(self, data: bytes, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int, StoredLine]]:
        return [(start, end - start, line) for start, end in spans if (line := self._line(data[start:end])) is not None]

    def _sweep(self, data: bytes) -> list[tuple[int, int]] | None:
        """The lines that match a pattern, where that is the only condition and the data are whole lines; else None."""
        if self._search is None or self._selective or self._word or self._level is not None:
            return None
        texts = MESSAGES.findall(data)
        if len(texts) != data.count(b"\n"):
            return None
        hits = self._search([text if b"\\" not in text else plain(text) for text in texts])
        if not hits:
            return []
        ends = [match.end() for match in NEWLINE.finditer(data)]
        return [(ends[at - 1] if at else 0, ends[at]) for at in hits]

    @staticmethod
    def _line(data: bytes) -> StoredLine | None:
        """None for what begins in the middle of a line: a place that nobody was given."""
        try:
            return decode_line(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def _spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        """(start, end with the newline) of the lines whose head answers."""
        if not self._selective and self._word:
            at = data.find(self._word)
            while at >= 0:
                start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at) + 1
                if not end:
                    return
                yield start, end
                at = data.find(self._word, end)
            return
        for match in self._head.finditer(data):
            end = data.find(b"\n", match.end()) + 1
            if not end:
                return
            if (self._from and match["time"] < self._from) or (self._to and match["time"] >= self._to):
                continue
            yield match.start(), end
