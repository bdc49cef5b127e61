"""The history that was heard, as files of the documented format, and how far the stream was read: one folder, one writer.

<folder>/jobs.csv, events.csv, nodes.csv   docs/history.md; `aegis lemon rank --history` reads them as they are
<folder>/kept.json                         era, sequence, what is open, and how long the files were then

Rows are added first, kept.json is replaced after: what a crash left behind it is cut off at the next start, and heard again. Without kept.json, or
in another era, all of it is made anew from what the streams still have; the rows of before stay in `old-<n>/`.
"""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from aegis_lemon.history.schema import TABLES

from .collector import Memory

log = logging.getLogger(__name__)

NAME = "kept.json"
APPENDED = ("jobs", "events")
MOST_OLD = 4


class Kept(msgspec.Struct):
    """`sizes`: bytes of each appended file when this was written."""

    era: str = ""
    seq: int = 0
    memory: msgspec.Raw = msgspec.Raw(b"{}")
    sizes: dict[str, int] = {}
    v: int = 1

    def known(self) -> Memory:
        """MsgspecError."""
        return msgspec.json.decode(self.memory, type=Memory)


class Files:
    """See the module. `kept` is what lies in kept.json, or empty; its `sizes` are never more than what of the files counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept = Kept()

    def open(self, era: str) -> Kept:
        """Read what is there, cut off what was not finished; begin anew in another era. OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            kept = msgspec.json.decode((self.folder / NAME).read_bytes(), type=Kept)
            kept.known()
        except FileNotFoundError:
            kept = Kept(era)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.error("%s cannot be read, the history is made anew: %s", self.folder / NAME, error)
            kept = Kept("?")
        if kept.era != era or kept.v != Kept().v:
            self._put_aside()
            kept = Kept(era)
        for table in APPENDED:
            path, size = self.folder / f"{table}.csv", kept.sizes.get(table, 0)
            if path.exists() and path.stat().st_size != size:
                if path.stat().st_size < size:
                    log.error("%s is shorter than it was: rows are lost", path)
                    kept.sizes[table] = path.stat().st_size
                else:
                    os.truncate(path, size)
            if not path.exists() or not path.stat().st_size:
                self._write(table, [])
                kept.sizes[table] = path.stat().st_size
        self.kept = kept
        return kept

    def _put_aside(self) -> None:
        olds = sorted(self.folder.glob("old-*"), key=lambda path: int(path.name[4:]) if path.name[4:].isdecimal() else 0)
        number = int(olds[-1].name[4:]) + 1 if olds else 1
        aside = self.folder / f"old-{number}"
        moved = [self.folder / f"{table}.csv" for table in APPENDED if (self.folder / f"{table}.csv").exists()]
        if moved:
            aside.mkdir()
            for path in moved:
                path.rename(aside / path.name)
        for old in olds[: max(0, len(olds) + 1 - MOST_OLD)]:
            for path in old.iterdir():
                path.unlink()
            old.rmdir()

    def add(self, seq: int, memory: bytes, jobs: list[dict[str, Any]], events: list[dict[str, Any]]) -> None:
        """Rows of what was heard up to `seq`, and then that it was heard; `memory` as it was at `seq`, encoded.

        OSError: none of it counts, what was written of it is cut off by the next call.
        """
        for table in APPENDED:
            path = self.folder / f"{table}.csv"
            if path.stat().st_size > self.kept.sizes[table]:
                os.truncate(path, self.kept.sizes[table])
        for table, rows in (("jobs", jobs), ("events", events)):
            if rows:
                columns = _columns(self.folder / f"{table}.csv")
                with open(self.folder / f"{table}.csv", "a", newline="", encoding="utf-8") as file:
                    csv.DictWriter(file, columns, restval="", extrasaction="ignore").writerows(rows)
                    file.flush()
                    os.fsync(file.fileno())
        sizes = {table: (self.folder / f"{table}.csv").stat().st_size for table in APPENDED}
        kept = Kept(self.kept.era, seq, msgspec.Raw(memory), sizes)
        partial = self.folder / f".{NAME}"
        with open(partial, "wb") as out:
            out.write(msgspec.json.encode(kept))
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, self.folder / NAME)
        self.kept = kept

    def nodes(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The registry, whole."""
        self._write("nodes", rows)

    def _write(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        partial = self.folder / f".{table}.csv"
        with open(partial, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, TABLES[table].columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(partial, self.folder / f"{table}.csv")

    def forget(self, before: float) -> int:
        """Drop rows that were over before `before` (seconds since 1970); how many. Times in our own rows are seconds. OSError."""
        dropped = 0
        for table, over in (
            ("jobs", 'coalesce(TRY_CAST("end" AS DOUBLE), 1e18)'),
            ("events", 'greatest(TRY_CAST("time" AS DOUBLE), coalesce(TRY_CAST("end" AS DOUBLE), 0))'),
        ):
            path, partial = self.folder / f"{table}.csv", self.folder / f".{table}.csv"
            source = f"read_csv('{_quoted(path)}', header=true, all_varchar=true)"
            try:
                with duckdb.connect(config={"threads": 1, "memory_limit": "512MB"}) as db:
                    found = db.execute(f"SELECT count(*) FROM {source} WHERE {over} < ?", [before]).fetchone()
                    if not found or not found[0]:
                        continue
                    db.execute(f"COPY (SELECT * FROM {source} WHERE {over} >= {float(before)!r}) TO '{_quoted(partial)}' (HEADER, DELIMITER ',')")
            except duckdb.Error as error:
                raise OSError(f"{path}: what is old could not be dropped: {error}") from error
            os.replace(partial, path)
            self.kept.sizes[table] = path.stat().st_size
            dropped += int(found[0])
        if dropped:
            self.add(self.kept.seq, self.kept.memory, [], [])
        return dropped


def _columns(path: Path) -> list[str]:
    """Of the version that began the file: what it did not know is left out."""
    with open(path, newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
