"""Ledgers from a CSV file: one row for each state that a run was in (docs/history.md). Broken rows are left out with their lines.

A run with a row missing has a gap or an overlap, and sums over it would be wrong: such a run is left out whole, and said.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from aegis_proto.phases import LedgerState

from aegis_lemon.csvrows import header, rows

from .measured import LedgerError, Run, Span

REQUIRED = ("job", "state", "start", "end")
OPTIONAL = ("stopped", "gpus", "priority", "cluster")
EARLIEST, LATEST = 0.0, 7_258_118_400.0  # 1970 and 2200, seconds
MOST_GPUS = 10_000_000
YES, NO = ("1", "true", "yes"), ("", "0", "false", "no")


@dataclass
class Ledgers:
    """`problems` are (line, what), in order of lines; line 0 is about a whole run."""

    runs: list[Run] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)


def moment(text: str) -> float:
    """Seconds since 1970 or ISO 8601 (UTC without a zone); ValueError names the forms."""
    try:
        value = float(text)
    except ValueError:
        try:
            when = datetime.fromisoformat(text.strip())
        except ValueError:
            raise ValueError(f'time "{text}": expected seconds since 1970 or ISO 8601') from None
        value = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if not EARLIEST <= value <= LATEST:
        raise ValueError(f'time "{text}": expected seconds since 1970 or ISO 8601')
    return value


def _span(row: dict[str, str]) -> Span:
    state = row["state"].strip().lower()
    if state not in set(LedgerState):
        raise ValueError(f'state "{row["state"]}": expected one of {", ".join(LedgerState)}')
    stopped = row.get("stopped", "").strip().lower()
    if stopped not in YES + NO:
        raise ValueError(f'stopped "{stopped}": expected 1 where a failure ended the run here, else 0')
    span = Span(LedgerState(state), moment(row["start"]), moment(row["end"]), stopped in YES)
    if span.end < span.start:
        raise ValueError(f"the clock went backwards: ends {span.start - span.end:g} s before it starts")
    if not row["job"].strip():
        raise ValueError("no job id")
    gpus = row.get("gpus", "").strip()
    if gpus and not (gpus.isdecimal() and len(gpus) <= 8 and int(gpus) <= MOST_GPUS):
        raise ValueError(f'gpus "{gpus}": expected a whole number, at most {MOST_GPUS}')
    return span


def read_ledgers(path: Path) -> Ledgers:
    """All runs of a file, in the order in which they first appear."""
    if not path.is_file():
        raise LedgerError(f"there is no file {path}")
    found = Ledgers()
    spans: dict[str, list[Span]] = defaultdict(list)
    about: dict[str, dict[str, str]] = {}
    broken: dict[str, int] = {}
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        read = rows(file)
        columns = [cell.lower() for cell in header(read)]
        missing = [name for name in REQUIRED if name not in columns]
        if missing:
            raise LedgerError(f"{path.name}: no column {', '.join(missing)}; there are {', '.join(columns) or 'none'}")
        for line, cells in read:
            row = {} if isinstance(cells, str) else dict(zip(columns, cells, strict=False))
            job = row.get("job", "").strip()
            try:
                if isinstance(cells, str) or len(cells) != len(columns):
                    raise ValueError(cells if isinstance(cells, str) else f"{len(cells)} cells, the header has {len(columns)}")
                spans[job].append(_span(row))
            except ValueError as error:
                found.problems.append((line, str(error)))
                broken.setdefault(job, line)
                continue
            about.setdefault(job, row)
    for job, mine in spans.items():
        if job in broken and mine:
            found.problems.append((0, f"run {job} is left out: its ledger is not whole without line {broken[job]}"))
        elif mine:
            row = about[job]
            ordered = tuple(sorted(mine, key=lambda span: (span.start, span.end)))
            try:
                found.runs.append(Run(job, ordered, int(row.get("gpus") or 0), row.get("priority", "").strip(), row.get("cluster", "").strip()))
            except LedgerError as error:
                found.problems.append((0, str(error)))
    if not found.runs:
        shown = "; ".join(f"line {line}: {text}" if line else text for line, text in found.problems[:3])
        raise LedgerError(f"{path.name} holds no run that can be measured" + (f": {shown}" if shown else ""))
    return found
