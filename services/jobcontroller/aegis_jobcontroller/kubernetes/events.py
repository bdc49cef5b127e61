"""Events of an AegisJob: one for each decision of its master, with who and why, as `kubectl describe aj` shows them. Pure.

The name says which decision it is, so that a second replica, or the next one, makes no second event of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from aegis_proto.state import Transition

from aegis_jobcontroller.kubernetes.resources import AEGISJOBS, Object
from aegis_jobcontroller.kubernetes.seen import JobSeen
from aegis_jobcontroller.kubernetes.status import rfc3339
from aegis_jobcontroller.world import Job

RECENT = 600_000
"""ms: what is older was told, or is no news any more. The server forgets events after an hour; a controller that starts then tells none anew."""


def events(job: Job, seen: JobSeen, now: int) -> Iterator[tuple[str, Object]]:
    """(name, event) of each decision of the last minutes, oldest first."""
    for step in job.head.recent:
        if now - step.timeStamp <= RECENT:
            name = name_of(seen, step)
            yield name, _event(job, seen, step, name)


def name_of(seen: JobSeen, step: Transition) -> str:
    told = f"{seen.uid} {step.timeStamp} {step.seqNum} {step.phaseFrom} {step.phaseTo} {step.cause} {step.podName}"
    return f"{seen.name[:40]}.{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _event(job: Job, seen: JobSeen, step: Transition, name: str) -> Object:
    who = " ".join(filter(None, (step.podName, f"on {step.nodeName}" if step.nodeName else "")))
    count = f", restart {job.head.failures} of {job.head.maxRetry}" if step.counted and step is job.head.recent[-1] else ""
    text = step.message or f"{step.phaseFrom} to {step.phaseTo}"
    at = rfc3339(step.timeStamp)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": seen.namespace},
        "involvedObject": {"apiVersion": AEGISJOBS.api, "kind": "AegisJob", "name": seen.name, "namespace": seen.namespace, "uid": seen.uid},
        "reason": (step.cause[:1].upper() + step.cause[1:])[:128] or str(step.phaseTo),
        "message": (f"{who}: {text}" if who and who not in text else text)[:900] + (f" (counted{count})" if step.counted else ""),
        "type": "Warning" if step.counted or step.phaseTo == "Failed" else "Normal",
        "source": {"component": "aegis"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
