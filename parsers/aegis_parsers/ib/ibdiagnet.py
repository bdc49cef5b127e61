"""ibdiagnet2.db_csv (sections by name, columns by header), ibdiagnet2.net_dump_ext (a table with colons), and ibdiagnet's lines of text."""

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
DUMP = re.compile(r"^Ty\s*:\s*#\s*:.*\bBER\b", re.IGNORECASE)
DUMPED = re.compile(r"^(?:SW|CA|RTR?)\s*:")
UNENDED = "a section has no end"
WHERE = re.compile(r"(?:GUID=?\s*|port=?\s*|^)(?P<where>\S+?/[\w:/.]+|0x[0-9a-f]{6,16}(?:[:/]\d+)?)", re.IGNORECASE)


def looks(text: str) -> bool:
    if re.search(r"^Ty\s*: *# *:", text, re.M):
        return True
    return bool(
        re.search(r"^START_[A-Z]\w+[ \t]*$", text, re.M) or ENABLED.search(text) or INCREASED.search(text) or re.search(r"^-[IWE]- ", text, re.M)
    )


def read(draft: Draft, text: str) -> None:
    section, header, dump = "", list[str](), list[str]()
    for n, line in enumerate(lines_of(text)):
        if match := START.match(line):
            if section:
                draft.unread(f"{UNENDED}: {section}")
            section, header = match["name"], []
        elif match := END.match(line):
            if match["name"] != section:
                draft.unread("an end without its start", line)
            section = ""
        elif section and line.strip():
            cells = next(csv.reader([line]), [])
            if line.startswith("#"):
                continue
            while header and len(cells) > len(header) and not cells[-1].strip():
                cells.pop()  # some versions end each row with a comma
            if not header:
                header = [cell.strip() for cell in cells]
                while header and not header[-1]:
                    header.pop()
            elif len(cells) != len(header):
                draft.unread(f"{section}: row of {len(cells)} cells under {len(header)} names", line)
            else:
                draft.item(f"{section}/{n + 1}", section.lower(), columns={name: cell_value(cell) for name, cell in zip(header, cells, strict=True)})
        elif DUMP.match(line):
            dump = [cell.strip() for cell in line.split(":")]
        elif dump and DUMPED.match(line):
            cells = [cell.strip().strip('"') for cell in line.split(":", len(dump) - 1)]  # a description may hold colons
            if len(cells) < len(dump):
                draft.unread(f"row of {len(cells)} cells under {len(dump)} names", line)
            else:
                draft.item(f"net_dump_ext/{n + 1}", "net_dump_ext", columns=dict(zip(dump, cells, strict=True)))
        elif line.strip():
            read_line(draft, line.strip())
    if section:
        draft.unread(f"{UNENDED}: {section}")
        if not text.endswith("\n") and draft.items and draft.items[-1]["kind"] == section.lower():
            draft.items.pop()  # its last number may be half of one


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
