"""What the failures of weeks have in common: kept are incidents, events of ports and readings of sensors; `correlate` judges them together. Pure.

An incident is a counted failure of a job on several nodes, unless its verdict says that it was not the network. A reading of
a sensor is kept now and then, and whenever it is another than before. Everything is bounded; the oldest goes first.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import msgspec
from aegis_proto.messages import JobEvent, Verdict
from aegis_proto.net import SERVICE
from aegis_proto.phases import Phase

from aegis_netmon import correlate
from aegis_netmon.correlate import Incident, PortEvent, Sensor
from aegis_netmon.limits import Limits
from aegis_netmon.picture import Picture
from aegis_netmon.sensors import odd
from aegis_netmon.series import Port
from aegis_netmon.topology import End

MOST_INCIDENTS, MOST_EVENTS, MOST_READINGS, MOST_SERIES, MOST_RUNS = 256, 20_000, 400, 4096, 4096
WORKED_BITS = 8e9
"""Sent by a job's ports since its start: then its queue pairs have worked (1 GB; ours)."""
EVERY = 6 * 3600.0
"""A reading of a sensor is kept so often, and when it differs so much from the last kept one:"""
DIFFERS = {"fan": 0.15, "temperature": 0.12}
ELSEWHERE = frozenset({"user_code", "storage", "host_oom", "cuda_oom", "preemption", "software", "gpu_hw", "node_hw"})
"""Causes of lognexus that are not the network's."""


class KeptIncidents(msgspec.Struct, frozen=True):
    """As it is written down."""

    incidents: tuple[Incident, ...] = ()
    events: tuple[PortEvent, ...] = ()
    sensors: tuple[Sensor, ...] = ()
    since: float = 0.0
    seq: int = 0


