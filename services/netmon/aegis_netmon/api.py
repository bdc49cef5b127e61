"""Questions about links (`aegis.rpc.netmon.query.{links,link,job,sample}[.<ns>]`). The replica that holds the lease answers; the others stay silent.

Whose jobs a caller may see is the bus's to enforce by the namespace in the subject (`roles`); here other namespaces' jobs are left unnamed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec
from aegis_bus.connection import Bus, Msg
from aegis_parsers.ib import counters
from aegis_proto import subjects
from aegis_proto.api import ErrorBody, ErrorReply, RequestRefused
from aegis_proto.messages import BadMessage, decode, encode
from aegis_proto.net import (
    SERVICE,
    CounterRow,
    FabricInfo,
    InventoryInfo,
    JobLinksAnswer,
    JobLinksQuery,
    LinkAnswer,
    LinkInfo,
    LinkQuery,
    LinksAnswer,
    LinksQuery,
    RoutingInfo,
    SampleAnswer,
    SampleQuery,
)

from aegis_netmon import routing, sensors, transport, uplinks
from aegis_netmon.picture import DROPS, ERRORS, RETRANSMITS, JobUse, Line, Picture, find, order
from aegis_netmon.rounds import Rounds
from aegis_netmon.series import WAIT, series
from aegis_netmon.sweeping import Sweeping
from aegis_netmon.watch import ALARMS, sums

log = logging.getLogger(__name__)

SUBJECT = f"aegis.rpc.{SERVICE}.>"
MAX_REQUEST = 8192
MOST = 500
EVENNESS = {"too_little": "too little traffic to tell"}
MOST_CARDS = 16
MOST_NAMES = 64
MOST_FAILURES = 8
QUERIES: dict[str, type[LinksQuery] | type[LinkQuery] | type[JobLinksQuery] | type[SampleQuery]] = {
    "links": LinksQuery,
    "link": LinkQuery,
    "job": JobLinksQuery,
    "sample": SampleQuery,
}


class Api:
    """`start` subscribes. `active`: whether this replica answers now; `replica`: its name."""

    def __init__(self, bus: Bus, picture: Picture, sweeping: Sweeping, rounds: Rounds, replica: str) -> None:
        self._bus, self._picture, self._sweeping, self._rounds, self._replica = bus, picture, sweeping, rounds, replica
        self.active: Callable[[], bool] = lambda: False

    async def start(self) -> None:
        await self._bus.subscribe(SUBJECT, self.on_request, timeout=30.0)

    async def on_request(self, msg: Msg) -> None:
        if self.active():
            await msg.respond(encode(self.answer(msg.subject, msg.data, time.time())))

    def answer(self, subject: str, data: bytes, now: float) -> msgspec.Struct:
        """The reply to a request, an error included."""
        try:
            kind, verb, namespace = (subjects.token(subject, i) for i in (3, 4, 5))
            wanted = QUERIES.get(verb) if kind == "query" else None
            if wanted is None:
                raise RequestRefused("E107", f"E107 {subject}: no such request; there are query.{', query.'.join(QUERIES)}")
            if len(data) > MAX_REQUEST:
                raise RequestRefused("E107", f"E107 the request has {len(data)} bytes, at most {MAX_REQUEST}")
            query = decode(wanted, data)
            seen = [job for job, use in self._picture.jobs.items() if use.namespace == namespace] if namespace else None
            if isinstance(query, LinksQuery):
                return self.links(query, now, seen)
            if isinstance(query, LinkQuery):
                return self.link(query, now, seen)
            if isinstance(query, SampleQuery):
                return self.sample(query, now)
            return self.job(query, now, seen)
        except BadMessage as error:
            return ErrorReply(ErrorBody("E107", f"E107 {error}"[:2000]))
        except RequestRefused as error:
            return ErrorReply(ErrorBody(error.code, str(error)[:2000]))

    def links(self, query: LinksQuery, now: float, seen: Sequence[str] | None) -> LinksAnswer:
        picture = self._picture
        lines = order(picture.lines.values())
        if query.job:
            used = picture.uses[self._job(query.job, seen).job]
            lines = [line for line in lines if line.id in used.links]
        if query.bad:
            lines = [line for line in lines if line.state in ALARMS]
        if query.by:
            keys: dict[str, Callable[[Line], tuple[float, float]]] = {"traffic": self._traffic, "errors": self._errors}
            if query.by not in keys:
                raise RequestRefused("E107", f"E107 by {query.by[:40]!r}: expected {' or '.join(keys)}")
            lines = sorted(lines, key=keys[query.by], reverse=True)
        total = len(lines)
        if query.after:
            at = next((n for n, line in enumerate(lines) if line.id == query.after), -1)
            lines = lines[at + 1 :]
        limit = max(1, min(query.limit, MOST))
        infos = tuple(picture.info(line, now, seen) for line in lines[:limit])
        return LinksAnswer(infos, total, len(lines) > limit, self.fabric(now), self.routing(now), self.inventory(), int(now * 1000))

    def link(self, query: LinkQuery, now: float, seen: Sequence[str] | None) -> LinkAnswer:
        found = find(self._picture, query.link)
        if not found:
            raise RequestRefused("E104", f'E104 no link "{query.link[:80]}" here')
        line = found[0]
        names = [one.id if one.link is None else " - ".join(self._picture.ends(one)) for one in found[1 : MOST_NAMES + 1]]
        return LinkAnswer(self._picture.info(line, now, seen), tuple(self._counters(line)), tuple(self._dips(line, now)), tuple(names))

    def job(self, query: JobLinksQuery, now: float, seen: Sequence[str] | None) -> JobLinksAnswer:
        job = self._job(query.job, seen)
        picture, used = self._picture, self._picture.uses[job.job]
        lines = order(picture.lines[key] for key in used.links if key in picture.lines)
        infos: tuple[LinkInfo, ...] = tuple(picture.info(line, now, seen) for line in lines[:MOST])
        layers = {port.seen.layer.lower() for line in lines for port in line.ports} - {""}
        layer = "roce" if layers and "infiniband" not in layers else "infiniband"
        env = picture.settings(job)
        notes = routing.check_nccl(env or {}, self._sweeping.adaptive, "roce" if layer == "roce" else "infiniband")
        settings = tuple(f"{note.level}: {note.name} {note.text}" for note in notes)
        if env is None:
            settings = ("info: no node of the job tells settings of NCCL: taken as NCCL's defaults", *settings)
        absent, at = tuple(sorted(used.absent)), int(now * 1000)
        return JobLinksAnswer(job.job, job.nodes, infos, len(lines), used.exact, absent, settings, self.routing(now), at, self._failures(job.job))

    def _failures(self, job: str) -> tuple[str, ...]:
        """What its ports say of each of its last failures; of the newest what is known so far."""
        found = [one for one in self._rounds.incidents.incidents.values() if one.job == job][-MOST_FAILURES:]
        told = []
        for one in found:
            said = one.said
            if not said:
                verdict = transport.of_incident(one, self._rounds.incidents.events, self._picture)
                said = f"{verdict.cause}: {verdict.reason} (so far)"
            told.append(f"incarnation {one.incarnation}, {datetime.fromtimestamp(one.at, UTC):%Y-%m-%d %H:%M:%S} UTC: {said}")
        return tuple(told)

    def sample(self, query: SampleQuery, now: float) -> SampleAnswer:
        """Counted by the hosts' own ports within their windows."""
        hosts = self._picture.hosts
        wanted = (port for port in hosts.ports.values() if not query.nodes or port.seen.node in query.nodes)
        chosen = [port for port in wanted if port.port is not None and not port.aside]
        heard = [port.port for port in chosen if port.port is not None and not port.silent(now)]
        rose = [sums(port) for port in heard]
        return SampleAnswer(
            len(heard),
            max((sum(step.seconds for step in port.steps) for port in heard), default=0.0),
            sum(step.xmit_packets or 0 for port in heard for step in port.steps),
            sum(found.get(name, 0) for found in rose for name in RETRANSMITS),
            sum(found.get(name, 0) for found in rose for name in DROPS),
            sum((step.xmit_bits or 0) + (step.rcv_bits or 0) for port in heard for step in port.steps),
            sum(found.get("symbol_error", 0) for found in rose),
            tuple(sorted(set(query.nodes) - {port.seen.node for port in chosen if not port.silent(now)})),
            int(now * 1000),
        )

    def _job(self, name: str, seen: Sequence[str] | None) -> JobUse:
        job = self._picture.jobs.get(name)
        if job is None or (seen is not None and name not in seen):
            raise RequestRefused("E104", f"E104 no job {name[:80]} runs here")
        return job

    def _traffic(self, line: Line) -> tuple[float, float]:
        sent, received = self._picture.gbps(line)
        return max(sent, received), min(sent, received)

    def _errors(self, line: Line) -> tuple[float, float]:
        found = [sums(port) for _, port, _ in self._picture.counted(line)]
        return float(sum(rose.get(name, 0) for rose in found for name in (*ERRORS, *RETRANSMITS, *DROPS))), self._traffic(line)[0]

    def _counters(self, line: Line) -> list[CounterRow]:
        """Every series of both ends; what rose first."""
        rows = []
        for end, port, _ in self._picture.counted(line):
            rose, seconds = sums(port), sum(step.seconds for step in port.steps)
            if waited := sum(step.waited for step in port.steps):
                rose[WAIT] = waited
            for one in series(port):
                known = counters.known(one.name)
                unit, meaning = (known.unit, known.meaning) if known else ("", "")
                if one.name == WAIT and waited:
                    rate = self._picture.line_gbps(line)
                    meaning = uplinks.stalled(waited, seconds, rate, capped=one.state == "saturated")[1]
                rows.append(CounterRow(end, one.name, one.bits, one.state, one.value, rose.get(one.name, 0), seconds, unit, meaning))
        return sorted(rows, key=lambda row: (-row.rose, row.end, row.name))[:MOST]

    def _dips(self, line: Line, now: float) -> list[str]:
        histories = [(port.name, port.flap) for port in line.ports]
        if (swept := self._picture.watch.flaps.get(line.id)) is not None:
            histories.append(("by the sweep", swept))
        return [
            f"{name}: down {now - dip.start:.0f} s ago"
            + (", still down" if dip.end is None else f" for {dip.end - dip.start:.0f} s" if dip.end > dip.start else ", between two polls")
            + (f", {dip.downs} times" if dip.downs > 1 else "")
            for name, history in histories
            for dip in history.dips[-16:]
        ]

    # --- the whole ---------------------------------------------------------------------------------------------------------------

    def fabric(self, now: float) -> FabricInfo:
        """What is read and what is not."""
        hosts, last = self._picture.hosts, self._sweeping.last
        reports = [f"report {name}: {why}" for name, why in sorted(self._sweeping.reports.unread.items())]
        return FabricInfo(
            self._replica,
            int(last.at * 1000),
            round(last.seconds, 3),
            last.partial[:MOST_NAMES],
            last.why,
            len(hosts.of_node),
            len(hosts.ports),
            tuple(hosts.silent_nodes(now)[:MOST_NAMES]),
            (*list(hosts.unread())[:MOST_NAMES], *reports),
            len(self._picture.lines),
            sum(line.state in ALARMS for line in self._picture.lines.values()),
            self._rounds.common,
            self._cards(),
            self._sensors(),
        )

    def _cards(self) -> tuple[str, ...]:
        """Line cards (switches, where there are none) that dropped packets within the window, most first."""
        found = sensors.drops_by_card(self._picture.watch)
        return tuple(f"{card}: {dropped}" for card, dropped in sorted(found.items(), key=lambda row: (-row[1], row[0]))[:MOST_CARDS] if dropped)

    def _sensors(self) -> tuple[str, ...]:
        """Fans and temperatures that are far from their usual, and what switches call a fault themselves."""
        names = self._picture.watch.names
        told = (*self._sweeping.reports.faults(), *self._rounds.incidents.odd())
        return tuple(f"{names.get(part, part)}: {what}" for part, what in told[:MOST_CARDS])

    def routing(self, now: float) -> RoutingInfo:
        """Adaptive routing: its state with source and age, whether it works, and what it hides."""
        state, picture = self._sweeping.adaptive, self._picture
        found = uplinks.spreads(picture.watch, picture.fabric, adaptive=picture.adaptive, limits=picture.hosts.limits)
        told = [
            f"{leaf}: {EVENNESS.get(verdict.state, verdict.state)}"
            + (f", most used over mean {verdict.ratio:g}" if verdict.ratio is not None else "")
            for leaf, verdict in sorted(found.items())
        ]
        warnings = [f"{leaf}: {verdict.warning}" for leaf, verdict in sorted(found.items()) if verdict.warning]
        if state.state == "unknown" and found and all(verdict.state == "even" for verdict in found.values()):
            warnings.append("its state is unknown, and every leaf uses its uplinks evenly: it seems to be on")
        levels = {str(level): routing.level_state(state, level) for level in range(16)} if state.masks or state.levels else {}
        source = state.source or "nothing"
        return RoutingInfo(
            state.state,
            state.switches,
            state.of,
            source,
            state.reason,
            int(state.at * 1000),
            dict(levels),
            tuple(told[:MOST_NAMES]),
            tuple(warnings),
            tuple(sorted(picture.watch.names.get(switch, switch) for switch in state.off)[:MOST_NAMES]),
        )

    def inventory(self) -> InventoryInfo:
        """Firmware of adapters by the daemons, of switches (and of adapters whose daemons do not tell) by reports."""
        adapters = {port.name.rpartition(" port ")[0]: port.firmware for port in self._picture.hosts.ports.values() if port.firmware}
        told = self._sweeping.reports.firmware()
        found = routing.inventory({**told, **adapters})
        versions = {family: dict(count) for family, count in found.versions.items()}
        why = "" if told else "switches: no report of ibswinfo or ibdiagnet is given (netmon.reports)"
        return InventoryInfo(versions, found.odd[:MOST_NAMES], found.without[:MOST_NAMES], why)
