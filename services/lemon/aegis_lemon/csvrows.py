"""Rows of a CSV file with their lines: what the reader refuses is a row that is told, not the end of the file. Pure over an iterator of lines."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Any

LONGEST = 16 * 1024 * 1024
"""Characters of one cell: a job of 100,000 nodes."""


def rows(lines: Iterable[str], **dialect: Any) -> Iterator[tuple[int, list[str] | str]]:
    """(line on which it begins, cells) of each row that is not empty, the header included; in place of cells what is wrong with it."""
    reader = csv.reader(lines, **dialect)
    while True:
        line = reader.line_num + 1
        before = csv.field_size_limit(LONGEST)
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield line, str(error)
            continue
        finally:
            csv.field_size_limit(before)
        if row is None:
            return
        if row:
            yield line, row


def header(read: Iterator[tuple[int, list[str] | str]]) -> list[str]:
    """The cells of the first row, without the spaces around them; none where there is no such row."""
    _, first = next(read, (0, []))
    return [cell.strip() for cell in first] if isinstance(first, list) else []