class Incidents:
    """`since`: from when on events of ports were recorded; `seq`: the last message of EVENTS that was heard."""

    def __init__(self, limits: Limits, kept: KeptIncidents | None = None) -> None:
        kept = kept or KeptIncidents()
        self._limits = limits
        self.incidents: dict[str, Incident] = {incident.id: incident for incident in kept.incidents}
        self.events: deque[PortEvent] = deque(kept.events, MOST_EVENTS)
        self._last: dict[tuple[End, str], PortEvent] = {}
        """Of each port and counter the last event that was recorded: one that is bad all the time must not push out what others did."""
        self._sensors: dict[tuple[str, str], deque[Sensor]] = {}
        self._odd: list[tuple[str, str]] | None = None
        self._runs: dict[str, float] = {}
        """Job -> when its command was last started."""
        self.since, self.seq = kept.since, kept.seq
        self._due = 0.0
        for sensor in kept.sensors:
            self.sensor(sensor)

    def kept(self) -> KeptIncidents:
        """What is to be remembered."""
        return KeptIncidents(tuple(self.incidents.values()), tuple(self.events), tuple(self.sensors()), self.since, self.seq)

    def sensors(self) -> Iterable[Sensor]:
        return chain.from_iterable(self._sensors.values())

    def odd(self) -> list[tuple[str, str]]:
        """(part, a sentence) of sensors that are far from their usual now."""
        if self._odd is None:
            self._odd = odd(self.sensors(), self._limits.common)
        return self._odd

    def adopt(self, kept: KeptIncidents) -> None:
        """What the holder of the lease knew: its sweeps' events and sensors, and which links the jobs used, which only it sees."""
        self.incidents = {**self.incidents, **{one.id: one for one in kept.incidents if one.id in self.incidents}}
        self.events = deque(sorted({*kept.events, *self.events}, key=lambda event: event.at), MOST_EVENTS)
        self._sensors, self._odd = {}, None
        for sensor in kept.sensors:
            self.sensor(sensor)
        self.since = min(kept.since or self.since, self.since or kept.since)

    # --- hearing -----------------------------------------------------------------------------------------------------------------

    def heard(self, event: JobEvent, at: float, picture: Picture) -> None:
        """An event of a job: a start of its command, or a failure. `at`: when the bus stored it, seconds."""
        job = picture.jobs.get(event.job)
        if event.type == "phase" and event.phase == Phase.RUN_COMMAND:
            self._runs.pop(event.job, None)
            self._runs[event.job] = at
            while len(self._runs) > MOST_RUNS:
                del self._runs[next(iter(self._runs))]
        if not event.counted or event.type != "counted" or (job is not None and len(job.nodes) < 2):
            return
        used = picture.uses.get(event.job)
        key = f"{event.job}-{event.incarnation}"
        if key in self.incidents:
            return
        started = self._runs.get(event.job, 0.0)
        self.incidents[key] = Incident(
            key,
            at,
            (event.node,) if event.node else (),
            used.links if used is not None and picture.fabric.links else None,
            event.job,
            event.incarnation,
            event.cause,
            started,
            not started or picture.sent(job.nodes if job is not None else (), started) >= WORKED_BITS,
            job.nodes if job is not None else (),
        )
        while len(self.incidents) > MOST_INCIDENTS:
            del self.incidents[next(iter(self.incidents))]
        self._due = at + self._limits.common.settle_s

    def explained(self, verdict: Verdict) -> None:
        """What lognexus says of it: not the network's, or who fell behind."""
        incident = self.incidents.get(verdict.id)
        if incident is not None and verdict.cause in ELSEWHERE:
            del self.incidents[verdict.id]
        elif incident is not None:
            self.incidents[verdict.id] = msgspec.structs.replace(incident, hosts=verdict.nodes or incident.hosts, word=verdict.cause)

    def counted(self, end: End, port: Port | None, at: float) -> None:
        """A port after a poll that ended at `at`: events of its last step."""
        self.since = self.since or at
        if port is not None and port.steps and port.steps[-1].at == at and port.steps[-1].counts:
            for event in correlate.events_of(msgspec.structs.replace(port, steps=port.steps[-1:]), end, self._limits):
                last = self._last.get((event.end, event.counter))
                if last is None or event.at - last.at >= self._limits.common.slack_s or event.count > last.count:
                    self.events.append(event)
                    self._last[event.end, event.counter] = event

    def sensor(self, reading: Sensor) -> None:
        """One reading."""
        if (reading.part, reading.name) not in self._sensors and len(self._sensors) >= MOST_SERIES:
            return
        series = self._sensors.setdefault((reading.part, reading.name), deque(maxlen=MOST_READINGS))
        last = series[-1] if series else None
        if last is None or reading.at - last.at >= EVERY or abs(reading.value - last.value) > DIFFERS[reading.kind] * abs(last.value):
            series.append(reading)
            self._odd = None

    # --- judging -----------------------------------------------------------------------------------------------------------------

    def question(self, now: float, picture: Picture) -> Callable[[], correlate.Verdict] | None:
        """What is to be worked out now, in a thread perhaps; None when there is nothing new."""
        if not self._due or now < self._due or len(self.incidents) < self._limits.common.least:
            return None
        self._due = 0.0
        seen = [incident for incident in self.incidents.values() if incident.at >= self.since]
        if len(seen) < self._limits.common.least:
            return None
        events, sensors, fabric, span = list(self.events), list(self.sensors()), picture.fabric, (self.since, now)
        return lambda: correlate.judge(seen, events, span, sensors=sensors, fabric=fabric, limits=self._limits.common)

    def settled(self, now: float) -> list[Incident]:
        """Incidents around which all events have come, and which were not told on yet."""
        return [one for one in self.incidents.values() if not one.said and now >= one.at + self._limits.common.settle_s]

    def said(self, incident: Incident, what: str) -> None:
        """What it was, as far as ports tell."""
        if incident.id in self.incidents:
            self.incidents[incident.id] = msgspec.structs.replace(self.incidents[incident.id], said=what, nodes=())


def part_id(found: correlate.Suspect) -> str:
    """Id of a suspect, fit for a subject."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"part-{found.kind}-{found.id}")


def of_part(found: correlate.Verdict, names: Mapping[str, str], at: int) -> Verdict | None:
    """The verdict on the part that incidents have in common; None when nothing stands out. `names`: of devices; `at` in ms."""
    top = found.suspect
    if top is None:
        return None
    head, _, port = top.id.partition(" port ")
    name = f"{names.get(head, head)} port {port}" if port else names.get(top.id, top.id)
    why = f", cause: {found.cause}" if found.cause else ""
    sentence = f"{top.hits} of {top.of} incidents coincide with {top.kind} {name}{why}"
    return Verdict(
        f"{part_id(top)}-{at}",
        SERVICE,
        "network",
        (f"{top.kind} {name}",),
        found.evidence[:12],
        confidence=round(min(0.99, 1 - top.chance), 3),
        sentence=sentence[:1000],
        sentenceZh=f"{top.of} 次故障中有 {top.hits} 次与 {top.kind} {name} 同时发生" + (f",原因:{found.cause}" if found.cause else ""),
        at=at,
        state="suspect",
        codes=(found.cause,) if found.cause else (),
    )
