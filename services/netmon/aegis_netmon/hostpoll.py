"""What one host's ports say, as polls and as ports of a node. Pure: from a node daemon's message (`aegis_proto.net.NodePorts`).

A port without a GUID (RoCE, software drivers) is named by its node and device: its series is its own all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from aegis_parsers.schema import Item, clip
from aegis_proto.messages import BadMessage
from aegis_proto.net import ABSENT, MOST_NAMES, MOST_PORTS, NAME, NodePorts, Optics, PortCounts

from aegis_netmon.expected import Seen
from aegis_netmon.series import MOST, Poll

NOT_COUNTS = frozenset({"lifespan"})
"""Files among the counters that hold a setting."""
GUID = re.compile(r"[0-9a-f]{16}")
MOST_GBPS, MOST_MINUTES = 1e5, 1e8


class PortPoll(NamedTuple):
    """One port: `poll` None when no counter was read; `note` why."""

    seen: Seen
    poll: Poll | None
    guid: str
    note: str
    optics: Optics | None
    firmware: str


class NodePoll(NamedTuple):
    """One poll of one node. `at` in seconds by the clock of the bus; `booted` likewise, None when not known. `settings`: NCCL's, by job."""

    node: str
    at: float
    every: float
    booted: float | None
    ports: tuple[PortPoll, ...]
    settings: Mapping[str, Mapping[str, str]] = {}
    excluded: frozenset[str] = frozenset()


def read(node: str, at: float, told: NodePorts) -> NodePoll:
    """`at`: when the message was stored. BadMessage when it is no poll that can be read."""
    if len(told.ports) > MOST_PORTS or len(told.names) > MOST_NAMES or len(set(told.names)) != len(told.names):
        raise BadMessage(f"{node}: {len(told.ports)} ports, {len(told.names)} counters, or a counter twice")
    if len(told.boot) > 64:
        raise BadMessage(f"{node}: no id of a boot: {told.boot[:80]!r}")
    for name in told.names:
        if not NAME.fullmatch(name):
            raise BadMessage(f"{node}: no name of a counter: {name[:80]!r}")
    booted = at - (told.at - told.booted) / 1000 if told.booted and told.booted <= told.at else None
    ports = tuple(port_of(node, at, told, port) for port in told.ports)
    return NodePoll(node, at, max(1.0, min(told.every, 3600.0)), booted, ports, told.settings, frozenset(told.excluded))


def port_of(node: str, at: float, told: NodePorts, port: PortCounts) -> PortPoll:
    if not NAME.fullmatch(port.device) or not 0 <= port.port <= 255 or (port.guid and not GUID.fullmatch(port.guid)):
        raise BadMessage(f"{node}: no port: {port.device[:80]!r} {port.port} {port.guid[:40]!r}")
    if port.values and len(port.values) != len(told.names):
        raise BadMessage(f"{node} {port.device}: {len(port.values)} values of {len(told.names)} counters")
    values = {name: value for name, value in zip(told.names, port.values, strict=False) if value != ABSENT and name not in NOT_COUNTS}
    if any(value is not None and not 0 <= value <= MOST for value in values.values()):
        raise BadMessage(f"{node} {port.device}: a count below zero or above {MOST}")
    if not 0 <= (port.gbps or 0) <= MOST_GBPS:
        raise BadMessage(f"{node} {port.device}: numbers that no port has")
    poll = Poll(port.guid or f"{node}/{port.device}", port.port, at, values, f"{told.boot}.{port.load}") if values else None
    seen = Seen(node, port.device, port.port, up(port.state), clip(port.layer), port.gbps)
    fits = port.optics is None or numbers_fit(port.optics)
    note = clip(port.note) or ("" if fits else "mlxlink says numbers of it that no port has")
    optics = msgspec.structs.replace(port.optics, findings=tuple(map(clip, port.optics.findings[:8]))) if port.optics is not None and fits else None
    return PortPoll(seen, poll, port.guid, note, optics, clip(port.firmware))


def numbers_fit(optics: Optics) -> bool:
    """Rates, times and bit error rates that can be: what is computed with them stays a number."""
    shares = (optics.rawBer, optics.effectiveBer, optics.symbolBer)
    counts = (optics.effectiveErrors, optics.symbolErrors, *optics.lanes, *optics.fec.values())
    return (
        0 <= (optics.gbps or 0) <= MOST_GBPS
        and 0 <= (optics.minutes or 0) <= MOST_MINUTES
        and all(share is None or 0 <= share <= 1 for share in shares)
        and all(count is None or 0 <= count <= MOST for count in counts)
        and len(optics.lanes) <= 64
        and (optics.lastBin is None or 0 < optics.lastBin < 64)
        and all(key.isascii() and key.isdigit() and len(key) <= 3 for key in optics.fec)
    )


def up(state: str | None) -> bool | None:
    """Whether the port carries traffic; None if its state could not be read."""
    return None if state is None else state.upper() == "ACTIVE"


def optics_item(optics: Optics) -> Item:
    """What `health.judge` reads of mlxlink, in the words of its parser."""
    return {
        "minutes_since_clear": optics.minutes,
        "line_rate_gbps": optics.gbps,
        "raw_ber": optics.rawBer,
        "effective_ber": optics.effectiveBer,
        "symbol_ber": optics.symbolBer,
        "effective_errors": optics.effectiveErrors,
        "symbol_errors": optics.symbolErrors,
        "raw_errors_per_lane": list(optics.lanes) or None,
        "fec_histogram": dict(optics.fec) or None,
        "fec_last_bin": optics.lastBin,
    }
