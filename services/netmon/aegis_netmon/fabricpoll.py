"""One reading of the whole fabric, from what infiniband-diags printed. Pure.

`ibnetdiscover` (both forms) gives the graph and the ports that are down; `ibqueryerrors --counters` lists every port that answered, `ibqueryerrors`
those that counted errors. A port that answered and is not among the latter has zeros; one that did not answer is unknown, never zero. Where no
machine may run these, a report of ibdiagnet gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from aegis_parsers.ib import counters
from aegis_parsers.schema import Item, Parsed, Value

from aegis_netmon.series import Poll
from aegis_netmon.topology import End, Fabric, build, guid

ZEROES = {row.name: 0 for row in counters.table().values() if row.perfquery and row.kind != "traffic" and row.name != "port_xmit_wait"}
"""Counters that ibqueryerrors prints when they are above its threshold, which is 0."""


class Reading(msgspec.Struct, frozen=True):
    """The fabric at `at` (seconds). `partial`: what is missing of it, in a sentence each; [] if it is whole."""

    at: float
    fabric: Fabric
    polls: tuple[Poll, ...]
    partial: tuple[str, ...] = ()


def read(at: float, ports: Parsed, nodes: Parsed | None = None, data: Parsed | None = None, errors: Parsed | None = None) -> Reading:
    """`ports`: `ibnetdiscover -p`; `nodes`: the long form; `data`: `ibqueryerrors --counters`; `errors`: `ibqueryerrors`. None: was not read."""
    fabric = build(ports.items)
    names = aliases(nodes.items if nodes else ())
    partial = [f"{what} was not read" for what, parsed in (("the error counters", errors), ("the data counters", data)) if parsed is None]
    polls = tuple(polls_of(at, data, errors, names)) if data is not None and errors is not None else ()
    missing = sorted({fabric.name(end) for end in ends(fabric)} - {fabric.name((poll.guid, poll.port)) for poll in polls}) if polls else []
    if missing:
        partial.append(f"{len(missing)} ports did not answer: {', '.join(missing[:8])}" + (" ..." if len(missing) > 8 else ""))
    return Reading(at, fabric, polls, tuple(partial))


def ends(fabric: Fabric) -> set[End]:
    """Both ends of every link."""
    return {end for link in fabric.links.values() for end in (link.a, link.b)}


def aliases(items: Iterable[Item]) -> dict[str, str]:
    """GUID of an adapter -> GUID of its port 1: some tools name one, some the other."""
    found = {}
    for item in items:
        node = str(item["id"]).rpartition(" port ")[0]
        own = item.get("own_port_guid")
        if item.get("kind") == "link" and node.startswith("H-") and isinstance(own, str):
            found[f"{guid(node)}/{item.get('port')}"] = guid(own)
    return found


def polls_of(at: float, data: Parsed, errors: Parsed, names: Mapping[str, str]) -> list[Poll]:
    """A poll per port that answered."""
    counted = {end_of(item, names): counts(item) for item in errors.items if item.get("kind") == "port"}
    found = []
    for item in data.items:
        if item.get("kind") == "port":
            end = end_of(item, names)
            found.append(Poll(end[0], end[1], at, {**ZEROES, **counts(item), **counted.pop(end, {})}))
    found += [Poll(end[0], end[1], at, values) for end, values in counted.items()]
    return found


def end_of(item: Item, names: Mapping[str, str]) -> End:
    own, port = guid(str(item.get("guid"))), item.get("port")
    number = port if isinstance(port, int) else 0
    return names.get(f"{own}/{number}", own), number


def counts(item: Item) -> dict[str, int | None]:
    found = item.get("counters")
    return {name: value for name, value in found.items() if isinstance(value, int)} if isinstance(found, dict) else {}


def of_perfquery(at: float, classic: Parsed | None, extended: Parsed | None, guids: Mapping[int, str]) -> list[Poll]:
    """Polls of `perfquery` and `perfquery -x`; `guids`: LID -> GUID. Where the device has 64-bit error counters these alone are used, and do not
    clamp; where it has none, the reply lacks them, and the classic ones stand beside the 64-bit traffic: one series per name all the same."""
    wide = {(item.get("lid"), item.get("port")): item for item in ports_of(extended)}
    narrow = {(item.get("lid"), item.get("port")): item for item in ports_of(classic)}
    found = []
    for key in sorted(wide.keys() | narrow.keys(), key=str):
        lid, port = key
        if not isinstance(lid, int) or lid not in guids or not str(port).isdigit():
            continue
        more = wide.get(key)
        whole = more is not None and more.get("errors_64bit", True) is True
        values = {**({} if whole else counts(narrow.get(key, {}))), **counts(more or {})}
        found.append(Poll(guids[lid], int(str(port)), at, values, wide=whole))
    return found


def ports_of(parsed: Parsed | None) -> list[Item]:
    """Ports of a perfquery, without the "ALL" of a switch, which adds narrow counters and is wrong."""
    return [item for item in parsed.items if item.get("kind") == "port" and item.get("port") != "ALL"] if parsed is not None else []


def of_db_csv(at: float, parsed: Parsed) -> Reading | None:
    """A reading from ibdiagnet2.db_csv alone: sections NODES, LINKS, PM_INFO, and PORTS for the GUIDs of adapters' ports. None: it lists no link."""
    rows = [(str(item.get("kind")), lowered(item)) for item in parsed.items]
    nodes = {guid(str(row.get("nodeguid"))): row for kind, row in rows if kind == "nodes"}
    names = {
        f"{guid(str(row.get('nodeguid')))}/{row.get('portnum')}": guid(str(row["portguid"]))
        for kind, row in rows
        if kind == "ports" and row.get("portguid") and nodes.get(guid(str(row.get("nodeguid"))), {}).get("nodetype") == 1
    }
    items: list[Item] = []
    for kind, row in rows:
        if kind == "links":
            both = [(guid(str(row.get(f"nodeguid{n}"))), row.get(f"portnum{n}")) for n in (1, 2)]
            for own, other in (both, both[::-1]):
                items.append(
                    {
                        **{"id": "", "kind": "link", "type": "CA" if nodes.get(own[0], {}).get("nodetype") == 1 else "SW"},
                        **{"guid": names.get(f"{own[0]}/{own[1]}", own[0]), "port": own[1], "name": nodes.get(own[0], {}).get("nodedesc")},
                        **{"peer_guid": names.get(f"{other[0]}/{other[1]}", other[0]), "peer_port": other[1]},
                    }
                )
    if not items:
        return None
    fabric = build(items)
    polls = tuple(msgspec.structs.replace(poll, guid=names.get(f"{poll.guid}/{poll.port}", poll.guid)) for poll in of_ibdiagnet(at, parsed))
    silent = sorted({fabric.name(end) for end in ends(fabric)} - {fabric.name((poll.guid, poll.port)) for poll in polls})
    partial = (f"{len(silent)} ports have no counters in the report: {', '.join(silent[:8])}",) if silent else ()
    return Reading(at, fabric, polls, partial)


def lowered(item: Item) -> dict[str, Value]:
    """Columns of a row by their names in small letters: their spelling changes between versions."""
    columns = item.get("columns")
    return {str(name).lower(): value for name, value in columns.items()} if isinstance(columns, dict) else {}


def of_ibdiagnet(at: float, parsed: Parsed) -> list[Poll]:
    """Polls of ibdiagnet2.db_csv, section PM_INFO: columns by their names; those that end in Ext or Extended are 64-bit."""
    found = []
    for item in parsed.items:
        columns = item.get("columns")
        if item.get("kind") != "pm_info" or not isinstance(columns, dict):
            continue
        row = lowered(item)
        values: dict[str, int | None] = {}
        wide = False
        for name, value in columns.items():
            known = counters.known(str(name))
            if known is not None and (isinstance(value, int) or value is None):
                values[known.name] = value
                wide = wide or (known.bits < 64 and str(name).lower().endswith(("ext", "extended")))
        port = row.get("portnumber", row.get("portnum"))
        if isinstance(port, int) and row.get("nodeguid"):
            found.append(Poll(guid(str(row["nodeguid"])), port, at, values, wide=wide))
    return found
