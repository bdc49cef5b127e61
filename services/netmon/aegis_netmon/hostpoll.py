"""What one host's ports say, as polls and as ports of a node. Pure: from a live reading (`aegis_parsers.ib.live`).

A port without a GUID (RoCE, software drivers) is named by its node and device: its series is its own all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aegis_parsers.ib.live import PortReading

from aegis_netmon.expected import Seen
from aegis_netmon.series import Poll

NOT_COUNTS = ("lifespan",)
"""Files among the counters that hold a setting."""


class NodePoll(msgspec.Struct, frozen=True):
    """One poll of one node, for one message. `unread`: why a port was not read, by "device/port"."""

    node: str
    at: float
    polls: tuple[Poll, ...]
    seen: tuple[Seen, ...]
    unread: dict[str, str]


def read(node: str, at: float, boot: str, ports: Sequence[PortReading]) -> NodePoll:
    """`boot`: id of the boot and driver load; counters of another one start anew."""
    polls, seen, unread = [], [], {}
    for port in ports:
        if port.note:
            unread[f"{port.device}/{port.port}"] = port.note
        seen.append(Seen(node, port.device, port.port, up(port), port.layer or "InfiniBand", port.gbps))
        values = {name: value for name, value in port.counters.items() if name not in NOT_COUNTS}
        if values:
            polls.append(Poll(port.guid or f"{node}/{port.device}", port.port, at, values, boot))
    return NodePoll(node, at, tuple(polls), tuple(seen), unread)


def up(port: PortReading) -> bool | None:
    """Whether the port carries traffic; None if its state could not be read."""
    return None if port.state is None else port.state.upper() == "ACTIVE"
