"""Steps and long phases in what trainings print: the rows of `steplines.toml`. Pure; only the end of a chunk is read, so the cost is bounded."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

READ = 4096
"""Bytes of a chunk that are looked at: steps at its end are the newest."""
MAX_STEP = 2**53


@dataclass(frozen=True, slots=True)
class Row:
    """`patience` 0: the group `step` is a number of the training; else the line begins a phase that may be quiet so long (seconds)."""

    pattern: re.Pattern[bytes]
    patience: float
    counts: bool
    """The number is the step itself; false: only that it changes says something (a bar)."""


@dataclass(frozen=True, slots=True)
class Found:
    """The newest match of one row."""

    row: int
    value: bytes
    step: int
    patience: float


@lru_cache(maxsize=1)
def rows() -> tuple[Row, ...]:
    table = tomllib.loads((files("aegis_agent") / "steplines.toml").read_text())
    steps = [Row(re.compile(row["pattern"].encode()), 0.0, row.get("counts", True)) for row in table["step"]]
    phases = [Row(re.compile(row["pattern"].encode()), float(row["patience"]), False) for row in table["long"]]
    return (*steps, *phases)


def find(lines: bytes) -> Iterator[Found]:
    """The newest match of each row in the last `READ` bytes of `lines`. A line of a phase tells no step; one before the last step is over."""
    text = lines[-READ:]
    phases: list[tuple[int, int, Found]] = []  # begin and end of the line
    newest = -1
    for number, row in reversed(list(enumerate(rows()))):  # phases first
        matches = [match for match in row.pattern.finditer(text) if row.patience or not any(a <= match.start() < b for a, b, _ in phases)]
        if not matches:
            continue
        at = matches[-1].start()
        if row.patience:
            end = text.find(b"\n", at)
            phases.append((text.rfind(b"\n", 0, at) + 1, len(text) if end < 0 else end, Found(number, b"", -1, row.patience)))
            continue
        newest = max(newest, at)
        value = matches[-1]["step"]
        yield Found(number, value, min(int(value), MAX_STEP) if row.counts and value.isdigit() and len(value) < 17 else -1, 0.0)
    yield from (found for begin, _, found in phases if begin > newest)
