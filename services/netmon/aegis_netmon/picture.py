"""Every link as both sides tell it: hosts' own ports and the fabric's sweep joined on (GUID, port), with the jobs on it. Pure.

A link of the fabric has one line, with the host's port where an end is an adapter; a host's port that is in no graph has a line of its own. The
state is the worse of what the two sides say; where neither alarms, the one that knows more is believed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from aegis_parsers.ib.ber import line_rate_gbps
from aegis_parsers.schema import SEVERITIES
from aegis_proto.net import FindingInfo, LinkInfo, TouchedJob

from aegis_netmon import expected, flaps, health, users
from aegis_netmon.ber import worst as worst_ber
from aegis_netmon.hosts import HostPort, Hosts
from aegis_netmon.series import Port
from aegis_netmon.topology import End, Fabric, Link
from aegis_netmon.users import Use
from aegis_netmon.watch import ALARMS, ORDER, LinkVerdict, Watch, sums

ERRORS = expected.RECEIVED
DROPS = ("port_xmit_discards", "rx_drops")
RETRANSMITS = ("packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "roce_adp_retrans")
EMPTY = Fabric({}, {}, {}, {})


class Line:
    """One link: `link` None for a port whose other end is not known. `ports`: the hosts' own ports at its ends."""

    __slots__ = ("id", "link", "ports", "since", "state", "verdict")

    def __init__(self, id: str, link: Link | None, ports: tuple[HostPort, ...]) -> None:
        self.id, self.link, self.ports = id, link, ports
        self.verdict: LinkVerdict | None = None
        self.state: health.State = "unknown"
        self.since = 0.0


class JobUse(msgspec.Struct, frozen=True):
    """Where a job runs."""

    job: str
    namespace: str
    nodes: tuple[str, ...]
    uid: str = ""


