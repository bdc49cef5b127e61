"""What a dead queue pair means: NCCL's status 12 (vendor err 129), joined with what both ends' ports saw. Pure.

`of_incident` asks it of a failure of a job: of the ports of its nodes, and of every link that it uses for sure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from aegis_proto.phases import LostReason

from aegis_netmon import flaps
from aegis_netmon.correlate import Incident, PortEvent, symptom
from aegis_netmon.flaps import Dip
from aegis_netmon.picture import JobUse, Picture
from aegis_netmon.topology import End

LAUNCH_S = 120.0
"""A queue pair that dies before its job has run so long, and before anything worked, was never connected (ours)."""


DIED = frozenset({LostReason.KILLED, LostReason.SIGNAL, LostReason.NODE_LOST, LostReason.GPU_LOST, LostReason.PREEMPTED, LostReason.RESTARTED})
"""Ends of a worker that leave its peers with queue pairs that answer no more."""


WAITED = frozenset({LostReason.HUNG, LostReason.COLLATERAL})
"""Ends that a watchdog brings, minutes after what it waited for."""


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
    lag: float = 60.0,
) -> TransportVerdict:
    """A queue pair died at `at`. `worked`: something had gone over it before; `dips` and `events` are of the ports of both ends; `peer_died`: when
    the other process ended, if it did; `lag`: seconds from its death until it was noticed, at most."""
    bears = flaps.retry_seconds(timeout, retries)
    words = f"NCCL_IB_TIMEOUT {timeout} x NCCL_IB_RETRY_CNT {retries}"
    begun = at - bears - lag
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
    died = peer_died is not None and peer_died <= at
    if died:  # then its peers' queue pairs die as well
        near = [event for event in near if not symptom(event)]
    if near:
        worst = max(near, key=lambda event: (not symptom(event), event.count))
        text = f"{worst.counter} of {worst.end[0]} port {worst.end[1]} rose by {worst.count} in the poll before"
        return TransportVerdict("link", True, text)
    if peer_died is not None and died:
        return TransportVerdict("peer", False, f"the other process ended {at - peer_died:.0f} s before: its queue pairs answer no more")
    if not worked and at - started < LAUNCH_S:
        return TransportVerdict("connectivity", False, "nothing had worked yet: addresses (GID index), partition or routing, not a link that broke")
    return TransportVerdict("unknown", False, "no event of either port and no death of the other side is known: not called network")


def of_incident(incident: Incident, events: Iterable[PortEvent], picture: Picture) -> TransportVerdict:
    """A failure of a job held against the dips and counters of its own ports, with the settings of its NCCL."""
    dips: dict[str, Sequence[Dip]] = {}
    ends: set[End] = set()
    for node in incident.nodes:
        for key in picture.hosts.of_node.get(node, ()):
            port = picture.hosts.ports[key]
            if port.aside:
                continue
            ends.add((port.guid or f"{port.seen.node}/{port.seen.device}", port.seen.port))
            dips[port.name] = port.flap.dips
    used = picture.uses.get(incident.job)
    for crossed in incident.links or ():
        link = picture.watch.links.get(crossed)
        if link is None or not (link.tier == 0 or (used is not None and used.exact)):
            continue
        ends.update((link.a, link.b))
        if (history := picture.watch.flaps.get(crossed)) is not None:
            names = (f"{picture.watch.names.get(end[0]) or end[0]} port {end[1]}" for end in (link.a, link.b))
            dips.setdefault(" - ".join(names), history.dips)
    limits = picture.hosts.limits.common
    told = picture.settings(JobUse(incident.job, "", incident.nodes)) or {}
    return judge(
        incident.at,
        started=incident.started,
        worked=incident.worked,
        dips=dips,
        events=[event for event in events if event.end in ends],
        peer_died=incident.at if incident.cause in DIED else None,
        timeout=number(told.get("NCCL_IB_TIMEOUT"), 20),
        retries=number(told.get("NCCL_IB_RETRY_CNT"), 7),
        lag=limits.lag_s if incident.cause in WAITED else limits.slack_s,
    )


def number(text: str | None, usual: int) -> int:
    """A setting as the job has it; NCCL's own where it is not told or out of its range."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 2 and int(text) < 32 else usual
