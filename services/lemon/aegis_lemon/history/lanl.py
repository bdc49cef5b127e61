"""LANL's failure data (LA-UR-05-7318) into the documented format: outages of numbered nodes, no jobs. Reads a CSV or .xz file; latin-1."""

from __future__ import annotations

import csv
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

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


COLUMNS = ("System", "nodenumz", "Prob Started", "Prob Fixed")
CAUSES = ("Facilities", "Hardware", "Human Error", "Network", "Undetermined", "Software")


def moment(text: str) -> float:
    """`6/21/2005 10:54` -> seconds."""
    return datetime.strptime(text.strip(), "%m/%d/%Y %H:%M").replace(tzinfo=UTC).timestamp()


def outages(path: Path, system: str, found: Imported) -> Iterator[Outage]:
    """Outages of one system; rows that cannot be read are counted in `found`."""
    with lzma.open(path, "rt", encoding="latin1") if path.suffix == ".xz" else path.open(encoding="latin1", newline="") as lines:
        reader = csv.DictReader(lines)
        try:
            missing = [name for name in (*COLUMNS, *CAUSES) if name not in (reader.fieldnames or [])]
        except lzma.LZMAError as error:
            raise HistoryError(f"{path.name}: {error}") from None
        if missing:
            raise HistoryError(f"{path.name}: no column {', '.join(missing)}: expected LANL's failure data (LA-UR-05-7318)")
        for row in reader:
            if any(row[name] is None for name in COLUMNS):
                found.problem(path.name, reader.line_num, "fewer cells than the header has")
                continue
            if row["System"].strip() != system:
                continue
            try:
                start, node = moment(row["Prob Started"]), int(row["nodenumz"])
            except ValueError:
                found.problem(path.name, reader.line_num, f'node "{row["nodenumz"]}" from "{row["Prob Started"]}": expected a number and m/d/Y H:M')
                continue
            try:
                end: float | None = moment(row["Prob Fixed"])
            except ValueError:
                end = None
            if end is not None and end < start:
                found.problem(path.name, reader.line_num, f"the clock went backwards: fixed at {row['Prob Fixed']}, started at {row['Prob Started']}")
                continue
            yield Outage(reader.line_num, node, start, end, next((cause for cause in CAUSES if (row[cause] or "").strip()), ""))


def convert(path: Path, system: str, nodes: int | None = None) -> Imported:
    """One system. `nodes` is the size of the fleet (the data name only nodes that failed); by default the highest number seen + 1."""
    found = Imported()
    rows = list(outages(path, system, found))
    if not rows:
        found.notes.append(f"no outage of system {system}")
    count = nodes or max((row.node for row in rows), default=-1) + 1
    first = min((row.start for row in rows), default=0.0)
    for node in range(count):
        found.nodes.append({"node": f"n{node:04d}", "role": "first" if node % ROLE_EVERY == 0 else "", "since": first})
    for row in rows:
        if row.node < count:
            found.events.append({"time": row.start, "node": f"n{row.node:04d}", "kind": "outage", "end": row.end, "value": row.cause})
        else:
            found.problem(path.name, row.line, f"node {row.node}: the system has {count}")
    return found
