"""Starts and failures of jobs and what lognexus says of them, from the stream EVENTS into `incidents`. Reads; writes nothing."""

from __future__ import annotations

import logging

from aegis_bus.connection import Bus
from aegis_bus.ordered import Gap, OrderedReader
from aegis_proto import subjects
from aegis_proto.messages import BadMessage, JobEvent, Verdict, decode

from aegis_netmon.incidents import Incidents
from aegis_netmon.picture import Picture

log = logging.getLogger(__name__)

STREAM = "EVENTS"
HEARD = (subjects.job_event("*"), subjects.verdict("lognexus", "job", "*"))


async def follow(bus: Bus, incidents: Incidents, picture: Picture) -> None:
    """Until cancelled."""
    async with OrderedReader(bus, STREAM, list(HEARD), start=incidents.seq + 1) as reader:
        async for item in reader:
            if isinstance(item, Gap):
                incidents.seq = item.first_seq - 1
                continue
            incidents.seq = item.seq
            try:
                if item.subject.startswith("aegis.verdict."):
                    incidents.explained(decode(Verdict, item.data))
                else:
                    incidents.heard(decode(JobEvent, item.data), item.time_ms / 1000, picture)
            except BadMessage as error:
                log.warning("%s: %s", item.subject, error)
