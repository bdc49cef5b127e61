"""Which links a job uses, and which jobs a bad link touches. Pure.

Owns the join of topology and placement. `exact` with static routes; without them, or with adaptive routing, all shortest paths: an upper bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec
from aegis_parsers.schema import Item

from aegis_netmon.topology import Device, Fabric, guid, host_of

Routes = Mapping[str, Mapping[int, int]]
"""Switch id -> LID -> output port."""
MANY_LEAVES = 64
"""Leaves of a job above which all paths up from them are taken for its shortest ones: the same in a fabric of two tiers, never less in any."""
MOST_BROKEN = 16


class Use(msgspec.Struct, frozen=True):
    """Links of a job. `exact`: no more than these are used. `absent`: hosts that the fabric does not show; `broken`: some routes that end nowhere."""

    links: frozenset[str]
    exact: bool
    absent: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


def routes(items: Iterable[Item]) -> dict[str, dict[int, int]]:
    """Tables of `dump_fts`."""
    found: dict[str, dict[int, int]] = {}
    for item in items:
        table = item.get("routes")
        if item.get("kind") == "switch" and isinstance(table, dict):
            found[guid(str(item["id"]))] = {int(key): port for key, port in table.items() if isinstance(port, int)}
    return found


def adapters(fabric: Fabric, hosts: Iterable[str], names: Mapping[str, str] | None = None) -> dict[str, list[Device]]:
    """The adapters of each host. `names`: GUID -> host, as the node daemons know it; else the first word of the adapter's description."""
    wanted = set(hosts)
    found: dict[str, list[Device]] = {host: [] for host in sorted(wanted)}
    for device in fabric.devices.values():
        if device.kind == "host":
            host = (names or {}).get(device.id) or host_of(device.name)
            if host in wanted:
                found[host].append(device)
    return found


def use(fabric: Fabric, hosts: Iterable[str], tables: Routes | None = None, *, adaptive: bool = False, names: Mapping[str, str] | None = None) -> Use:
    """The links that a job on these hosts may use. Rails are kept apart: an adapter speaks to those it can reach."""
    found = adapters(fabric, hosts, names)
    ends = [device for devices in found.values() for device in devices]
    links = {key for device in ends for key in fabric.of.get(device.id, ())}
    absent = tuple(host for host, devices in found.items() if not devices)
    leaves = {fabric.links[key].other(device.id) for device in ends for key in fabric.of.get(device.id, ())}
    if tables and not adaptive:
        crossed, broken = routed(fabric, leaves, {device.lid: device.name for device in ends if device.lid is not None}, tables)
        return Use(frozenset(links | crossed), True, absent, broken)
    if len(leaves) > MANY_LEAVES:
        links |= above(fabric, leaves)
    else:
        for leaf in leaves:
            links |= shortest(fabric, leaf, leaves - {leaf})
    return Use(frozenset(links), len(leaves) < 2, absent)


def routed(fabric: Fabric, leaves: Iterable[str], targets: Mapping[int, str], tables: Routes) -> tuple[set[str], tuple[str, ...]]:
    """Links that packets to these LIDs cross from these leaves, by the switches' tables, and some routes that end nowhere. A switch looks each target
    up once, whoever sends: the work grows with leaves times targets, and a circle is walked once."""
    out = {end: (key, link.other(end[0])) for key, link in fabric.links.items() for end in (link.a, link.b)}
    links: set[str] = set()
    broken: list[str] = []
    known: dict[str, set[int]] = {}
    waiting = {leaf: set(targets) for leaf in leaves}
    while waiting:
        at, lids = waiting.popitem()
        lids -= known.setdefault(at, set())
        known[at] |= lids
        table, by_port = tables.get(at, {}), dict[int | None, set[int]]()
        for lid in lids:
            by_port.setdefault(table.get(lid), set()).add(lid)
        for port, group in by_port.items():
            crossed = out.get((at, port)) if port is not None else None
            if crossed is None:
                broken += [f"{fabric.devices[at].name or at} -> {targets[lid]}" for lid in sorted(group)[: MOST_BROKEN - len(broken)]]
                continue
            links.add(crossed[0])
            if fabric.tiers.get(crossed[1], 0) > 0:
                waiting.setdefault(crossed[1], set()).update(group)
    return links, tuple(broken)


def above(fabric: Fabric, leaves: Iterable[str]) -> set[str]:
    """Links on the ways up from these leaves, also to switches of the same tier: no shortest path between them uses another."""
    links: set[str] = set()
    waiting = list(leaves)
    seen = set(waiting)
    while waiting:
        at = waiting.pop()
        for key in fabric.of.get(at, ()):
            there = fabric.links[key].other(at)
            if fabric.tiers.get(there, 0) >= fabric.tiers.get(at, 0):
                links.add(key)
                if there not in seen:
                    seen.add(there)
                    waiting.append(there)
    return links


def shortest(fabric: Fabric, start: str, goals: set[str]) -> set[str]:
    """Links of all shortest paths between switches, from one to many. Looks no further than the farthest goal: all before it are known then."""
    steps = {start: 0}
    queue, missing = deque([start]), set(goals)
    while queue and missing:
        at = queue.popleft()
        for key in fabric.of.get(at, ()):
            there = fabric.links[key].other(at)
            if there not in steps and fabric.tiers.get(there, 0) > 0:
                steps[there] = steps[at] + 1
                queue.append(there)
                missing.discard(there)
    links: set[str] = set()
    back = deque(goal for goal in goals if goal in steps)
    seen = set(back)
    own = fabric.of.get(start, ())
    while back:
        at = back.popleft()
        if steps[at] == 1:  # a spine has a thousand links, and the first switch a few of them
            links.update(key for key in own if fabric.links[key].other(start) == at)
            continue
        for key in fabric.of.get(at, ()):
            there = fabric.links[key].other(at)
            if there in steps and steps[there] == steps[at] - 1:
                links.add(key)
                if there not in seen:
                    seen.add(there)
                    back.append(there)
    return links
