"""perfquery, classic (`# Port counters`) and extended (-x), and the detail forms (-E, -D).

Counts since nobody knows when are facts, not events: the only finding is a classic counter at its cap. A reply without the error block of -x says
that the device has no 64-bit error counters: those are unknown.
"""

from __future__ import annotations

import re

from ..schema import Draft, Item, bare_lines_of
from . import counters

HEAD = re.compile(r"^#\s*(?P<kind>.*?) counters: (?:Lid (?P<lid>\d+)|DR path .*?) port (?P<port>\d+|ALL)", re.IGNORECASE)
FIELD = re.compile(r"^(?P<name>\w+):\.*\s*(?P<value>\S*)\s*$")
SELECTORS = ("PortSelect", "CounterSelect", "CounterSelect2")


def looks(text: str) -> bool:
    return bool(re.search(r"^#\s*Port\w*[\w ]* counters: |^Port(?:XmitData|RcvErrors):\.{3}|^SymbolErrorCounter:\.{3}|^perfquery: ", text, re.M))


def read(draft: Draft, text: str) -> None:
    blocks: list[tuple[str, str, str, dict[str, int]]] = []
    for line in bare_lines_of(text):
        if match := HEAD.match(line):
            blocks.append((match["kind"], match["lid"] or "?", match["port"], {}))
        elif re.search(r"iberror|failed|timed? ?out", line, re.I):
            draft.unread("port not read", line)
        elif match := FIELD.match(line):
            if not blocks:
                blocks.append(("", "?", "?", {}))
            if match["name"] in SELECTORS:
                continue
            value = match["value"]
            if value.isascii() and value.isdigit() and len(value) < 40:
                counter = counters.known(match["name"])
                blocks[-1][3][counter.name if counter else match["name"]] = int(value)
            else:
                draft.unread(f"lid {blocks[-1][1]} port {blocks[-1][2]}: {match['name']} has no number", value)
        elif line and not line.startswith("#"):
            draft.unread("line not understood", line)
    for kind, lid, port, values in blocks:
        add(draft, kind, lid, port, values)


def add(draft: Draft, kind: str, lid: str, port: str, values: dict[str, int]) -> None:
    id = f"lid {lid} port {port}"
    extended = "extended" in kind.lower()
    item: Item = draft.item(id, "port", block=kind, lid=int(lid) if lid.isdigit() else None, port=port, counters={**values})
    if not values:
        draft.unread(f"{id}: no counter")
    elif extended and "symbol_error" not in values:
        item["errors_64bit"] = False
    elif "port counters" in f"{kind} counters".lower():
        item["saturated"] = list(counters.note_saturation(draft, id, values)) if port != "ALL" else []