class Picture:
    """`fabric` and `watch` after a sweep, `jobs` after a placement, `round` now and then; between them the lines are as the last round left them."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.fabric: Fabric = EMPTY
        self.watch = Watch()
        self.tables: users.Routes = {}
        self.adaptive: bool | None = None
        self.lines: dict[str, Line] = {}
        self.jobs: dict[str, JobUse] = {}
        self.uses: dict[str, Use] = {}
        self._verdicts: dict[str, LinkVerdict] = {}
        self._known: tuple[int, int, int] = (-1, -1, -1)
        self._ways: dict[tuple[str, ...], Use] = {}
        """Nodes -> what jobs on them use of the fabric; forgotten when its graph, its routes or the names of its adapters are others."""
        self._ways_of: object = None
        self._at = 0.0
        """Of the last round."""

    def routed(self, tables: users.Routes) -> None:
        """After the switches' tables were read."""
        self.tables = tables
        self._use()

    def routing(self, adaptive: bool | None) -> None:
        """Whether routing is adaptive (None: not known)."""
        if adaptive != self.adaptive:
            self.adaptive = self.hosts.adaptive = adaptive
            self._use()

    def swept(self, after: Watch, fabric: Fabric, verdicts: Iterable[LinkVerdict]) -> None:
        """After a sweep of the fabric."""
        self.watch, self.fabric = after, fabric
        self._verdicts = {verdict.link: verdict for verdict in verdicts}
        self._join()

    def adopt(self, watch: Watch) -> None:
        """What the holder of the lease before knew; what a sweep of ours said before that is not true any more."""
        self.watch, self._verdicts = watch, {}
        self._join()

    def placed(self, jobs: Iterable[JobUse]) -> None:
        """The jobs that run now, and where."""
        self.jobs = {job.job: job for job in jobs}
        self._use()

    def round(self, now: float) -> list[Line]:
        """Bring the lines up to date; those whose state changed."""
        self._at = now
        self.hosts.expect(now)
        known = (len(self.hosts.ports), len(self.hosts.by_guid), len(self.watch.links))
        if known != self._known:
            self._known = known
            self._join()
        changed = []
        for line in self.lines.values():
            state = self._state(line, now)
            if state != line.state:
                line.state, line.since = state, now
                changed.append(line)
        return changed

    # --- joining -----------------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        old, lines = self.lines, dict[str, Line]()
        taken: set[int] = set()
        links = {**self.watch.links, **self.fabric.links}
        for key, link in links.items():
            ports = tuple(port for end in (link.a, link.b) if (port := self.own(end)) is not None)
            taken.update(id(port) for port in ports)
            lines[key] = self._line(old, key, link, ports)
        for port in self.hosts.ports.values():
            if id(port) not in taken:
                key = port_id(port)
                lines[key] = self._line(old, key, None, (port,))
        self.lines = lines
        self._use()

    def own(self, end: End) -> HostPort | None:
        """The host's own port at this end of a link. None is at a switch: a daemon that names one speaks for what is not its own."""
        device = self.fabric.devices.get(end[0])
        return self.hosts.by_guid.get(end) if device is None or device.kind == "host" else None

    def _line(self, old: Mapping[str, Line], key: str, link: Link | None, ports: tuple[HostPort, ...]) -> Line:
        line = old.get(key)
        if line is None or line.ports != ports:
            new = Line(key, link, ports)
            if line is not None:
                new.state, new.since = line.state, line.since
            line = new
        line.link, line.verdict = link, self._verdicts.get(key)
        return line

    def names(self) -> dict[str, str]:
        """GUID of an adapter -> its node, as the daemons know it."""
        return {guid: port.seen.node for (guid, _), port in self.hosts.by_guid.items()}

    def _use(self) -> None:
        names, adaptive = self.names(), self.adaptive is not False
        shape = (self.fabric.links.keys(), self.tables, adaptive, names)
        if shape != self._ways_of:
            self._ways, self._ways_of = {}, shape
        nodes = {job.nodes for job in self.jobs.values()}
        self._ways = {key: self._ways.get(key) or users.use(self.fabric, key, self.tables, adaptive=adaptive, names=names) for key in nodes}
        by_node: dict[str, list[str]] = {}
        for line in self.lines.values():
            for port in line.ports:
                if not port.aside:
                    by_node.setdefault(port.seen.node, []).append(line.id)
        self.uses = {}
        for job in self.jobs.values():
            used = self._ways[job.nodes]
            own = {key for node in job.nodes for key in by_node.get(node, ())}
            absent = tuple(node for node in used.absent if node not in by_node)
            whole = used.exact and (len(job.nodes) < 2 or bool(self.fabric.links))
            self.uses[job.job] = Use(used.links | own, whole, absent, used.broken)

    def settings(self, job: JobUse) -> Mapping[str, str] | None:
        """NCCL's settings of a job, as a node of it tells; None where none does: not told is not unset."""
        told = (self.hosts.settings.get(node, {}).get(job.job) for node in job.nodes)
        return next((found for found in told if found is not None), None)

    def sent(self, nodes: Iterable[str], since: float) -> int:
        """Bits that the ports of these nodes sent since then, as far as their windows reach."""
        ports = [port.port for node in nodes for key in self.hosts.of_node.get(node, ()) if not (port := self.hosts.ports[key]).aside]
        return sum(step.xmit_bits or 0 for port in ports if port is not None for step in port.steps if step.at > since)

    # --- judging -----------------------------------------------------------------------------------------------------------------

    def _state(self, line: Line, now: float) -> health.State:
        told: list[health.State] = ["unknown" if port.silent(now) or port.health is None else port.health.state for port in line.ports]
        if line.verdict is not None:
            told.append(line.verdict.state)
        bad = [state for state in told if state in ALARMS]
        return max(bad, key=ORDER.index) if bad else min(told, key=ORDER.index, default="unknown")

    def touched(self, line: Line) -> tuple[TouchedJob, ...]:
        """The jobs on a link: certain ones first."""
        host = line.link is None or line.link.tier == 0
        rows = [TouchedJob(job, host or used.exact) for job, used in self.uses.items() if line.id in used.links]
        return tuple(sorted(rows, key=lambda row: (not row.certain, row.job)))

    def info(self, line: Line, now: float, jobs: Sequence[str] | None = None) -> LinkInfo:
        """A line as it is shown. `jobs`: only these are named."""
        a, b = self.ends(line)
        worst = max(
            (port for port in line.ports if port.health is not None and not port.silent(now)),
            key=lambda port: ORDER.index(port.health.state) if port.health else 0,
            default=None,
        )
        end, suspect, reason = self._suspect(line, worst)
        ports = [(name, port) for name, port, _ in self.counted(line)]
        mine, theirs = (self._sum(line, which) for which in (0, 1))
        seconds = max((sum(step.seconds for step in port.steps) for _, port in ports), default=0.0)
        sent, received = self.gbps(line)
        judged = [port.health.ber for port in line.ports if port.health is not None]
        ber = worst_ber(judged + ([line.verdict.ber] if line.verdict is not None and line.verdict.ber is not None else []))
        guids = [key[0] for key in (line.link.a, line.link.b)] if line.link else [line.ports[0].guid]
        touched = [job for job in self.touched(line) if jobs is None or job.job in jobs]
        return LinkInfo(
            line.id,
            line.state,
            a,
            b,
            guids[0],
            guids[1] if len(guids) > 1 else "",
            line.link.tier if line.link else -1,
            self.line_gbps(line),
            end,
            suspect,
            reason,
            ber.value if ber else None,
            ber.high if ber else None,
            rate(mine, theirs, RETRANSMITS, seconds),
            rate(mine, theirs, DROPS, seconds),
            sum(found.get(name, 0) for found in (mine, theirs) for name in ERRORS),
            max((port.health.flap.dips for port in line.ports if port.health is not None), default=0) or self._dips(line, now),
            sent,
            received,
            tuple(touched),
            tuple(self._findings(line, now)),
            tuple(sorted({port.seen.node for port in line.ports})),
            (*(("host",) if line.ports else ()), *(("fabric",) if line.link is not None else ())),
            int(line.since * 1000),
        )

    def ends(self, line: Line) -> tuple[str, str]:
        if line.link is None:
            return line.ports[0].name, ""
        of = {(port.guid, port.seen.port): port.name for port in line.ports}
        a, b = (of.get(end) or f"{self.watch.names.get(end[0]) or end[0]} port {end[1]}" for end in (line.link.a, line.link.b))
        return a, b

    def counted(self, line: Line) -> list[tuple[str, Port, str]]:
        """(name of the end, its counters, who reads them): the host's own while it tells them, else the sweep's."""
        if line.link is None:
            return [(port.name, port.port, "host") for port in line.ports if port.port is not None]
        names = self.ends(line)
        found = []
        for name, end in zip(names, (line.link.a, line.link.b), strict=True):
            told, swept = self._told(end), self.watch.ports.get(end)
            if told is not None:
                found.append((name, told, "host"))
            elif swept is not None:
                found.append((name, swept, "fabric"))
        return found

    def _told(self, end: End) -> Port | None:
        """The counters of a host's own port; None where its daemon has fallen silent: what it told last is no rate of now."""
        own = self.own(end)
        return own.port if own is not None and not own.silent(self._at) else None

    def _sum(self, line: Line, which: int) -> dict[str, int]:
        if line.link is None:
            return sums(line.ports[0].port) if which == 0 else {}
        end: End = (line.link.a, line.link.b)[which]
        return sums(self._told(end) or self.watch.ports.get(end))

    def gbps(self, line: Line) -> tuple[float, float]:
        """Gbit/s from a to b and back, over the window, by whichever end counts it."""
        for nth, (_, port, _) in enumerate(self.counted(line)):
            seconds = sum(step.seconds for step in port.steps)
            if seconds > 0 and any(step.xmit_bits is not None for step in port.steps):
                out = sum(step.xmit_bits or 0 for step in port.steps) / seconds / 1e9
                back = sum(step.rcv_bits or 0 for step in port.steps) / seconds / 1e9
                return (out, back) if nth == 0 else (back, out)
        return 0.0, 0.0

    def line_gbps(self, line: Line) -> float:
        """Its rate, by the graph or by the host; 0 where neither tells."""
        told = line_rate_gbps(line.link.speed, line.link.width) if line.link else None
        return told or max((port.seen.gbps or 0.0 for port in line.ports), default=0.0)

    def _dips(self, line: Line, now: float) -> int:
        history = self.watch.flaps.get(line.id)
        return flaps.judge(history, now, self.hosts.limits.flap).dips if history is not None else 0

    def _suspect(self, line: Line, worst: HostPort | None) -> tuple[str, str, str]:
        """(the end that says so, what to look at first, why)."""
        host = worst is not None and worst.health is not None and worst.health.state in ALARMS
        if line.verdict is not None and line.verdict.state in ALARMS and not (host and line.verdict.side.suspect == "none"):
            shown = {"none": "", "upstream": ""}.get(line.verdict.side.suspect, line.verdict.at_fault)
            return line.verdict.end, shown, line.verdict.side.reason
        if worst is None or worst.health is None or not host:
            return "", "", ""
        other = next((name for name in self.ends(line) if name != worst.name), "") or "the other end"
        if worst.health.state == "down":
            missing = self.hosts.missing.get((worst.seen.node, worst.seen.device, worst.seen.port))
            return worst.name, f"the cable {worst.name} - {other}", worst.note or (missing.reason if missing else "down")
        if worst.slow is not None:
            return worst.name, f"the cable {worst.name} - {other}", worst.slow.reason
        side = expected.side(sums(worst.port), {}, names=(worst.name, other))
        return worst.name, other if side.suspect == "b" else "", "" if side.suspect == "none" else side.reason

    def _findings(self, line: Line, now: float) -> list[FindingInfo]:
        found = []
        if line.verdict is not None:
            found += [FindingInfo(one.code, one.severity, one.story, line.verdict.end, one.source) for one in line.verdict.findings]
        for port in line.ports:
            if port.silent(now):
                found.append(FindingInfo("not_told", "info", f"its daemon has told nothing for {now - port.at:.0f} s", port.name))
            elif port.health is not None:
                found += [FindingInfo(one.code, one.severity, one.story, port.name, one.source) for one in port.health.findings]
                found += [FindingInfo("optics", "warning", told, port.name, "mlxlink") for told in (port.optics.findings if port.optics else ())]
        unique = {(one.code, one.end): one for one in found}
        return sorted(unique.values(), key=lambda one: -SEVERITIES.index(one.severity))


