"""The ports of all hosts, poll after poll, each judged as it comes. Pure: no clock of its own, time is an argument.

A node whose daemon falls silent makes its ports unknown, never down. A port that was there and is not listed any more, in the same boot, is down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from aegis_proto.net import MOST_PORTS, Optics

from aegis_netmon import expected, flaps, health, hostpoll
from aegis_netmon.expected import Expected, Missing, Seen
from aegis_netmon.flaps import SET_BACK, History
from aegis_netmon.health import Health, Slow
from aegis_netmon.hostpoll import NodePoll, PortPoll
from aegis_netmon.limits import Limits, default
from aegis_netmon.series import Poll, Port, observe

SILENT_POLLS = 3.5
"""Polls without a word after which a node is silent."""
RAW_KEPT = 64
DOWNED = ("link_downed", "carrier_down")


class HostPort:
    """One port of one node: what is remembered of it, and its last judgement."""

    __slots__ = (
        *("aside", "at", "booted", "every", "expected", "firmware", "flap", "guid", "health"),
        *("note", "optics", "port", "raw", "seen", "slow", "was_up"),
    )

    def __init__(self, seen: Seen, guid: str) -> None:
        self.seen, self.guid = seen, guid
        self.port: Port | None = None
        self.flap = History()
        self.optics: Optics | None = None
        self.raw: deque[float] = deque(maxlen=RAW_KEPT)
        self.health: Health | None = None
        self.note = self.firmware = ""
        self.at, self.every = 0.0, 10.0
        self.booted: float | None = None
        self.expected = self.was_up = self.aside = False
        self.slow: Slow | None = None

    @property
    def name(self) -> str:
        """ "n1 mlx5_0 port 1": as the fabric side names an adapter's port."""
        return f"{self.seen.node} {self.seen.device} port {self.seen.port}"

    def silent(self, now: float) -> bool:
        return now - self.at > SILENT_POLLS * self.every


