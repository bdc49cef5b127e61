"""Files of the documented format into a `History`. CSV is read in pieces with the line of each row; Parquet by the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb

from aegis_lemon.csvrows import header, rows

from .schema import TABLES, HistoryError
from .store import History

PIECE = 50_000
"""Rows at a time: memory stays bounded whatever the length of a file."""
ENDINGS = (".parquet", ".csv")


def read(path: Path, *others: Path, more: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> History:
    """A folder with jobs, events and nodes (.csv or .parquet, each may be absent), or one such file, told by its columns; `others` are added to it.

    `more`: rows by table that are in no file, as of the jobs that go on.
    """
    history = History.empty()
    files: dict[str, str] = {}
    for source in (path, *others):
        for table, file in _found(source):
            files.setdefault(table, file.name)
            history.source(file.name if not others else f"{source}/{file.name}" if source.is_dir() else str(source))
            if file.suffix == ".parquet":
                _read_parquet(history, table, file)
            else:
                _read_csv(history, table, file)
    for table, added in (more or {}).items():
        if added:
            history.source(table)
            names = TABLES[table].columns
            history.add(table, range(1, len(added) + 1), {name: [str(row.get(name, "")) for row in added] for name in names})
    history.build(files)
    return history


def _found(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_dir():
        found = [(table, path / f"{table}{ending}") for table in TABLES for ending in ENDINGS if (path / f"{table}{ending}").is_file()]
        if not found:
            raise HistoryError(f"{path}: expected jobs.csv, events.csv or nodes.csv, or the same as .parquet")
        for table in TABLES:
            both = [file.name for name, file in found if name == table]
            if len(both) > 1:
                raise HistoryError(f"{path}: {' and '.join(both)}: which of them?")
        yield from found
    elif path.is_file():
        columns = _parquet_columns(path) if path.suffix == ".parquet" else _header(path)
        for table, shape in TABLES.items():
            if set(shape.required) <= set(columns):
                yield table, path
                return
        raise HistoryError(
            f"{path}: columns {', '.join(columns) or 'none'}: expected at least {'; or '.join(', '.join(t.required) for t in TABLES.values())}"
        )
    else:
        raise HistoryError(f"there is no file or folder {path}")


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        return [cell.lower() for cell in header(rows(lines))]


def _check_columns(history: History, table: str, name: str, columns: list[str]) -> None:
    missing = [column for column in TABLES[table].required if column not in columns]
    if missing:
        raise HistoryError(f"{name}: no column {', '.join(missing)}; there are {', '.join(columns) or 'none'}")
    twice = sorted({column for column in columns if columns.count(column) > 1 and column in TABLES[table].columns})
    if twice:
        raise HistoryError(f"{name}: column {', '.join(twice)} is there more than once")
    foreign = [column for column in columns if column not in TABLES[table].columns]
    if foreign:
        history.notes.append(f"{name}: columns not read: {', '.join(foreign)}")


def _read_csv(history: History, table: str, path: Path) -> None:
    columns = _header(path)
    _check_columns(history, table, path.name, columns)
    wanted = [(index, column) for index, column in enumerate(columns) if column in TABLES[table].columns]
    kept: list[list[str]] = []
    numbers: list[int] = []

    def put() -> None:
        history.add(table, numbers, {column: [row[index] for row in kept] for index, column in wanted})
        kept.clear()
        numbers.clear()

    with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        for line, row in islice(rows(lines), 1, None):
            if isinstance(row, str):
                history.problem(path.name, line, row)
            elif len(row) != len(columns):
                history.problem(path.name, line, f"{len(row)} cells, the header has {len(columns)}")
            else:
                kept.append(row)
                numbers.append(line)
            if len(kept) >= PIECE:
                put()
    if kept:
        put()


def _parquet_columns(path: Path) -> list[str]:
    try:
        described = duckdb.connect().execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(path)]).fetchall()
    except duckdb.Error as error:
        raise HistoryError(f"{path}: {str(error).splitlines()[0]}") from None
    return [str(row[0]) for row in described]


def _read_parquet(history: History, table: str, path: Path) -> None:
    columns = _parquet_columns(path)
    _check_columns(history, table, path.name, columns)
    wanted = [column for column in columns if column in TABLES[table].columns]
    described = history.rows_of("DESCRIBE SELECT * FROM read_parquet(?)", [str(path)])
    lists = {row[0] for row in described if str(row[1]).endswith("[]")}
    texts = [f"array_to_string(\"{c}\", ';')" if c in lists else f'CAST("{c}" AS VARCHAR)' for c in wanted]
    named = ", ".join(f'"{column}"' for column in wanted)
    lines = f"row_number() OVER () + 1 + {history.base}"
    try:
        history.db.execute(f"INSERT INTO raw_{table} (line, {named}) SELECT {lines}, {', '.join(texts)} FROM read_parquet(?)", [str(path)])
    except duckdb.Error as error:  # a page that is cut off or overwritten: the footer does not tell
        raise HistoryError(f"{path}: {str(error).splitlines()[0]}") from None
