"""Thresholds of the checks as data: limits.toml, each with unit, severity and source; over them those of a site (`AEGIS_CHECKS_LIMITS`, a file of the
same form: `value`, `severity`, or both)."""

from __future__ import annotations

import os
import tomllib
from functools import cache
from typing import Any, NamedTuple, get_args

from aegis_parsers.schema import Severity

VARIABLE = "AEGIS_CHECKS_LIMITS"


class Limit(NamedTuple):
    """`severity` is that of the finding beyond `value`."""

    value: float
    unit: str
    severity: Severity
    source: str


@cache
def _table() -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "limits.toml"), "rb") as file:  # importlib.resources takes longer to load than most checks
        table = tomllib.load(file)
    path = os.environ.get(VARIABLE, "").strip()
    if path and not problem(path):
        with open(path, "rb") as file:
            _over(table, tomllib.load(file))
    return table


def problem(path: str) -> str:
    """Why a site's file cannot be used, as a whole; "" when it can."""
    try:
        with open(os.path.join(os.path.dirname(__file__), "limits.toml"), "rb") as defaults, open(path, "rb") as file:
            _over(tomllib.load(defaults), tomllib.load(file))
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _over(table: dict[str, Any], site: dict[str, Any], name: str = "") -> None:
    """The site's values into the table. ValueError for what no check would read."""
    for key, value in site.items():
        where = f"{name}.{key}".lstrip(".")
        fits = type(value) in (int, float) if key == "value" else key == "severity" and value in get_args(Severity)
        if isinstance(table.get(key), dict) and isinstance(value, dict):
            _over(table[key], value, where)
        elif key in table and fits:
            table[key] = value
        else:
            raise ValueError(f"{where}: no limit of that name, or no such value")


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