class Hosts:
    """`take` each poll; `expect` now and then. `ports` by (node, device, port); `by_guid`: those that have one."""

    def __init__(self, manifest: Sequence[Expected] = (), limits: Limits | None = None) -> None:
        self.manifest, self.limits = tuple(manifest), limits or default()
        self.ports: dict[tuple[str, str, int], HostPort] = {}
        self.by_guid: dict[tuple[str, int], HostPort] = {}
        self.of_node: dict[str, set[tuple[str, str, int]]] = {}
        self.adaptive: bool | None = None
        self.settings: dict[str, Mapping[str, Mapping[str, str]]] = {}
        """Node -> job -> NCCL's settings there."""
        self.missing: dict[tuple[str, str, int], Missing] = {}

    def take(self, poll: NodePoll) -> list[HostPort]:
        """The ports of one node after one more poll. An older poll than the last changes nothing."""
        known = self.of_node.setdefault(poll.node, set())
        if poll.settings or poll.node in self.settings:
            self.settings[poll.node] = poll.settings
        touched = []
        for one in poll.ports:
            key = (poll.node, one.seen.device, one.seen.port)
            port = self.ports.get(key)
            if port is None:
                port = self.ports[key] = HostPort(one.seen, one.guid)
                known.add(key)
            elif poll.at < port.at - SET_BACK:
                begin_anew(port, poll.at)
            elif poll.at <= port.at:
                continue
            self._took(port, one, poll)
            touched.append(port)
        self.sort(poll.node)
        gone = sorted(known - {(poll.node, one.seen.device, one.seen.port) for one in poll.ports})
        unread = {one.seen.device: one.note for one in poll.ports if one.note and one.seen.up is None and one.poll is None}
        for key in gone:
            port = self.ports[key]
            another = port.booted is not None and poll.booted is not None and abs(port.booted - poll.booted) > 60
            if another or key[1] in poll.excluded or len(known) > 2 * MOST_PORTS:
                self.forget(key)  # another boot: the machine may have been changed; or it is to be left alone; or no machine has so many
                continue
            if poll.at < port.at - SET_BACK:
                begin_anew(port, poll.at)
            if poll.at > port.at:
                why = unread.get(key[1]) or ("not there any more" if port.was_up else "not there")
                seen = msgspec.structs.replace(port.seen, up=None if key[1] in unread else False)
                self._took(port, PortPoll(seen, None, port.guid, why, None, ""), poll)
                touched.append(port)
        return touched

    def sort(self, node: str) -> None:
        """Which ports of a node are no part of the fabric: Ethernet beside InfiniBand, unless the manifest names them. Read, never judged."""
        ports = [self.ports[key] for key in self.of_node.get(node, ())]
        infiniband = any(port.seen.layer.lower() == "infiniband" for port in ports)
        for port in ports:
            aside = infiniband and expected.management(port.seen, self.manifest)
            if aside != port.aside:
                port.aside = aside
                self.judge(port, port.at)

    def _took(self, port: HostPort, one: PortPoll, poll: NodePoll) -> None:
        seen = one.seen if one.seen.layer else msgspec.structs.replace(one.seen, layer=port.seen.layer)
        port.seen, port.note, port.at, port.every, port.booted = seen, one.note, poll.at, poll.every, poll.booted
        port.firmware = one.firmware or port.firmware
        if one.guid:
            if port.guid != one.guid and self.by_guid.get((port.guid, one.seen.port)) is port:
                del self.by_guid[port.guid, one.seen.port]
            port.guid = one.guid
            owner = self.by_guid.get((one.guid, one.seen.port))
            if owner is None or owner.seen.node == one.seen.node or owner.silent(poll.at):
                self.by_guid[one.guid, one.seen.port] = port
            else:
                port.note = port.note or f"{owner.seen.node} tells of the same GUID: it is taken for its own"
        downed = 0
        if one.poll is not None:
            port.port = observe(None if port.port is not None and port.port.guid != one.poll.guid else port.port, one.poll)
            if port.port.steps and port.port.at == poll.at:
                downed = max(port.port.steps[-1].counts.get(name, 0) for name in DOWNED)
        port.flap = flaps.observe(port.flap, poll.at, one.seen.up, downed, boot=poll.booted, limits=self.limits.flap)
        port.was_up = port.was_up or bool(one.seen.up)
        if one.optics is not None:
            if port.optics is not None and port.optics.rawBer is not None:
                port.raw.append(port.optics.rawBer)
            port.optics = one.optics
        self.judge(port, poll.at)

    def judge(self, port: HostPort, now: float) -> None:
        """Judge it anew."""
        if port.aside:
            port.health = health.aside(port.guid, port.seen.port)
            return
        flap = flaps.judge(port.flap, now, self.limits.flap)
        counted = port.port or observe(None, Poll(port.guid or f"{port.seen.node}/{port.seen.device}", port.seen.port, now, {}))
        port.health = health.judge(
            counted,
            flap,
            gbps=port.seen.gbps,
            optics=hostpoll.optics_item(port.optics) if port.optics is not None else None,
            raw_history=tuple(port.raw),
            adaptive=self.adaptive,
            expected=port.expected,
            slow=port.slow,
            limits=self.limits,
        )

    def expect(self, now: float) -> list[HostPort]:
        """Which ports should be up, by the manifest, the peers, or (with too few peers) because they were; gives those that are judged anew."""
        heard = [port.seen for port in self.ports.values() if not port.silent(now)]
        self.missing = {(row.node, row.device, row.port): row for row in expected.missing(heard, self.manifest, self.limits.down)}
        changed = [port for row in self.missing.values() if (port := self._absent(row, now)) is not None]
        used = {(seen.node, seen.device, seen.port) for seen in expected.fabric_ports(heard, self.manifest)}
        peers: dict[tuple[str, int], int] = {}
        for _, device, number in used:
            peers[device, number] = peers.get((device, number), 0) + 1
        for key, port in self.ports.items():
            alone = not self.manifest and port.was_up and key in used and peers[key[1], key[2]] - 1 < self.limits.down.least_peers
            wanted = bool(port.seen.up) or key in self.missing or alone
            slow = slow_by(self.missing.get(key))
            if (wanted != port.expected or slow != port.slow) and not port.silent(now):
                port.expected, port.slow = wanted, slow
                self.judge(port, now)
                changed.append(port)
        return changed

    def _absent(self, row: Missing, now: float) -> HostPort | None:
        """A port that the manifest names and its node has never listed: it is down, as one that is not there any more."""
        key = (row.node, row.device, row.port)
        beside = next((self.ports[other] for other in self.of_node.get(row.node, ())), None)
        if key in self.ports or beside is None:
            return None
        port = self.ports[key] = HostPort(Seen(row.node, row.device, row.port, False, beside.seen.layer), "")
        self.of_node[row.node].add(key)
        port.at, port.every, port.booted, port.expected, port.note = beside.at, beside.every, beside.booted, True, "not there"
        port.flap = flaps.observe(port.flap, beside.at, False, boot=beside.booted, limits=self.limits.flap)
        self.judge(port, now)
        return port

    def forget(self, key: tuple[str, str, int]) -> None:
        """A port that was taken out."""
        port = self.ports.pop(key)
        self.of_node.get(key[0], set()).discard(key)
        if self.by_guid.get((port.guid, key[2])) is port:
            del self.by_guid[port.guid, key[2]]

    def silent_nodes(self, now: float) -> list[str]:
        """Nodes whose daemon has said nothing lately."""
        return sorted(node for node, keys in self.of_node.items() if keys and all(self.ports[key].silent(now) for key in keys))

    def forget_old(self, now: float, after: float) -> None:
        """Nodes of which nothing was heard for so many seconds."""
        for node in [node for node, keys in self.of_node.items() if all(now - self.ports[key].at > after for key in keys)]:
            self.settings.pop(node, None)
            for key in list(self.of_node.pop(node)):
                self.forget(key)

    def unread(self) -> Iterator[str]:
        """Ports that are not read, with the reason."""
        return (f"{port.name}: {port.note}" for _, port in sorted(self.ports.items()) if port.note)


def begin_anew(port: HostPort, at: float) -> None:
    """The clock of the bus was set back: its counters begin anew, and its dips are as long ago as they were."""
    port.port, port.flap, port.at = None, flaps.moved(port.flap, at - port.at), at - port.every


def slow_by(row: Missing | None) -> Slow | None:
    """Slower than the manifest says is certain; slower than the peers may be how the site is built."""
    if row is None or not row.slow:
        return None
    return Slow(row.reason, "critical" if row.by == "manifest" else "warning", f"gpud: expected rate, by the {row.by}")
