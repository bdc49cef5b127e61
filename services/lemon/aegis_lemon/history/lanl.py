"""LANL's failure data (LA-UR-05-7318) into the documented format: outages of numbered nodes, no jobs. Reads a CSV or .xz file; latin-1."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aegis_lemon.csvrows import header, rows

from .rows import Imported
from .schema import HistoryError

ROLE_EVERY = 32
"""Node 0 and multiples of 32 of systems 18 to 20 fail far more often than the others: very likely what they do, not what they are."""


@dataclass(frozen=True)
class Outage:
    """Seconds since 1970 (as if UTC: the data have no zone), zero-based node."""

    line: int
    node: int
    start: float
    end: float | None
    cause: str


MOST_NODES = 100_000
"""The fleet is taken to have all numbers up to the highest: a number that cannot be would make it that large."""
COLUMNS = ("System", "nodenumz", "Prob Started", "Prob Fixed")
CAUSES = ("Facilities", "Hardware", "Human Error", "Network", "Undetermined", "Software")


def moment(text: str) -> float:
    """`6/21/2005 10:54` -> seconds."""
    return datetime.strptime(text.strip(), "%m/%d/%Y %H:%M").replace(tzinfo=UTC).timestamp()


def outages(path: Path, system: str, found: Imported) -> Iterator[Outage]:
    """Outages of one system; rows that cannot be read are counted in `found`."""
    try:
        with lzma.open(path, "rt", encoding="latin1") if path.suffix == ".xz" else path.open(encoding="latin1", newline="") as lines:
            yield from _outages(path.name, rows(lines), system, found)
    except (lzma.LZMAError, EOFError) as error:
        raise HistoryError(f"{path.name}: {error}") from None


def _outages(name: str, read: Iterator[tuple[int, list[str] | str]], system: str, found: Imported) -> Iterator[Outage]:
    columns = header(read)
    missing = [column for column in (*COLUMNS, *CAUSES) if column not in columns]
    if missing:
        raise HistoryError(f"{name}: no column {', '.join(missing)}: expected LANL's failure data (LA-UR-05-7318)")
    for line, cells in read:
        if isinstance(cells, str) or len(cells) < len(columns):
            found.problem(name, line, cells if isinstance(cells, str) else f"{len(cells)} cells, the header has {len(columns)}")
            continue
        row = dict(zip(columns, cells, strict=False))
        if row["System"].strip() != system:
            continue
        try:
            start, node = moment(row["Prob Started"]), int(row["nodenumz"])
        except ValueError:
            found.problem(name, line, f'node "{row["nodenumz"]}" from "{row["Prob Started"]}": expected a number and m/d/Y H:M')
            continue
        if not 0 <= node < MOST_NODES:
            found.problem(name, line, f"node {node}: expected 0 to {MOST_NODES - 1}")
            continue
        try:
            end: float | None = moment(row["Prob Fixed"])
        except ValueError:
            end = None
        if end is not None and end < start:
            found.problem(name, line, f"the clock went backwards: fixed at {row['Prob Fixed']}, started at {row['Prob Started']}")
            continue
        yield Outage(line, node, start, end, next((cause for cause in CAUSES if row[cause].strip()), ""))


def convert(path: Path, system: str, nodes: int | None = None) -> Imported:
    """One system. `nodes` is the size of the fleet (the data name only nodes that failed); by default the highest number seen + 1."""
    found = Imported()
    seen = list(outages(path, system, found))
    if not seen:
        found.notes.append(f"no outage of system {system}")
    count = nodes or max((row.node for row in seen), default=-1) + 1
    first = min((row.start for row in seen), default=0.0)
    for node in range(count):
        found.nodes.append({"node": f"n{node:04d}", "role": "first" if node % ROLE_EVERY == 0 else "", "since": first})
    for row in seen:
        if row.node < count:
            found.events.append({"time": row.start, "node": f"n{row.node:04d}", "kind": "outage", "end": row.end, "value": row.cause})
        else:
            found.problem(path.name, row.line, f"node {row.node}: the system has {count}")
    return found
