"""The fabric under watch: reading after reading to a verdict per link. Pure: `step(watch, reading)` gives a new watch and the verdicts.

The links that were there are those that should be: one that is missing while both its devices answer is down. A verdict names the end that counted,
and which side of the cable is at fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from aegis_parsers.ib.ber import line_rate_gbps

from aegis_netmon import expected, flaps, health
from aegis_netmon.ber import BerVerdict, worst
from aegis_netmon.fabricpoll import Reading
from aegis_netmon.flaps import SET_BACK, History
from aegis_netmon.health import Finding, Health
from aegis_netmon.limits import Limits, default
from aegis_netmon.series import Port, observe
from aegis_netmon.topology import End, Fabric, Link

ORDER: tuple[health.State, ...] = ("healthy", "unproven", "unknown", "watch", "degraded", "flapping", "down")
ALARMS = ("watch", "degraded", "flapping", "down")


class Watch(msgspec.Struct, frozen=True):
    """What is remembered. `links`: every link that should be there, with names as they were when it was last seen."""

    links: Mapping[str, Link] = {}
    names: Mapping[str, str] = {}
    ports: Mapping[End, Port] = {}
    flaps: Mapping[str, History] = {}
    readings: int = 0
    best: Mapping[str, tuple[float, float]] = {}
    """Link -> the best rate at which it was seen (Gb/s), and when last."""


class LinkVerdict(msgspec.Struct, frozen=True):
    """One link. `end`: the port that counted or that is down, by name; `at_fault`: what to look at first; `findings` are of `end`;
    `ber` is the worse of both ends'."""

    link: str
    state: health.State
    a: str
    b: str
    end: str
    side: expected.Side
    findings: tuple[Finding, ...]
    ber: BerVerdict | None = None

    @property
    def at_fault(self) -> str:
        """The suspect, by name."""
        names = {"a": self.a, "b": self.b, "a_device": self.a.rpartition(" port ")[0], "b_device": self.b.rpartition(" port ")[0]}
        return names.get(self.side.suspect) or {"cable": f"the cable {self.a} - {self.b}"}.get(self.side.suspect, self.side.reason)


def step(watch: Watch, reading: Reading, limits: Limits | None = None) -> tuple[Watch, list[LinkVerdict]]:
    """After one more reading: what is known, and a verdict on each link, alarms first."""
    limits = limits or default()
    fabric = reading.fabric
    links = {**watch.links, **fabric.links}
    names = {**watch.names, **{device.id: device.name for device in fabric.devices.values()}}
    ports = dict(watch.ports)
    for poll in reading.polls:
        ports[poll.guid, poll.port] = observe(ports.get((poll.guid, poll.port)), poll)
    histories = {key: history(watch, reading, link, ports, limits) for key, link in links.items()}
    best = {**watch.best, **dict(best_rates(watch, reading, limits))}
    after = Watch(links, names, ports, histories, watch.readings + 1, best)
    after = forget(after, *(key for key in links if key not in fabric.links and taken_out(histories[key], reading.at, limits)))
    verdicts = [verdict for key in after.links if (verdict := judge(after, key, reading, limits)) is not None]
    return after, sorted(with_devices(after, verdicts), key=lambda verdict: (-ORDER.index(verdict.state), verdict.link))


def in_time(watch: Watch, at: float) -> Watch:
    """What is known, in the clock of this machine: where that was set back, or another's was ahead, counters begin anew and dips are as long ago as
    they were."""
    last = max((history.at for history in watch.flaps.values()), default=at)
    if at >= last - SET_BACK:
        return watch
    return msgspec.structs.replace(watch, ports={}, flaps={key: flaps.moved(history, at - last) for key, history in watch.flaps.items()})


def best_rates(watch: Watch, reading: Reading, limits: Limits) -> Iterator[tuple[str, tuple[float, float]]]:
    """The rates that are no slower than before, or have been what they are for long."""
    for key, link in reading.fabric.links.items():
        rate, old = line_rate_gbps(link.speed, link.width), watch.best.get(key)
        if rate and (old is None or rate >= old[0] or reading.at - old[1] > limits.slow.forget_s):
            yield key, (rate, reading.at)


def slow(watch: Watch, link: Link, reading: Reading) -> health.Slow | None:
    """A link that came back narrower or slower than it was, or that its tool says could be faster while others of its kind are."""
    now, best = reading.fabric.links.get(link.id), watch.best.get(link.id)
    if now is None:
        return None
    rate = line_rate_gbps(now.speed, now.width)
    if rate and best is not None and rate < best[0]:
        return health.Slow(f"up at {now.width} {now.speed} ({rate:g} Gb/s), {best[0]:g} Gb/s before", "critical", "ours: what it did before")
    told = next((reading.below[end] for end in (link.a, link.b) if end in reading.below), None)
    return health.Slow(told, "warning", "infiniband-diags") if told is not None else None


def history(watch: Watch, reading: Reading, link: Link, ports: Mapping[End, Port], limits: Limits) -> History:
    """Ups and downs of a link: seen in the graph, or known by link_downed of either end."""
    old = watch.flaps.get(link.id, History())
    up = True if link.id in reading.fabric.links else False if is_down(link, reading.fabric) else None
    downed = max((risen(ports.get(end), "link_downed", reading.at) for end in (link.a, link.b)), default=0)
    return flaps.observe(old, reading.at, up, downed, limits=limits.flap)


