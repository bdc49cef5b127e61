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

from aegis_netmon import correlate
from aegis_netmon.correlate import Incident, PortEvent, Sensor
from aegis_netmon.limits import Limits
from aegis_netmon.picture import Picture
from aegis_netmon.series import Port
from aegis_netmon.topology import End

MOST_INCIDENTS, MOST_EVENTS, MOST_READINGS, MOST_SERIES = 256, 20_000, 400, 4096
LEAST = 3
"""Incidents before anything is said of what they have in common."""
SETTLE = 180.0
"""Seconds after an incident until the events near it have come."""
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
        self._sensors: dict[tuple[str, str], deque[Sensor]] = {}
        self.since, self.seq = kept.since, kept.seq
        self._due = 0.0
        for sensor in kept.sensors:
            self.sensor(sensor)

    def kept(self) -> KeptIncidents:
        """What is to be remembered."""
        return KeptIncidents(tuple(self.incidents.values()), tuple(self.events), tuple(self.sensors()), self.since, self.seq)

    def sensors(self) -> Iterable[Sensor]:
        return chain.from_iterable(self._sensors.values())

    # --- hearing -----------------------------------------------------------------------------------------------------------------

    def failed(self, event: JobEvent, at: float, picture: Picture) -> None:
        """A failure of a job. `at`: when the bus stored it, seconds."""
        job = picture.jobs.get(event.job)
        if not event.counted or event.type != "counted" or (job is not None and len(job.nodes) < 2):
            return
        used = picture.uses.get(event.job)
        key = f"{event.job}-{event.incarnation}"
        self.incidents[key] = Incident(key, at, (event.node,) if event.node else (), used.links if used is not None else None)
        while len(self.incidents) > MOST_INCIDENTS:
            del self.incidents[next(iter(self.incidents))]
        self._due = at + SETTLE

    def explained(self, verdict: Verdict) -> None:
        """What lognexus says of it: not the network's, or who fell behind."""
        incident = self.incidents.get(verdict.id)
        if incident is not None and verdict.cause in ELSEWHERE:
            del self.incidents[verdict.id]
        elif incident is not None and verdict.nodes:
            self.incidents[verdict.id] = msgspec.structs.replace(incident, hosts=verdict.nodes)

    def counted(self, end: End, port: Port | None, at: float) -> None:
        """A port after a poll that ended at `at`: events of its last step."""
        self.since = self.since or at
        if port is not None and port.steps and port.steps[-1].at == at and port.steps[-1].counts:
            self.events.extend(correlate.events_of(msgspec.structs.replace(port, steps=port.steps[-1:]), end, self._limits))

    def sensor(self, reading: Sensor) -> None:
        """One reading."""
        if (reading.part, reading.name) not in self._sensors and len(self._sensors) >= MOST_SERIES:
            return
        series = self._sensors.setdefault((reading.part, reading.name), deque(maxlen=MOST_READINGS))
        last = series[-1] if series else None
        if last is None or reading.at - last.at >= EVERY or abs(reading.value - last.value) > DIFFERS[reading.kind] * abs(last.value):
            series.append(reading)

    # --- judging -----------------------------------------------------------------------------------------------------------------

    def question(self, now: float, picture: Picture) -> Callable[[], correlate.Verdict] | None:
        """What is to be worked out now, in a thread perhaps; None when there is nothing new."""
        if not self._due or now < self._due or len(self.incidents) < LEAST:
            return None
        self._due = 0.0
        seen = [incident for incident in self.incidents.values() if incident.at >= self.since]
        if len(seen) < LEAST:
            return None
        events, sensors, fabric, span = list(self.events), list(self.sensors()), picture.fabric, (self.since, now)
        return lambda: correlate.judge(seen, events, span, sensors=sensors, fabric=fabric)


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
