"""ibqueryerrors: ports with counts above its thresholds; with --counters, the traffic of all.

Only lines of one port are used: the "port ALL" line of a switch adds narrow counters and is wrong (255 where one port has 1234). PortXmitWait is
congestion. The summary's count of bad nodes is held against those listed. A lifetime count above the usual sample limit is a warning, below it a
remark.
"""

from __future__ import annotations

import re

from ..schema import Draft
from . import counters

NODE = re.compile(r'^(?P<what>Errors|Data Counters) for (?:(?P<guid>0x[0-9a-fA-F]+) )?"(?P<name>[^"]*)"')
PORT = re.compile(r"^\s*GUID (?P<guid>0x[0-9a-fA-F]+) port (?P<port>\d+|ALL):\s*(?P<rest>.*)$")
COUNT = re.compile(r"\[(?P<name>\w+) == (?P<value>\d{1,25})(?: \([^)\]]*\))?\]")
SUMMARY = re.compile(r"^## Summary: (?P<nodes>\d+) nodes checked, (?P<bad>\d+) bad nodes found")
LINK = re.compile(r"^\s*Link info:\s*(?P<link>.*)$")
NOISE = re.compile(r"^##|^\s*$|^#")


def looks(text: str) -> bool:
    return bool(re.search(r"^\s*GUID 0x[0-9a-f]+ port (?:\d+|ALL):|^(?:Errors|Data Counters) for |^## Summary: \d+ nodes checked", text, re.M | re.I))


def read(draft: Draft, text: str) -> None:
    name: str | None = None
    named = 0
    for line in text.split("\n"):
        if match := NODE.match(line):
            name = match["name"]
            named += match["what"] == "Errors"
        elif match := PORT.match(line):
            if match["port"] != "ALL":
                add(draft, name, match["guid"], match["port"], match["rest"])
        elif match := LINK.match(line):
            if draft.items:
                draft.items[-1]["link"] = match["link"]
        elif match := SUMMARY.match(line):
            bad = int(match["bad"][:18])
            draft.item("summary", "summary", nodes=int(match["nodes"][:18]), bad_nodes=bad)
            if named != bad:
                draft.finding("listing_incomplete", "info", "summary", f"{bad} bad nodes by the summary, {named} listed")
            named = 0
        elif not NOISE.match(line):
            draft.unread("line not understood", line)


def add(draft: Draft, node: str | None, guid: str, port: str, rest: str) -> None:
    id = f"{guid} port {port}"
    values = {}
    for match in COUNT.finditer(rest):
        counter = counters.known(match["name"])
        values[counter.name if counter else match["name"]] = int(match["value"])
    item = draft.item(id, "port", guid=guid, port=int(port), node=node, counters={**values})
    left = COUNT.sub("", rest).strip()
    if left or not values:
        draft.unread(f"{id}: not understood", left)
    item["saturated"] = list(counters.note_saturation(draft, id, values))
    damage = {
        n: v
        for n, v in values.items()
        if v and (counter := counters.known(n)) and counter.kind in ("damage", "congestion") and counter.lifetime_warning
    }
    if damage:
        above = any(v > (counters.table()[n.lower()].lifetime_warning or 0) for n, v in damage.items())
        draft.finding(
            "ib_port_errors", "warning" if above else "info", id, f"{node or guid} port {port}: " + ", ".join(f"{n} {v}" for n, v in damage.items())
        )
