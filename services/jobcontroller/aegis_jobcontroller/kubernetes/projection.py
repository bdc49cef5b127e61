"""The record of a job (`Aegis`) as its status: what the master answers about it, in the names of the seed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from aegis_proto.api import JobDetail, WorkerView
from aegis_proto.phases import Phase

WHOLE = 500
"""Workers up to which every one is shown: an object of the API may have 1.5 MB, and nobody reads a thousand alike."""
_PHASES = frozenset(phase.value for phase in Phase)


def status(detail: JobDetail, workers: Sequence[WorkerView]) -> dict[str, Any]:
    """`workers`: all of the job."""
    summary = detail.summary
    shown = workers if len(workers) <= WHOLE else off_the_norm(workers)
    found = {
        "phase": summary.phase,
        "podInfos": {worker.pod: pod_info(worker, summary.phase) for worker in shown},
        "recoverCount": summary.recoverCount,
        "errorNodes": [
            {"name": n.name, "reason": n.reason, "timeStamp": n.timeStamp, "podName": n.podName} for n in detail.errorNodes if not n.noted
        ],
        "shouldQuit": summary.phase == Phase.FAILED.value,
        "incarnation": summary.incarnation,
        "seqNum": detail.seqNum,
        "controlled": summary.mode == "managed",
    }
    return {**found, "message": detail.waiting[:500]} if detail.waiting else found


def pod_info(worker: WorkerView, phase: str) -> dict[str, Any]:
    """The six fields. A worker that is absent is Pending, one that is suspected or leaving is where its job is."""
    inner = worker.state if worker.state in _PHASES else Phase.PENDING.value if worker.state == "empty" else phase
    found = {
        "podIP": worker.ip,
        "innerPhase": inner,
        "finished": worker.finished,
        "retries": worker.retries,
        "lastFailedReason": worker.reason,
        "updatedTimestamp": worker.ts,
    }
    return found


def off_the_norm(workers: Sequence[WorkerView]) -> list[WorkerView]:
    """At most WHOLE workers that are not as most are: another state or count, or a reason."""
    norm = Counter((w.state, w.retries, w.finished) for w in workers).most_common(1)[0][0]
    return [w for w in workers if (w.state, w.retries, w.finished) != norm or w.reason or w.mark][:WHOLE]
