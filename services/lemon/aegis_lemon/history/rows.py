"""What an importer gives: rows of the documented format and what it could not read; and writing them as files."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .schema import TABLES, Problem


@dataclass
class Imported:
    """Rows as mappings from column to value; times in seconds since 1970, node lists joined by `;`."""

    jobs: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def problem(self, file: str, line: int, text: str) -> None:
        """A row that is left out."""
        self.problems.append(Problem(file, line, text))

    def write(self, out: Path) -> dict[str, int]:
        """jobs.csv, events.csv and nodes.csv in `out`, those that have rows; how many rows each has."""
        out.mkdir(parents=True, exist_ok=True)
        written = {}
        for name, table in TABLES.items():
            rows: list[dict[str, Any]] = getattr(self, name)
            if rows:
                with (out / f"{name}.csv").open("w", newline="") as file:
                    writer = csv.DictWriter(file, table.columns, restval="")
                    writer.writeheader()
                    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
            elif (out / f"{name}.csv").is_file():
                self.notes.append(f"{out / name}.csv was there before and stays")
            written[name] = len(rows)
        if not any(written.values()):
            self.notes.append("nothing that can be used: no file is written")
        return written
