"""Which lines of a block answer a question. Raw bytes are asked first: what stands between quotes is never a tenant's text, where quotes are escaped.

Patterns of people are matched by hyperscan, whose time grows with the text alone; plain words need no engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import msgspec
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
    try:
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        flags = hyperscan.HS_FLAG_UTF8 | hyperscan.HS_FLAG_SINGLEMATCH | hyperscan.HS_FLAG_ALLOWEMPTY
        database.compile(expressions=[grep.encode()], ids=[0], elements=1, flags=[flags])
    except (hyperscan.error, UnicodeEncodeError) as error:
        raise BadPattern(f"--grep {grep!r}: {error}; neither lookaround nor back-references are searched") from None

    def search(texts: list[bytes]) -> list[int]:
        found: list[int] = []
        for at, text in enumerate(texts):
            hits: list[int] = []
            database.scan(text, match_event_handler=lambda *_, hits=hits: hits.append(1))
            if hits:
                found.append(at)
        return found

    return search


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
    ) -> None:
        self.worker, self.rank, self.incarnation, self.since, self.until = worker, rank, incarnation, since, until
        self._search = searcher(grep) if grep else None
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
        spans = list(self._spans(data))
        if self._word:
            spans = [(start, end) for start, end in spans if data.find(self._word, start, end) >= 0]
        found = [(start, end - start, line) for start, end in spans if (line := self._line(data[start:end])) is not None]
        if self._search is None:
            return found
        hits = self._search([line.message.encode("utf-8", "replace") for _, _, line in found])
        return [found[at] for at in hits]

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
