"""What a dead queue pair means: NCCL's status 12 (vendor err 129), joined with what both ends' ports saw. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from aegis_netmon import flaps
from aegis_netmon.correlate import PortEvent
from aegis_netmon.flaps import Dip

LAUNCH_S = 120.0
"""A queue pair that dies before its job has run so long, and before anything worked, was never connected (ours)."""


class TransportVerdict(msgspec.Struct, frozen=True):
    """`cause`: connectivity (never worked), link (a port event of an end), peer (the other side died), unknown. `network` only with a port event."""

    cause: Literal["connectivity", "link", "peer", "unknown"]
    network: bool
    reason: str


def judge(
    at: float,
    *,
    started: float,
    worked: bool,
    dips: Mapping[str, Sequence[Dip]],
    events: Sequence[PortEvent] = (),
    peer_died: float | None = None,
    timeout: int = 20,
    retries: int = 7,
) -> TransportVerdict:
    """A queue pair died at `at`. `worked`: something had gone over it before; `dips` and `events` are of the ports of both ends; `peer_died`: when
    the other process ended, if it did."""
    bears = flaps.retry_seconds(timeout, retries)
    words = f"NCCL_IB_TIMEOUT {timeout} x NCCL_IB_RETRY_CNT {retries}"
    begun = at - bears - 60
    close = [(name, dip) for name, own in dips.items() for dip in own if dip.start <= at and (dip.end or at) >= begun]
    if close:
        name, dip = max(close, key=lambda row: (row[1].end or at) - row[1].start)
        length = (dip.end or at) - dip.start
        if flaps.survives(dip, at, timeout, retries):
            text = f"{name} was down for {length:.0f} s, which {words} ({bears:.0f} s) should have borne: look for a second loss or a lower setting"
        else:
            text = f"{name} was down for {length:.0f} s, longer than {words} bears ({bears:.0f} s)"
        return TransportVerdict("link", True, text)
    near = [event for event in events if begun <= event.at <= at + event.seconds]
    if near:
        worst = max(near, key=lambda event: event.count)
        text = f"{worst.counter} of {worst.end[0]} port {worst.end[1]} rose by {worst.count} in the poll before"
        return TransportVerdict("link", True, text)
    if peer_died is not None and peer_died <= at:
        return TransportVerdict("peer", False, f"the other process ended {at - peer_died:.0f} s before: its queue pairs answer no more")
    if not worked and at - started < LAUNCH_S:
        return TransportVerdict("connectivity", False, "nothing had worked yet: addresses (GID index), partition or routing, not a link that broke")
    return TransportVerdict("unknown", False, "no event of either port and no death of the other side is known: not called network")
