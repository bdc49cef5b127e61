"""ibdiagnet2.db_csv (sections by name, columns by header) and ibdiagnet's lines of text."""

from __future__ import annotations

import csv
import re

from ..schema import Draft, Value, lines_of, number

START = re.compile(r"^START_(?P<name>\w+)\s*$")
END = re.compile(r"^END_(?P<name>\w+)\s*$")
ENABLED = re.compile(r"(?P<what>Adaptive Routing|Hashed Based Forwarding|HBF|FRN|SHIELD) is enabled on (?P<count>\d{1,9}) switches", re.IGNORECASE)
INCREASED = re.compile(
    r'"(?P<counter>\w+)" increased during the run \(difference value=(?P<delta>\d{1,20}),difference allowed threshold=(?P<limit>\d{1,20})\)'
)
ERROR = re.compile(r"^-E-\s+(?P<text>.*)$")
WARNING = re.compile(r"^-W-\s+(?P<text>.*)$")
NOISE = re.compile(r"^-I-|^[-=\s]*$|^#|^[A-Z][\w /()-]*$|^Summary|^\S.*\bFinished Successfully")
WHERE = re.compile(r"(?:GUID=?\s*|port=?\s*|^)(?P<where>\S+?/[\w:/.]+|0x[0-9a-f]{6,16}(?:[:/]\d+)?)", re.IGNORECASE)


def looks(text: str) -> bool:
    return bool(re.search(r"^START_[A-Z]\w+$", text, re.M) or ENABLED.search(text) or INCREASED.search(text) or re.search(r"^-[IWE]- ", text, re.M))


def read(draft: Draft, text: str) -> None:
    section, header = "", list[str]()
    for n, line in enumerate(lines_of(text)):
        if match := START.match(line):
            if section:
                draft.unread(f"section {section} has no end")
            section, header = match["name"], []
        elif match := END.match(line):
            if match["name"] != section:
                draft.unread("an end without its start", line)
            section = ""
        elif section and line.strip():
            cells = next(csv.reader([line]), [])
            if not header:
                header = [cell.strip() for cell in cells]
            elif len(cells) != len(header):
                draft.unread(f"{section}: row of {len(cells)} cells under {len(header)} names", line)
            else:
                draft.item(f"{section}/{n + 1}", section.lower(), columns={name: cell_value(cell) for name, cell in zip(header, cells, strict=True)})
        elif line.strip():
            read_line(draft, line.strip())
    if section:
        draft.unread(f"section {section} has no end")


def cell_value(cell: str) -> Value:
    """Numbers as numbers, except names and GUIDs; an empty or N/A cell is None."""
    word = cell.strip().strip('"')
    if word.lower() in ("", "n/a", "na"):
        return None
    return number(word) if re.fullmatch(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", word) else word


def read_line(draft: Draft, line: str) -> None:
    if match := ENABLED.search(line):
        draft.item(match["what"].lower().replace(" ", "_"), "fabric", switches_enabled=int(match["count"]))
    elif match := INCREASED.search(line):
        where = WHERE.search(line[: match.start()])
        delta, limit = int(match["delta"]), int(match["limit"])
        name = f"{where['where']}/" if where else ""
        draft.item(f"{name}{match['counter']}", "increase", delta=delta, limit=limit)
        draft.finding("counter_increased", "warning", f"{name}{match['counter']}", line)
    elif match := ERROR.match(line):
        draft.finding("ibdiagnet_error", "warning", clip_item(match["text"]), line)
    elif match := WARNING.match(line):
        draft.finding("ibdiagnet_warning", "info", clip_item(match["text"]), line)
    elif not NOISE.match(line):
        draft.unread("line not understood", line)


def clip_item(text: str) -> str:
    where = WHERE.search(text)
    return where["where"] if where else text[:60]
