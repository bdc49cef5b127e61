"""Which lines of a log say why something failed: patterns as data, one meaning, two engines.

`re` defines what a pattern means, one line at a time. Blocks of lines are first swept for candidates, by the `hyperscan` package where it is
installed, else by the words that the patterns cannot do without; only those are asked with `re`, so the answers are the same. A line is read up to
LINE_LIMIT characters.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Any, Literal, cast, get_args

import msgspec

from .. import kernel, tables
from ..schema import Severity
from .context import Context
from .linear import linear
from .words import alternatives, word_of

hyperscan: Any = None
try:
    hyperscan = import_module("hyperscan")
except ImportError:  # the fast engine is optional: a wheel for x86-64 and arm64
    pass

Cause = Literal["user_code", "gpu_hw", "node_hw", "network", "storage", "host_oom", "cuda_oom", "contention", "preemption", "software", "unknown"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
Strength = Literal["strong", "weak", "symptom"]
Engine = Literal["auto", "re", "hyperscan"]
LINE_LIMIT = 8192
BLOCK_LINES = 20_000
FEW_LINES = 5_000
"""Lines of a process up to which the words are quicker: a check that reads one kernel log, and ends."""
_read = 0
BENIGN = re.compile(r"NCCL INFO|^# (?:HELP|TYPE) |WARNING Nothing to do|NV_WARN_NOTHING_TO_DO|\blevel=(?:info|debug)\b")
"""Lines that no pattern may name: they carry the words of failures and are none."""


class Line(msgspec.Struct, frozen=True):
    """A line with a finding. `n` counts from 1."""

    n: int
    text: str
    label: str
    cause: Cause
    strength: Strength


@dataclass(frozen=True)
class Pattern:
    """One table of patterns.toml. Compiled when a line has one of its words: a check that reads one kernel log asks few of them."""

    label: str
    cause: str
    strength: Strength
    scope: str
    severity: Severity | None
    expression: str
    unless: str | None
    source: str

    def hits(self, line: str) -> bool:
        return self._regex.search(line) is not None and (self._unless is None or self._unless.search(line) is None)

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return re.compile(linear(self.expression), re.ASCII)

    @cached_property
    def _unless(self) -> re.Pattern[str] | None:
        return None if self.unless is None else re.compile(self.unless, re.ASCII)


@dataclass(frozen=True)
class Rules:
    """All patterns in order, and the engines over them."""

    patterns: tuple[Pattern, ...]
    words: dict[str, frozenset[int]]
    wordless: tuple[tuple[int, re.Pattern[str]], ...]
    expressions: tuple[str, ...]

    def match(self, line: str, among: Iterable[int] | None = None) -> Pattern | None:
        """The first pattern that names the line."""
        chosen = self.patterns if among is None else (self.patterns[i] for i in sorted(among))
        found = next((pattern for pattern in chosen if pattern.hits(line)), None)
        return None if found is None or BENIGN.search(line) else found


@cache
def load_rules() -> Rules:
    text = tables.text("causes/patterns.toml")
    rows = tomllib.loads(text)["pattern"]
    patterns = tuple(
        Pattern(
            label=row["label"],
            cause=row["cause"],
            strength=row["strength"],
            scope=row["scope"],
            severity=row.get("severity"),
            expression=row["re"],
            unless=row.get("unless"),
            source=row["source"],
        )
        for row in rows
    )
    words: dict[str, set[int]] = {}
    wordless: list[tuple[int, re.Pattern[str]]] = []
    for n, row in enumerate(rows):
        flags = re.ASCII | re.MULTILINE | (re.IGNORECASE if row["re"].startswith("(?i)") else 0)
        for alternative in alternatives(row["re"].removeprefix("(?i)")):
            if word := word_of(alternative):
                words.setdefault(word, set()).add(n)
            else:
                wordless.append((n, re.compile(alternative, flags)))
    return Rules(patterns, {word: frozenset(ids) for word, ids in words.items()}, tuple(wordless), tuple(row["re"] for row in rows))


@cache
def sweep() -> Any:
    """A hyperscan database over the same patterns; None without the package. Making it takes a fifth of a second."""
    if hyperscan is None:
        return None
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    rows = load_rules().expressions
    flags = [hyperscan.HS_FLAG_MULTILINE | (hyperscan.HS_FLAG_CASELESS if row.startswith("(?i)") else 0) for row in rows]
    expressions = [row.removeprefix("(?i)").encode() for row in rows]
    database.compile(expressions=expressions, ids=list(range(len(rows))), elements=len(rows), flags=flags)
    return database


def classify_lines(lines: Sequence[str], engine: Engine = "auto") -> list[Line]:
    """The lines that say something about a failure, in order.

    >>> classify_lines(["step 1", "OSError: [Errno 28] No space left on device"])[0].cause
    'storage'

    Raises RuntimeError when engine "hyperscan" is asked for and not installed.
    """
    return classify_blocks([lines], engine)


def classify_blocks(blocks: Iterable[Sequence[str]], engine: Engine = "auto") -> list[Line]:
    """`classify_lines` of a log that is not held in memory: lines in blocks, in order."""
    rules = load_rules()
    if engine == "hyperscan" and hyperscan is None:
        raise RuntimeError("engine 'hyperscan': the package hyperscan is not installed; use 'auto' or 're'")
    global _read
    context, read = Context(), 0
    for lines in blocks:
        _read += len(lines)
        sweeps = engine == "hyperscan" or (engine == "auto" and hyperscan is not None and _read > FEW_LINES)
        candidates = candidates_by_sweep if sweeps else candidates_by_words
        for start in range(0, len(lines), BLOCK_LINES):
            block = lines[start : start + BLOCK_LINES]
            context.add(block, classify_block(rules, block, read + start, candidates))
        read += len(lines)
    return context.found


Candidates = dict[int, set[int]]
"""Line of a block -> the patterns that may name it."""


def classify_block(rules: Rules, lines: Sequence[str], start: int, find: Callable[[Rules, str], Candidates]) -> list[Line]:
    text = "\n".join(lines)
    if text.count("\n") != len(lines) - 1 or len(text) > LINE_LIMIT * len(lines) // 8:
        lines = [line[:LINE_LIMIT].replace("\n", " ") for line in lines]
        text = "\n".join(lines)
    return [named for n, ids in sorted(find(rules, text).items()) if (named := name_line(rules, start + n, lines[n][:LINE_LIMIT], ids))]


def candidates_by_sweep(rules: Rules, text: str) -> Candidates:
    data = text.encode("utf-8", "replace")
    hits: list[tuple[int, int]] = []
    sweep().scan(data, match_event_handler=lambda id, _from, to, _flags, _context: hits.append((to, id)))
    hits.sort()
    candidates: Candidates = {}
    line, at = 0, 0
    for to, id in hits:
        line += data.count(b"\n", at, to)
        at = max(at, to)
        candidates.setdefault(line, set()).add(id)
    return candidates


def candidates_by_words(rules: Rules, text: str) -> Candidates:
    low = text.lower()
    candidates: Candidates = {}
    for word, ids in rules.words.items():
        line, last, at = 0, 0, low.find(word)
        while at >= 0:
            line += low.count("\n", last, at)
            candidates.setdefault(line, set()).update(ids)
            last = low.find("\n", at)
            at = low.find(word, last) if last >= 0 else -1
    for id, regex in rules.wordless:
        line, last = 0, 0
        for match in regex.finditer(text):
            line, last = line + text.count("\n", last, match.start()), match.start()
            for crossed in range(text.count("\n", match.start(), match.end()) + 1):
                candidates.setdefault(line + crossed, set()).add(id)
    return candidates


def name_line(rules: Rules, n: int, line: str, among: Iterable[int] | None = None) -> Line | None:
    pattern = rules.match(line, among)
    if pattern is None:
        return None
    if pattern.cause != "by_table":
        return Line(n + 1, line, pattern.label, cast(Cause, pattern.cause), pattern.strength)
    event = kernel.read_event(line)
    if event is None:
        return None
    strength: Strength = "strong" if event.cause == "gpu_hw" else "weak" if event.cause == "user_code" else "symptom"
    return Line(n + 1, line, event.label, cast(Cause, event.cause), strength)
