"""Which ports should be up, and which side of a cable is at fault. Pure.

A switch has ports without cables and a node has management ports, so that "down" alone says nothing: a manifest decides; where there is none, the
same device of the other nodes does. Ethernet ports of a node with InfiniBand are management unless the manifest names them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from aegis_netmon.limits import Down, default


class Seen(msgspec.Struct, frozen=True):
    """A port of a node as its poll saw it. `layer`: InfiniBand, Ethernet, OmniPath ...; "" where it could not be read."""

    node: str
    device: str
    port: int
    up: bool | None
    layer: str = "InfiniBand"
    gbps: float | None = None


class Expected(msgspec.Struct, frozen=True):
    """The manifest's word on a device of every node (or of one): `up`, and at which rate."""

    device: str
    port: int = 1
    gbps: float | None = None
    node: str = ""


class Missing(msgspec.Struct, frozen=True):
    """A port that should be up and is not, or is up and `slow`."""

    node: str
    device: str
    port: int
    reason: str
    by: Literal["manifest", "peers"]
    slow: bool = False


SUPPORTED = ("infiniband", "ethernet", "")


def fabric_ports(ports: Sequence[Seen], manifest: Sequence[Expected] = ()) -> list[Seen]:
    """The ports that training uses: without the Ethernet management ports and without what is not supported."""
    infiniband = {port.node for port in ports if port.layer.lower() == "infiniband"}
    return [port for port in ports if port.layer.lower() in SUPPORTED and not (port.node in infiniband and management(port, manifest))]


def management(port: Seen, manifest: Sequence[Expected] = ()) -> bool:
    """Whether a port is management if its node has InfiniBand: an Ethernet port that the manifest does not name."""
    return port.layer.lower() == "ethernet" and not any(
        (row.device, row.port) == (port.device, port.port) and row.node in ("", port.node) for row in manifest
    )


def missing(ports: Sequence[Seen], manifest: Sequence[Expected] = (), limits: Down | None = None) -> list[Missing]:
    """Ports that should be up and are not, or are slower than they should be. With a manifest it alone decides; without, the peers do: the same
    device and port of other nodes."""
    limits = limits or default().down
    found = []
    if manifest:
        seen = {(port.node, port.device, port.port): port for port in ports}
        for row in manifest:
            for node in [row.node] if row.node else sorted({port.node for port in ports}):
                found += of_manifest(seen.get((node, row.device, row.port)), row, node)
        return found
    used = fabric_ports(ports)
    up = Counter((port.device, port.port) for port in used if port.up)
    known = Counter((port.device, port.port) for port in used if port.up is not None)
    rates: dict[tuple[str, int], Counter[float]] = {}
    best: dict[str, float] = {}
    for port in used:
        if port.up and port.gbps:
            rates.setdefault((port.device, port.port), Counter())[port.gbps] += 1
            best[port.node] = max(best.get(port.node, 0.0), port.gbps)
    for port in used:
        if port.up and port.gbps and port.gbps < best[port.node]:
            found += of_rates(port, rates[port.device, port.port], limits)
        if port.up is not False:
            continue
        peers, of = up[port.device, port.port], known[port.device, port.port] - 1
        if of >= limits.least_peers and peers >= limits.peer_share * of:
            found.append(Missing(port.node, port.device, port.port, f"down, {peers} of {of} peers are up", "peers"))
    return found


def of_rates(port: Seen, rates: Mapping[float, int], limits: Down) -> list[Missing]:
    """A port that came up slower than nearly all of its peers, and than another port of its node: a node of an older kind is slower as a whole.
    `rates`: how many of the peers have which, itself among them."""
    own = port.gbps or 0.0
    faster, of = sum(count for gbps, count in rates.items() if gbps > own), sum(rates.values()) - 1
    if of < limits.least_peers or faster < limits.peer_share * of:
        return []
    return [Missing(port.node, port.device, port.port, f"{own:g} Gb/s, {faster} of {of} peers have more", "peers", True)]


def of_manifest(port: Seen | None, row: Expected, node: str) -> list[Missing]:
    if port is None:
        return [Missing(node, row.device, row.port, "not there", "manifest")]
    if port.up is False:
        return [Missing(node, row.device, row.port, "down", "manifest")]
    if row.gbps and port.gbps is not None and port.gbps < row.gbps:
        return [Missing(node, row.device, row.port, f"{port.gbps:g} Gb/s, expected {row.gbps:g}", "manifest", True)]
    return []


class Side(msgspec.Struct, frozen=True):
    """What to look at first. `suspect`: cable, a or b (transmitter or module of that side), a_device, b_device, upstream, none."""

    suspect: Literal["cable", "a", "b", "a_device", "b_device", "upstream", "none"]
    reason: str


RECEIVED = ("symbol_error", "port_rcv_errors", "link_error_recovery", "local_link_integrity_errors")
"""Errors that a receiver counts: what it says is about the other side's transmitter, the cable, and itself."""


def side(
    a: Mapping[str, int],
    b: Mapping[str, int],
    others_of_a: Sequence[bool] = (),
    others_of_b: Sequence[bool] = (),
    names: tuple[str, str] = ("a", "b"),
) -> Side:
    """Which side of a link is at fault, from what both ends counted in the same time.

    `others_of_a`: of the other links of a's device (or line card), whether each is bad as well. An end is a mapping of counter to rise. `names` of
    the ends, for the reason.
    """
    for who, others in (("a", others_of_a), ("b", others_of_b)):
        if len(others) >= 2 and sum(others) >= max(2, 0.5 * len(others)):
            which: Literal["a_device", "b_device"] = "a_device" if who == "a" else "b_device"
            device = names["ab".index(who)].rpartition(" port ")[0] or f"{who}'s device"
            return Side(which, f"{sum(others)} of {len(others)} other links of {device} are bad as well: not this cable")
    at_a, at_b = (sum(end.get(name, 0) for name in RECEIVED) for end in (a, b))
    if not at_a and not at_b:
        if a.get("port_rcv_remote_physical_errors") or b.get("port_rcv_remote_physical_errors"):
            return Side("upstream", "only packets that were marked bad before they came here: the damage is on another link")
        return Side("none", "neither end counted a receive error")
    if at_a and at_b and min(at_a, at_b) >= 0.05 * max(at_a, at_b):
        return Side("cable", f"both ends receive errors ({at_a} and {at_b}): the cable or a connector")
    near, far = names if at_a > at_b else names[::-1]
    reason = f"only {near} receives errors ({max(at_a, at_b)}): the transmitter of {far}, or the fibre from there; its own receiver last"
    return Side("b" if at_a > at_b else "a", reason)
