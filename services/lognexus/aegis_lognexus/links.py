"""The bad links of a job, as netmon tells: the last word of `aegis.verdict.netmon.job.<job>`. Reads EVENTS; writes nothing."""

from __future__ import annotations

import logging

from aegis_bus.connection import Bus
from aegis_proto import subjects
from aegis_proto.messages import BadMessage, Verdict, decode

from aegis_lognexus.evidence import BadLink

log = logging.getLogger(__name__)


async def bad_links(bus: Bus, job: str) -> tuple[BadLink, ...] | None:
    """Worst first; None when netmon has never said anything about the job. BusError."""
    stored = await bus.get("EVENTS", subjects.verdict("netmon", "job", job))
    if stored is None or stored.marker:
        return None
    try:
        verdict = decode(Verdict, stored.data)
    except BadMessage as error:
        log.warning("%s: %s", stored.subject, error)
        return None
    return tuple(BadLink(text, verdict.confidence >= 0.5, verdict.nodes, verdict.at) for text in verdict.evidence) if verdict.codes else ()
