"""Thresholds of the checks as data: limits.toml, each with unit, severity and source."""

from __future__ import annotations

import os
import tomllib
from functools import cache
from typing import Any, NamedTuple

from aegis_parsers.schema import Severity


class Limit(NamedTuple):
    """`severity` is that of the finding beyond `value`."""

    value: float
    unit: str
    severity: Severity
    source: str


@cache
def _table() -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "limits.toml"), "rb") as file:  # importlib.resources takes longer to load than most checks
        return tomllib.load(file)


def limit(name: str) -> Limit:
    """The limit of a dotted name ("io.free_bytes"); KeyError when there is none."""
    row: Any = _table()
    for part in name.split("."):
        row = row[part]
    return Limit(float(row["value"]), row["unit"], row["severity"], row["source"])


def limits(prefix: str) -> dict[str, Limit]:
    """All limits below a dotted name, by their last word."""
    row: Any = _table()
    for part in prefix.split("."):
        row = row[part]
    return {name: limit(f"{prefix}.{name}") for name in row}
