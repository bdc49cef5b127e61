"""What several incidents have in common: the part of the network whose events coincide with them, against chance. Pure.

An event of a port belongs to the port, its link, its line card and its switch; each is a suspect. A part that has events all the time coincides with
everything, so the measure is how unlikely the coincidence is, given how much of the time its events cover. Among parts that explain as much, the
smallest is named. Sensors (fans, temperatures) then say why.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Literal

import msgspec
from aegis_parsers.ib import counters

from aegis_netmon.limits import Common, Limits, default
from aegis_netmon.series import Port
from aegis_netmon.topology import End, Fabric

Kind = Literal["port", "link", "card", "device"]
SIZE: dict[Kind, int] = {"port": 0, "link": 1, "card": 2, "device": 3}
CARD = re.compile(r"(?:^|;)(?P<chassis>[^;:/]+)(?::[^/]*)?/(?P<card>[LS]\d+)\b")


class Incident(msgspec.Struct, frozen=True):
    """A job that failed or hung at `at` (seconds). `hosts`: of the ranks that fell behind; `links` it used (None: any). `started`: its command (0:
    not known); `worked`: its ports carried traffic since; `word`: what lognexus calls it; `nodes` of the job, until it is `said` what it was."""

    id: str
    at: float
    hosts: tuple[str, ...] = ()
    links: frozenset[str] | None = None
    job: str = ""
    incarnation: int = -1
    cause: str = ""
    started: float = 0.0
    worked: bool = True
    nodes: tuple[str, ...] = ()
    word: str = ""
    said: str = ""


class PortEvent(msgspec.Struct, frozen=True):
    """Within the poll that ended at `at`, a counter of a port rose by `count`."""

    at: float
    seconds: float
    end: End
    counter: str
    count: int


class Sensor(msgspec.Struct, frozen=True):
    """A reading of a part: `kind` fan (rpm) or temperature (Celsius). `part` is the id of a card or device."""

    at: float
    part: str
    kind: Literal["fan", "temperature"]
    name: str
    value: float


class Suspect(msgspec.Struct, frozen=True):
    """`hits` of `of` incidents had an event of this part close by; `chance`: how likely that is without a connection."""

    kind: Kind
    id: str
    hits: int
    of: int
    chance: float
    events: tuple[PortEvent, ...]


class Verdict(msgspec.Struct, frozen=True):
    """`suspect` None: nothing stands out. `evidence`: lines with numbers, the cause last; `cause` is what a sensor says of the part, if any does."""

    suspect: Suspect | None
    cause: str
    evidence: tuple[str, ...]


def events_of(port: Port, end: End, limits: Limits | None = None) -> Iterator[PortEvent]:
    """Steps of a port's window that are events by the table: single ones that matter, and bursts."""
    limits = limits or default()
    for row in limits.counter:
        least = 1 if row.any in ("warning", "critical", "fatal") else row.burst or row.event
        if least is None:
            continue
        for step in port.steps:
            if (count := step.counts.get(row.name, 0)) >= least and row.counts_in(step):
                yield PortEvent(step.at, step.seconds, end, row.name, count)


def symptom(event: PortEvent) -> bool:
    """Whether it is a dead queue pair: what is to be explained, and what the death of a peer brings as well. No evidence of where it began."""
    row = counters.known(event.counter)
    return row is not None and row.kind == "dead"


def card_of(name: str) -> str | None:
    """The line card of a switch of a modular chassis, by its description: "MF0;dir1:CS8500/L12/U1" is card "dir1/L12".

    >>> card_of("MF0;dir1:CS8500/L12/U1"), card_of("MF0;leaf01:MQM9700/U1")
    ('dir1/L12', None)
    """
    match = CARD.search(name)
    return f"{match['chassis']}/{match['card']}" if match else None


def parts_of(end: End, fabric: Fabric | None = None, cards: Mapping[End, str] | None = None) -> list[tuple[Kind, str]]:
    """The parts that a port belongs to, the smallest first. `cards`: line cards by port, where names do not tell."""
    parts: list[tuple[Kind, str]] = [("port", f"{end[0]} port {end[1]}")]
    device = None
    if fabric is not None:
        device = fabric.devices.get(end[0])
        link = next((key for key in fabric.of.get(end[0], ()) if end in (fabric.links[key].a, fabric.links[key].b)), None)
        if link:
            parts.append(("link", link))
    card = (cards or {}).get(end) or (card_of(device.name) if device else None)
    if card:
        parts.append(("card", card))
    parts.append(("device", end[0]))
    return parts


def suspects(
    incidents: Sequence[Incident],
    events: Iterable[PortEvent],
    span: tuple[float, float],
    *,
    fabric: Fabric | None = None,
    cards: Mapping[End, str] | None = None,
    limits: Common | None = None,
) -> list[Suspect]:
    """All parts with an event near an incident, the least likely by chance first. `span`: from when to when events were recorded."""
    limits = limits or default().common
    grouped: dict[tuple[Kind, str], list[PortEvent]] = {}
    where: dict[End, str | None] = {}
    for event in events:
        if symptom(event):
            continue
        parts = parts_of(event.end, fabric, cards)
        where[event.end] = next((id for kind, id in parts if kind == "link"), None)
        for part in parts:
            grouped.setdefault(part, []).append(event)
    rows = []
    for (kind, id), own in grouped.items():
        own.sort(key=lambda event: event.at)
        close = [next((e for e in own if near(e, incident, limits, where)), None) for incident in incidents]
        hits = [event for event in close if event is not None]
        if hits:
            chance = min(1.0, at_least(len(hits), len(incidents), covered(own, span, limits)) * len(grouped))
            rows.append(Suspect(kind, id, len(hits), len(incidents), chance, tuple(hits)))
    rows.sort(key=lambda row: (round(math.log10(max(row.chance, 1e-30)), 1), SIZE[row.kind], row.id))
    return rows


