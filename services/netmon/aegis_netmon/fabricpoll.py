"""One reading of the whole fabric, from what infiniband-diags printed. Pure.

`ibnetdiscover` (both forms) gives the graph and the ports that are down; `ibqueryerrors --counters` lists every port that answered, `ibqueryerrors`
those that counted errors. A port that answered and is not among the latter has zeros; one that did not answer is unknown, never zero. Where no
machine may run these, a report of ibdiagnet gives the same (`dbcsv`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from aegis_parsers.ib import counters
from aegis_parsers.schema import Item, Parsed

from aegis_netmon.series import MOST, Poll
from aegis_netmon.topology import End, Fabric, build, guid

ZEROES = {row.name: 0 for row in counters.table().values() if row.perfquery and row.kind != "traffic" and row.name != "port_xmit_wait"}
"""Counters that ibqueryerrors prints when they are above its threshold, which is 0."""


MOST_NAMED = 8


class Reading(msgspec.Struct, frozen=True):
    """The fabric at `at` (seconds). `partial`: what is missing of it, in a sentence each; [] if it is whole. `optics`: bit error rates by port, in
    the words of mlxlink's parser; `below`: ports whose link could be faster, with what the tool says."""

    at: float
    fabric: Fabric
    polls: tuple[Poll, ...]
    partial: tuple[str, ...] = ()
    optics: Mapping[End, Item] = {}
    below: Mapping[End, str] = {}


def read(
    at: float, ports: Parsed, nodes: Parsed | None = None, data: Parsed | None = None, errors: Parsed | None = None, *, whole: bool = True
) -> Reading:
    """`ports`: `ibnetdiscover -p`; `nodes`: the long form; `data`: `ibqueryerrors --counters`; `errors`: `ibqueryerrors`, `whole` or cut off. None:
    was not read."""
    fabric = build(ports.items)
    names = aliases(nodes.items if nodes else ())
    partial = [f"{what} was not read" for what, parsed in (("the error counters", errors), ("the data counters", data)) if parsed is None]
    polls = tuple(polls_of(at, data, errors, names, whole))
    answered = {(poll.guid, poll.port) for poll in polls}
    if polls and (missing := ends(fabric) - answered):
        partial.append(some(f"{len(missing)} ports did not answer", {fabric.name(end) for end in missing}))
        if silent := {end[0] for end in missing} - {device for device, _ in answered}:
            partial.append(some(f"of {len(silent)} devices no port answered", {fabric.devices[device].name or device for device in silent}))
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


def some(what: str, names: Iterable[str]) -> str:
    """A sentence with the first of so many names."""
    shown = sorted(names)
    return f"{what}: {', '.join(shown[:MOST_NAMED])}" + (" ..." if len(shown) > MOST_NAMED else "")


def polls_of(at: float, data: Parsed | None, errors: Parsed | None, names: Mapping[str, str], whole: bool) -> list[Poll]:
    """A poll per port that answered. Of a listing of errors that is not `whole` nothing is said about ports that are not in it."""
    counted = {end_of(item, names): counts(item) for item in ports_of(errors)}
    zeroes = ZEROES if errors is not None and whole else {}
    found = []
    for item in ports_of(data):
        end = end_of(item, names)
        more = counted.pop(end, None)
        found.append(Poll(end[0], end[1], at, {**(zeroes if more is None else ZEROES), **counts(item), **(more or {})}))
    found += [Poll(end[0], end[1], at, values) for end, values in counted.items()]
    return found


def end_of(item: Item, names: Mapping[str, str]) -> End:
    own, port = guid(str(item.get("guid"))), item.get("port")
    number = port if isinstance(port, int) else 0
    return names.get(f"{own}/{number}", own), number


def counts(item: Item) -> dict[str, int | None]:
    found = item.get("counters")
    return {name: value for name, value in found.items() if isinstance(value, int) and value <= MOST} if isinstance(found, dict) else {}


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
    """Ports of a tool's answer, without the "ALL" of a switch, which adds narrow counters and is wrong."""
    return [item for item in parsed.items if item.get("kind") == "port" and item.get("port") != "ALL"] if parsed is not None else []
