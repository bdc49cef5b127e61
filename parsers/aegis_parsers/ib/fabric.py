"""The fabric as infiniband-diags list it: iblinkinfo (per node and -l), ibnetdiscover (topology and -p), dump_fts.

A port that is down is listed and not judged: most ports of a switch have no cable, and only an expected set can tell. "Could be" is judged against
the other links of the same listing and kind: where all say it, that is how the fabric is built.
"""

from __future__ import annotations

import re
from collections import Counter

from ..schema import Draft, Item

STATE = r"==\(\s*(?:(?P<width>\d+X)\s+(?P<speed>[\d.]+ \w+|\S+))?\s*(?P<state>[A-Za-z]+)/\s*(?P<phys>[A-Za-z]+)\s*\)==>"
LINK = re.compile(
    r'^\s*(?:(?P<guid>0x[0-9a-fA-F]+)\s+)?(?:"(?P<name>[^"]*)"\s+)?(?P<lid>\d+)\s+(?P<port>\d+)\[[^\]]*\]\s+'
    + STATE
    + r'\s*(?:(?P<peer_guid>0x[0-9a-fA-F]+)\s+)?(?:(?P<peer_lid>\d+)\s+(?P<peer_port>\d+))?\s*\[[^\]]*\]\s*"(?P<peer>[^"]*)"\s*\((?P<note>.*)\)\s*$'
)
HOST = re.compile(r"\b(?:mlx\d_\w+|HCA-\d+|hfi1_\d+|ib\d+)\s*$")
NODE = re.compile(r"^(?P<type>CA|Switch|Router):\s+(?:(?P<guid>0x[0-9a-fA-F]+)\s+)?(?P<name>.*?):?\s*$")


def looks_iblinkinfo(text: str) -> bool:
    return bool(re.search(r"==\([^)\n]*/[^)\n]*\)==>", text)) and "Link info:" not in text


def read_iblinkinfo(draft: Draft, text: str) -> None:
    node: dict[str, str | None] = {}
    for line in text.split("\n"):
        if match := LINK.match(line):
            g = match.groupdict()
            guid = g["guid"] or node.get("guid")
            draft.item(
                f"{guid or g['lid']} port {g['port']}",
                "link",
                guid=guid,
                name=(g["name"] or node.get("name") or "").strip() or None,
                type=node.get("type"),
                lid=int(g["lid"][:9]),
                port=int(g["port"][:9]),
                width=g["width"],
                speed=g["speed"],
                state=g["state"],
                phys_state=g["phys"],
                peer_guid=g["peer_guid"],
                peer_lid=int(g["peer_lid"][:9]) if g["peer_lid"] else None,
                peer_port=int(g["peer_port"][:9]) if g["peer_port"] else None,
                peer=g["peer"] or None,
                could_be=re.findall(r"Could be ([\dX. A-Za-z]+?)(?= Could|$)", g["note"].strip()) or None,
            )
        elif match := NODE.match(line):
            node = {"guid": match["guid"], "name": match["name"], "type": {"CA": "CA", "Switch": "SW", "Router": "RT"}[match["type"]]}
        elif line.strip():
            draft.unread("line not understood", line)
    judge_links(draft, [item for item in draft.items if item["kind"] == "link"])


def judge_links(draft: Draft, links: list[Item]) -> None:
    up = [link for link in links if link["state"] == "Active"]
    alike: dict[bool, Counter[tuple[str, str]]] = {}
    for link in up:
        alike.setdefault(to_host(link), Counter())[str(link["width"]), str(link["speed"])] += 1
    for link in up:
        others = alike[to_host(link)]
        if link["could_be"] and (others.total() < 3 or (link["width"], link["speed"]) != others.most_common(1)[0][0]):
            draft.finding(
                "ib_link_degraded",
                "warning",
                str(link["id"]),
                f"{link['name']} port {link['port']} - {link['peer']}: {link['width']} {link['speed']}, could be {link['could_be']}",
            )
    for link in links:
        if link["state"] in ("Initialize", "Initializing", "Armed"):
            draft.finding("ib_port_not_active", "warning", str(link["id"]), f"{link['name']} port {link['port']}: {link['state']}")


def to_host(link: Item) -> bool:
    """Whether an end is an adapter, by its type or its description ("node06 mlx5_0", "gpu-3 HCA-1"): links between switches are of another kind."""
    return link["type"] == "CA" or any(HOST.search(str(link[end] or "")) for end in ("name", "peer"))