def near(event: PortEvent, incident: Incident, limits: Common, where: Mapping[End, str | None]) -> bool:
    """Whether an event may have to do with an incident: by time, and on a link that its job used."""
    if not event.at - event.seconds - limits.slack_s <= incident.at <= event.at + limits.lag_s:
        return False
    return incident.links is None or where.get(event.end) is None or where[event.end] in incident.links


def covered(events: Sequence[PortEvent], span: tuple[float, float], limits: Common) -> float:
    """Share of the time in which an incident would coincide with one of these (sorted by time)."""
    total, reached = 0.0, span[0]
    for event in events:
        start, end = max(event.at - event.seconds - limits.slack_s, reached), min(event.at + limits.lag_s, span[1])
        if end > start:
            total += end - start
            reached = end
    return min(1.0, total / max(span[1] - span[0], 1e-9))


def at_least(hits: int, of: int, chance: float) -> float:
    """Probability of so many hits or more, each with this chance.

    >>> round(at_least(2, 3, 0.5), 3)
    0.5
    """
    return math.fsum(math.comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in range(hits, of + 1))


def judge(
    incidents: Sequence[Incident],
    events: Sequence[PortEvent],
    span: tuple[float, float],
    *,
    sensors: Sequence[Sensor] = (),
    fabric: Fabric | None = None,
    cards: Mapping[End, str] | None = None,
    limits: Common | None = None,
) -> Verdict:
    """One verdict for repeated incidents. Without a port event there is none that says "network"."""
    limits = limits or default().common
    rows = suspects(incidents, events, span, fabric=fabric, cards=cards, limits=limits)
    evidence = [of_hosts(incidents)]
    if not rows or rows[0].hits < 2 or rows[0].chance > limits.sure:
        best = f": the best is {rows[0].kind} {rows[0].id}, {rows[0].hits} of {rows[0].of}, by chance {rows[0].chance:.2g}" if rows else ""
        return Verdict(None, "", (*evidence, f"no part of the network stands out{best}"))
    top = rows[0]
    rose = Counter(event.counter for event in top.events)
    most = max(event.count for event in top.events)
    evidence.append(
        f"{top.kind} {top.id}: {rose.most_common(1)[0][0]} rose (up to {most} in one poll) close to {top.hits} of {top.of} incidents, "
        f"by chance {top.chance:.1g}"
    )
    cause, more = of_sensors(top, sensors, fabric, cards, limits)
    return Verdict(top, cause, (*evidence, *more))


def of_hosts(incidents: Sequence[Incident]) -> str:
    """Whether the same hosts fell behind each time: then look at them first."""
    counts = Counter(host for incident in incidents for host in set(incident.hosts))
    if not counts:
        return "which ranks fell behind is not known"
    host, most = counts.most_common(1)[0]
    if most > 1 and most >= 0.6 * len(incidents):
        return f"{host} fell behind in {most} of {len(incidents)} incidents: look at it first"
    return f"{len(counts)} different hosts fell behind in {len(incidents)} incidents, none in more than {most}: not one node"


def of_sensors(
    top: Suspect, sensors: Sequence[Sensor], fabric: Fabric | None, cards: Mapping[End, str] | None, limits: Common
) -> tuple[str, list[str]]:
    """What fans and temperatures of the suspect (or of what it is part of) said near its events, against the rest of the time."""
    names = {id for event in top.events for _, id in parts_of(event.end, fabric, cards)} if top.kind != "device" else {top.id}
    own = [sensor for sensor in sensors if sensor.part in names]
    times = [event.at for event in top.events]
    close = [sensor for sensor in own if any(abs(sensor.at - at) <= 5 * limits.slack_s for at in times)]
    found: list[str] = []
    cause = ""
    for name in sorted({sensor.name for sensor in own if sensor.kind == "fan"}):
        usual = median(sensor.value for sensor in own if sensor.kind == "fan")
        slow = [sensor.value for sensor in close if sensor.kind == "fan" and sensor.name == name and sensor.value < limits.slow_fan * usual]
        if slow:
            found.append(f"{name} turned at {min(slow):.0f} rpm near the events ({len(slow)} readings), {usual:.0f} is usual")
            cause = cause or f"slow fan {name}"
    for name in sorted({sensor.name for sensor in own if sensor.kind == "temperature"}):
        all_values = [sensor.value for sensor in own if sensor.kind == "temperature" and sensor.name == name]
        hot = [sensor.value for sensor in close if sensor.kind == "temperature" and sensor.name == name]
        if hot and max(hot) > median(all_values) + limits.hot_c:
            found.append(f"{name} was at {max(hot):.0f} C near the events, {median(all_values):.0f} C is usual")
            cause = cause or f"heat at {name}"
    return cause, found
