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
LONGEST = 16
"""Hops after which a route is a loop."""


class Use(msgspec.Struct, frozen=True):
    """Links of a job, `hosts` that were found in the fabric and those that were not. `exact`: no more than these are used."""

    links: frozenset[str]
    exact: bool
    absent: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


class Touched(msgspec.Struct, frozen=True):
    """A job that a link touches. `certain`: it does (a host's own link, or a static route), or it may."""

    job: str
    certain: bool


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
    if tables and not adaptive:
        broken = []
        for source in ends:
            for target in ends:
                if source is not target:
                    crossed = walk(fabric, source, target, tables)
                    if crossed is None:
                        broken.append(f"{source.name} -> {target.name}")
                    else:
                        links.update(crossed)
        return Use(frozenset(links), True, absent, tuple(broken))
    leaves = {fabric.links[key].other(device.id) for device in ends for key in fabric.of.get(device.id, ())}
    for leaf in leaves:
        links |= shortest(fabric, leaf, leaves - {leaf})
    return Use(frozenset(links), len(leaves) < 2, absent)


def walk(fabric: Fabric, source: Device, target: Device, tables: Routes) -> set[str] | None:
    """Links from one adapter to another by the switches' tables; None: the tables lead nowhere."""
    crossed: set[str] = set()
    at = source.id
    for _ in range(LONGEST):
        if at == target.id:
            return crossed
        if at == source.id:
            key = next(iter(fabric.of.get(at, ())), None)
        else:
            port = tables.get(at, {}).get(target.lid or -1)
            key = next((key for key in fabric.of.get(at, ()) if port is not None and (at, port) in (fabric.links[key].a, fabric.links[key].b)), None)
        if key is None:
            return None
        crossed.add(key)
        at = fabric.links[key].other(at)
    return None


def shortest(fabric: Fabric, start: str, goals: set[str]) -> set[str]:
    """Links of all shortest paths between switches, from one to many."""
    steps = {start: 0}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        for key in fabric.of.get(at, ()):
            there = fabric.links[key].other(at)
            if there not in steps and fabric.tiers.get(there, 0) > 0:
                steps[there] = steps[at] + 1
                queue.append(there)
    links: set[str] = set()
    back = deque(goal for goal in goals if goal in steps)
    seen = set(back)
    while back:
        at = back.popleft()
        for key in fabric.of.get(at, ()):
            there = fabric.links[key].other(at)
            if there in steps and steps[there] == steps[at] - 1:
                links.add(key)
                if there not in seen:
                    seen.add(there)
                    back.append(there)
    return links


def touched(link: str, uses: Mapping[str, Use], fabric: Fabric) -> list[Touched]:
    """The jobs that a link touches, certain ones first."""
    host_link = link in fabric.links and fabric.links[link].tier == 0
    rows = [Touched(job, host_link or used.exact) for job, used in uses.items() if link in used.links]
    return sorted(rows, key=lambda row: (not row.certain, row.job))
