"""The fabric as a graph of ports, from what its tools list; and who uses which link. Pure.

Built from the items of `ibnetdiscover` (both forms) or `iblinkinfo -l`. A link has one id, whichever end named it. Static routes (`dump_fts`) say
which links a pair of hosts crosses, exactly; without them, or with adaptive routing, every shortest path may be used: an upper bound.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec
from aegis_parsers.ib.fabric import HOST
from aegis_parsers.schema import Item

Kind = Literal["host", "switch"]
UNFIT = re.compile(r"[^A-Za-z0-9_-]")
"""What no token of a subject has."""
End = tuple[str, int]
"""A device and one of its ports."""


class Device(msgspec.Struct, frozen=True):
    """A host adapter's port or a switch. `id`: GUID as 16 hex digits; of an adapter that of its port."""

    id: str
    name: str
    kind: Kind
    lid: int | None = None


class Link(msgspec.Struct, frozen=True):
    """A cable. `tier` 0: between a host and a leaf; n: between switches of tier n and n+1 (a leaf is tier 1)."""

    id: str
    a: End
    b: End
    width: str | None = None
    speed: str | None = None
    tier: int = 0

    def other(self, device: str) -> str:
        return self.b[0] if self.a[0] == device else self.a[0]


class Fabric(msgspec.Struct, frozen=True):
    """Devices by id, links by id, the links of each device, and its free ports that are down."""

    devices: Mapping[str, Device]
    links: Mapping[str, Link]
    of: Mapping[str, tuple[str, ...]]
    tiers: Mapping[str, int]
    down: frozenset[End] = frozenset()

    def name(self, end: End) -> str:
        """ "leaf2 port 5": for a person."""
        device = self.devices.get(end[0])
        return f"{device.name if device and device.name else end[0]} port {end[1]}"


def guid(text: str | None) -> str:
    """A GUID in any tool's spelling as 16 hex digits: "0x200003", "S-0000000000200003".

    >>> guid("0x200003")
    '0000000000200003'
    """
    digits = re.sub(r"^(?:0x|[shr]-)", "", (text or "").strip().lower())
    return digits.zfill(16)


def link_id(a: End, b: End) -> str:
    """One id for both directions, fit for a subject."""
    (one, p), (other, q) = sorted((a, b))
    return UNFIT.sub("_", f"{one}-{p}-{other}-{q}")


def build(items: Iterable[Item]) -> Fabric:
    """The fabric of one listing (or several of the same fabric). Links of which only one end is listed are kept."""
    devices: dict[str, Device] = {}
    links: dict[str, Link] = {}
    down: set[End] = set()
    rows = list(items)
    deep = {str(item["id"]): item for item in rows if item.get("kind") == "node"}
    by_lid = {number: guid(word(item.get("guid"))) for item in rows if item.get("guid") and (number := lid(item.get("lid")))}
    for item in rows:
        if item.get("kind") == "link":
            for nth, (device, ends) in enumerate(ends_of(item, deep, by_lid)):
                if nth == 0 or device.id not in devices:  # a device's own row knows it best
                    devices[device.id] = device
                if ends is None:
                    down.add((device.id, as_int(item.get("port"))))
                else:
                    key = link_id(*ends)
                    a, b = sorted(ends)
                    links.setdefault(key, Link(key, a, b, word(item.get("width")), word(item.get("speed"))))
    of: dict[str, list[str]] = {}
    for link in links.values():
        for end in (link.a, link.b):
            of.setdefault(end[0], []).append(link.id)
    tiers = tiers_of(devices, links, of)
    placed = {key: msgspec.structs.replace(link, tier=min(tiers.get(link.a[0], 0), tiers.get(link.b[0], 0))) for key, link in links.items()}
    return Fabric(devices, placed, {device: tuple(keys) for device, keys in of.items()}, tiers, frozenset(down))


def ends_of(item: Item, deep: Mapping[str, Item], by_lid: Mapping[int, str]) -> Iterator[tuple[Device, tuple[End, End] | None]]:
    """Devices that a row names, each with the row's ends (None: this port is down). Where a tool names the peer by its LID alone, other rows tell its
    GUID; a peer that no row is about is called by its LID."""
    if (peer := word(item.get("peer_node"))) is not None:
        yield from of_section(str(item["id"]), item, peer, deep)
        return
    own = guid(word(item.get("guid")))
    kind: Kind = "host" if item.get("type") == "CA" or (item.get("type") is None and host_name(word(item.get("name")))) else "switch"
    here = Device(own, word(item.get("name")) or "", kind, lid(item.get("lid")))
    peer_guid, peer_lid = word(item.get("peer_guid")), lid(item.get("peer_lid"))
    if peer_guid is None and peer_lid is None:
        yield here, None
        return
    there = guid(peer_guid) if peer_guid else by_lid.get(peer_lid or 0, f"lid{peer_lid}")
    ends = ((own, as_int(item.get("port"))), (there, as_int(item.get("peer_port"))))
    yield here, ends
    name = word(item.get("peer")) or ""
    yield Device(there, name, "host" if host_name(name) and kind == "switch" else "switch", peer_lid), ends


def of_section(id: str, item: Item, peer: str, deep: Mapping[str, Item]) -> Iterator[tuple[Device, tuple[End, End] | None]]:
    """A row of the deep form of ibnetdiscover. Adapters are named by their node there, and by their port elsewhere: the port's GUID is used."""
    node = id.rpartition(" port ")[0]
    ends = ((port_guid(node, item, "own"), as_int(item.get("port"))), (port_guid(peer, item, "peer"), as_int(item.get("peer_port"))))
    for name, end, key in ((node, ends[0], "lid"), (peer, ends[1], "peer_lid")):
        told = deep.get(name, {})
        kind: Kind = "host" if name.startswith("H-") else "switch"
        yield (
            Device(end[0], word(told.get("name")) or "", kind, lid(item.get(key)) or lid(told.get("lid"))),
            ends,
        )


def port_guid(node: str, item: Item, whose: str) -> str:
    return guid(word(item.get(f"{whose}_port_guid")) if node.startswith("H-") and item.get(f"{whose}_port_guid") else node)


def host_name(name: str | None) -> bool:
    """Whether a node description is an adapter's: "node06 mlx5_0", "gpu-3 HCA-1"."""
    return bool(name and HOST.search(name))


def host_of(name: str) -> str:
    """The host of an adapter's description: its first word."""
    return name.split(" ", maxsplit=1)[0] if name else ""


def tiers_of(devices: Mapping[str, Device], links: Mapping[str, Link], of: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Distance to the nearest host: 0 a host, 1 a leaf, 2 a spine ..."""
    tiers = {device.id: 0 for device in devices.values() if device.kind == "host"}
    queue = deque(tiers)
    while queue:
        at = queue.popleft()
        for key in of.get(at, ()):
            there = links[key].other(at)
            if there not in tiers:
                tiers[there] = tiers[at] + 1
                queue.append(there)
    return tiers


def word(value: object) -> str | None:
    """A text of a tool; descriptions are anybody's, so nothing in them is for a terminal."""
    return "".join(c if c.isprintable() else " " for c in value[:200]) if isinstance(value, str) and value else None


def as_int(value: object) -> int:
    return value if isinstance(value, int) else 0


def lid(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