PORT_LINE = re.compile(
    r"^(?P<type>CA|SW|RT)\s+(?P<lid>\d+)\s+(?P<port>\d+)\s+(?P<guid>0x[0-9a-fA-F]+)\s+(?P<width>\S+)\s+(?P<speed>\S+)\s*"
    r"(?:-\s+(?P<peer_type>CA|SW|RT)\s+(?P<peer_lid>\d+)\s+(?P<peer_port>\d+)\s+(?P<peer_guid>0x[0-9a-fA-F]+)\s*)?(?P<names>.*)$"
)
PEERS = re.compile(r"^\(\s*'(?P<a>.*)'\s+-\s+'(?P<b>.*)'\s*\)\s*$")
SECTION = re.compile(r'^(?P<type>Switch|Ca|Rt)\s+(?P<ports>\d+)\s+"(?P<node>[^"]+)"\s*#\s*"(?P<name>[^"]*)"(?:.*?\blid (?P<lid>\d+))?')
EDGE = re.compile(
    r'^\[(?P<port>\d+)\](?:\((?P<own>[0-9a-f]+)\))?\s+"(?P<peer>[^"]+)"\[(?P<peer_port>\d+)\](?:\((?P<there>[0-9a-f]+)\))?\s*#\s*(?P<rest>.*)$'
)
EDGE_NOTE = re.compile(r'(?:lid (?P<own>\d+) lmc \d+ )?"(?P<name>[^"]*)" lid (?P<lid>\d+) (?P<width>\d+x)(?P<speed>\S+)')


def looks_ibnetdiscover(text: str) -> bool:
    return bool(re.search(r"^(?:CA|SW|RT)\s+\d+\s+\d+\s+0x[0-9a-f]+\s+\S+\s+\S+|^# Topology file: generated|^(?:switchguid|caguid)=0x", text, re.M))


def read_ibnetdiscover(draft: Draft, text: str) -> None:
    node = ""
    for line in text.split("\n"):
        if match := PORT_LINE.match(line):
            add_port(draft, match.groupdict())
        elif match := SECTION.match(line):
            node = match["node"]
            draft.item(
                node,
                "node",
                type=match["type"],
                ports=int(match["ports"][:9]),
                name=match["name"].strip(),
                lid=int(match["lid"][:9]) if match["lid"] else None,
            )
        elif (match := EDGE.match(line)) and node:
            note = EDGE_NOTE.search(match["rest"])
            fields = note.groupdict() if note else {}
            draft.item(
                f"{node} port {match['port']}",
                "link",
                port=int(match["port"][:9]),
                peer_node=match["peer"],
                peer_port=int(match["peer_port"][:9]),
                lid=int(fields["own"][:9]) if fields.get("own") else None,
                peer_lid=int(fields["lid"][:9]) if fields.get("lid") else None,
                own_port_guid=match["own"],
                peer_port_guid=match["there"],
                peer=(fields.get("name") or "").strip() or None,
                width=fields.get("width"),
                speed=fields.get("speed"),
                state="up",
            )
        elif line.strip() and not re.match(r"^#|^\w+=\S+|^\s+#", line):
            draft.unread("line not understood", line)


def add_port(draft: Draft, g: dict[str, str | None]) -> None:
    names = (g["names"] or "").strip()
    peers = PEERS.match(names)
    own = (peers["a"] if peers else names.strip("'")).strip()
    speed = g["speed"] or ""
    draft.item(
        f"{g['guid']} port {g['port']}",
        "link",
        type=g["type"],
        guid=g["guid"],
        lid=int((g["lid"] or "0")[:9]),
        port=int((g["port"] or "0")[:9]),
        name=own,
        width=None if "?" in (g["width"] or "") else g["width"],
        speed=None if "?" in speed else speed,
        state="up" if g["peer_guid"] else "down",
        peer_guid=g["peer_guid"],
        peer_lid=int(g["peer_lid"][:9]) if g["peer_lid"] else None,
        peer_port=int(g["peer_port"][:9]) if g["peer_port"] else None,
        peer=peers["b"].strip() if peers else None,
    )


FTS_HEAD = re.compile(r"^Unicast lids \[.*?\] of switch .*?guid (?P<guid>0x[0-9a-fA-F]+) \((?P<name>.*)\):")
FTS_ROW = re.compile(r"^(?P<lid>0x[0-9a-fA-F]{1,6}) (?P<port>\d{3}) : \((?P<type>.*?) portguid (?P<guid>0x[0-9a-fA-F]+): '(?P<name>.*)'\)")
FTS_NOISE = re.compile(r"^\s*$|^\s+Lid  Out|^\s+Port\s+Info|^\d+ (?:valid )?lids dumped")


def looks_dump_fts(text: str) -> bool:
    return bool(re.search(r"^Unicast lids \[", text, re.M))


def read_dump_fts(draft: Draft, text: str) -> None:
    """Each switch with its table: LID -> output port, and what stands behind the LID."""
    routes: dict[str, str | int | float | bool | list[object] | dict[str, object] | None] = {}
    table: dict[str, int] = {}
    for line in text.split("\n"):
        if match := FTS_HEAD.match(line):
            table = {}
            routes = draft.item(match["guid"], "switch", name=match["name"])  # type: ignore[assignment]
            routes["routes"] = table  # type: ignore[assignment]
        elif match := FTS_ROW.match(line):
            if not routes:
                draft.unread("a route before any switch", line)
            table[str(int(match["lid"], 16))] = int(match["port"])
        elif not FTS_NOISE.match(line):
            draft.unread("line not understood", line)