def is_down(link: Link, fabric: Fabric) -> bool:
    """A link that is missing: down if an end says so or a device of it is gone; unknown if neither was looked at."""
    return any(end in fabric.down or (end[0] not in fabric.devices and bool(fabric.devices)) for end in (link.a, link.b))


def risen(port: Port | None, name: str, at: float) -> int:
    """How much a counter rose in the step that ended now."""
    return port.steps[-1].counts.get(name, 0) if port is not None and port.steps and port.at == at else 0


def judge(watch: Watch, key: str, reading: Reading, limits: Limits) -> LinkVerdict | None:
    """One link: the worse of its two ends."""
    link = watch.links[key]
    flap = flaps.judge(watch.flaps[key], reading.at, limits.flap)
    gbps = line_rate_gbps(link.speed, link.width)
    ends = [(end, watch.ports.get(end)) for end in (link.a, link.b)]
    lame = slow(watch, link, reading)
    judged: list[tuple[End, Health]] = [
        (end, health.judge(port, flap, gbps=gbps, optics=reading.optics.get(end), slow=lame, limits=limits)) for end, port in ends if port is not None
    ]
    title = {end: f"{watch.names.get(end[0]) or end[0]} port {end[1]}" for end in (link.a, link.b)}
    if not judged:
        found = (*health.of_flaps(flap), *health.of_rate(lame))
        state: health.State = "down" if flap.state in ("down", "dropped") else "flapping" if flap.state == "flapping" else "unknown"
        return LinkVerdict(key, state, title[link.a], title[link.b], title[link.a], no_side(flap), found)
    judged.sort(key=lambda row: (-ORDER.index(row[1].state), -len(row[1].findings), -errors(watch.ports.get(row[0])), row[0]))
    end, top = judged[0]
    seen = [sums(port) for _, port in ends]
    side = no_side(flap) if top.state == "down" else expected.side(seen[0], seen[1], names=(title[link.a], title[link.b]))
    if lame is not None and side.suspect == "none":
        side = expected.Side("cable", "nothing but its rate is wrong: cable or connector, then either port")
    return LinkVerdict(key, top.state, title[link.a], title[link.b], title[end], side, top.findings, worst(each.ber for _, each in judged))


def no_side(flap: flaps.FlapVerdict) -> expected.Side:
    return expected.Side("cable", "the link is down: cable, connector or either port") if flap.state in ("down", "dropped") else expected.side({}, {})


def sums(port: Port | None) -> dict[str, int]:
    """Rises over the window."""
    total: dict[str, int] = {}
    for one in port.steps if port is not None else ():
        for name, count in one.counts.items():
            total[name] = total.get(name, 0) + count
    return total


def errors(port: Port | None) -> int:
    found = sums(port)
    return sum(found.get(name, 0) for name in expected.RECEIVED)


def with_devices(watch: Watch, verdicts: Sequence[LinkVerdict]) -> Iterable[LinkVerdict]:
    """Links of a device (a switch, a host) most of whose other links are bad as well: the device, not each cable."""
    bad = {verdict.link for verdict in verdicts if verdict.state in ALARMS}
    of: dict[str, list[str]] = {}
    for key, link in watch.links.items():
        for end in (link.a, link.b):
            of.setdefault(end[0], []).append(key)
    for verdict in verdicts:
        link = watch.links[verdict.link]
        others = [[key in bad for key in of[end[0]] if key != link.id] for end in (link.a, link.b)]
        if verdict.link in bad and any(sum(row) >= 2 for row in others):
            side = expected.side(sums(watch.ports.get(link.a)), sums(watch.ports.get(link.b)), others[0], others[1], (verdict.a, verdict.b))
            if side.suspect.endswith("device"):
                yield msgspec.structs.replace(verdict, side=side)
                continue
        yield verdict


def dipped(watch: Watch, dips: Iterable[tuple[End, flaps.Dip]], limits: Limits | None = None) -> Watch:
    """With the dips of ports that another watcher saw."""
    found = list(dips)
    if not found:
        return watch
    of = {end: key for key, link in watch.links.items() for end in (link.a, link.b)}
    histories = dict(watch.flaps)
    for end, dip in found:
        if (key := of.get(end)) is not None:
            histories[key] = flaps.insert(histories.get(key, History()), dip, (limits or default()).flap)
    return msgspec.structs.replace(watch, flaps=histories)


def taken_out(history: History, at: float, limits: Limits) -> bool:
    """Whether a link is down for so long that it was taken out."""
    return history.up is False and bool(history.dips) and history.dips[-1].end is None and at - history.dips[-1].start > limits.down.forget_s


def forget(watch: Watch, *links: str) -> Watch:
    """After links were taken out: they are expected no more."""
    kept = {name: {key: value for key, value in getattr(watch, name).items() if key not in links} for name in ("links", "flaps", "best")}
    return msgspec.structs.replace(watch, **kept) if links else watch