def rate(one: Mapping[str, int], other: Mapping[str, int], names: Sequence[str], seconds: float) -> float:
    return round(sum(found.get(name, 0) for found in (one, other) for name in names) / seconds, 3) if seconds > 0 else 0.0


def port_id(port: HostPort) -> str:
    """Id of a port that is in no graph, fit for a subject."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{port.seen.node}-{port.seen.device}-{port.seen.port}")


def order(lines: Iterable[Line]) -> list[Line]:
    """Alarms first, worst first; then by id."""
    return sorted(lines, key=lambda line: (-ORDER.index(line.state) if line.state in ALARMS else 1, line.id))


def find(picture: Picture, name: str) -> list[Line]:
    """Links that a name fits: an id, else ends as people write them, else a GUID, else a part of a name."""
    if (line := picture.lines.get(name)) is not None:
        return [line]
    wanted = name.lower().replace("/", " port ").removeprefix("0x")
    exact, begins, part = [], [], []
    for line in order(picture.lines.values()):
        a, b = picture.ends(line)
        guids = [end[0] for end in (line.link.a, line.link.b)] if line.link else [line.ports[0].guid]
        if wanted in (a.lower(), b.lower()) or (len(wanted) == 16 and wanted in guids):
            exact.append(line)
        elif any(end.lower().startswith(wanted + " ") for end in (a, b)):
            begins.append(line)
        elif wanted in f"{a} {b}".lower():
            part.append(line)
    return exact or begins or part
