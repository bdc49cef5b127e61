"""Which lines of a log say why something failed: patterns as data, one meaning, two engines.

`re` defines what a pattern means, one line at a time. With the `hyperscan` package installed, blocks of lines are first swept by it for candidates,
and only those are asked again with `re`: the answers are the same. A line is read up to LINE_LIMIT characters.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, resources
from typing import Any, Literal, cast, get_args

import msgspec

from .. import kernel
from ..schema import Severity

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
BENIGN = re.compile(r"NCCL INFO|^# (?:HELP|TYPE) |WARNING Nothing to do|NV_WARN_NOTHING_TO_DO|\blevel=(?:info|debug)\b|TORCH_USE_CUDA_DSA")
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
    """One table of patterns.toml."""

    label: str
    cause: str
    strength: Strength
    scope: str
    severity: Severity | None
    regex: re.Pattern[str]
    unless: re.Pattern[str] | None
    source: str

    def hits(self, line: str) -> bool:
        return self.regex.search(line) is not None and (self.unless is None or self.unless.search(line) is None)


@dataclass(frozen=True)
class Rules:
    """All patterns in order, and the engines over them."""

    patterns: tuple[Pattern, ...]
    any_of: re.Pattern[str]
    database: Any = field(default=None, compare=False)

    def match(self, line: str, among: Iterable[int] | None = None) -> Pattern | None:
        """The first pattern that names the line."""
        chosen = self.patterns if among is None else (self.patterns[i] for i in sorted(among))
        found = next((pattern for pattern in chosen if pattern.hits(line)), None)
        return None if found is None or BENIGN.search(line) else found


@cache
def load_rules() -> Rules:
    text = resources.files("aegis_parsers.causes").joinpath("patterns.toml").read_text()
    rows = tomllib.loads(text)["pattern"]
    patterns = tuple(
        Pattern(
            label=row["label"],
            cause=row["cause"],
            strength=row["strength"],
            scope=row["scope"],
            severity=row.get("severity"),
            regex=re.compile(row["re"]),
            unless=re.compile(row["unless"]) if "unless" in row else None,
            source=row["source"],
        )
        for row in rows
    )
    return Rules(patterns, re.compile("|".join(inline(row["re"]) for row in rows)), sweep(rows))


def inline(pattern: str) -> str:
    """The pattern as a part of an alternation: its leading (?i) holds for itself only."""
    return f"(?i:{pattern[4:]})" if pattern.startswith("(?i)") else f"(?:{pattern})"


def sweep(rows: Sequence[dict[str, str]]) -> Any:
    """A hyperscan database over the same patterns; None without the package."""
    if hyperscan is None:
        return None
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    flags = [hyperscan.HS_FLAG_MULTILINE | (hyperscan.HS_FLAG_CASELESS if row["re"].startswith("(?i)") else 0) for row in rows]
    expressions = [row["re"].removeprefix("(?i)").encode() for row in rows]
    database.compile(expressions=expressions, ids=list(range(len(rows))), elements=len(rows), flags=flags)
    return database


def classify_lines(lines: Sequence[str], engine: Engine = "auto") -> list[Line]:
    """The lines that say something about a failure, in order.

    >>> classify_lines(["step 1", "OSError: [Errno 28] No space left on device"])[0].cause
    'storage'

    Raises RuntimeError when engine "hyperscan" is asked for and not installed.
    """
    rules = load_rules()
    if engine == "hyperscan" and rules.database is None:
        raise RuntimeError("engine 'hyperscan': the package hyperscan is not installed; use 'auto' or 're'")
    if engine == "re" or rules.database is None:
        return [named for n, line in enumerate(lines) if rules.any_of.search(cut := line[:LINE_LIMIT]) and (named := name_line(rules, n, cut))]
    found: list[Line] = []
    for start in range(0, len(lines), BLOCK_LINES):
        found += classify_block(rules, lines[start : start + BLOCK_LINES], start)
    return found


def classify_block(rules: Rules, lines: Sequence[str], start: int) -> list[Line]:
    text = "\n".join(lines)
    if text.count("\n") != len(lines) - 1 or len(text) > LINE_LIMIT * len(lines) // 8:
        lines = [line[:LINE_LIMIT].replace("\n", " ") for line in lines]
        text = "\n".join(lines)
    data = text.encode("utf-8", "replace")
    hits: list[tuple[int, int]] = []
    rules.database.scan(data, match_event_handler=lambda id, _from, to, _flags, _context: hits.append((to, id)))
    if not hits:
        return []
    hits.sort()
    candidates: dict[int, set[int]] = {}
    line, at = 0, 0
    for to, id in hits:
        line += data.count(b"\n", at, to)
        at = max(at, to)
        candidates.setdefault(line, set()).add(id)
    return [named for n, ids in candidates.items() if (named := name_line(rules, start + n, lines[n][:LINE_LIMIT], ids))]


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
