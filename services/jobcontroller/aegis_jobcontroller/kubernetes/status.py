"""Status of an AegisJob for its user, from the head of its job: one phase of six, conditions that say why. Pure.

The seven phases of the machine are of no use to somebody who waits for a training; the record (`Aegis`) has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aegis_proto.phases import FailedReason, Phase

from aegis_jobcontroller.kubernetes.seen import JobSeen
from aegis_jobcontroller.world import Job

PHASES = {
    Phase.PENDING: "Pending",
    Phase.BOOT_CHECKING: "Pending",
    Phase.RUN_COMMAND: "Running",
    Phase.RESTARTING: "Recovering",
    Phase.TROUBLESHOOTING: "Recovering",
    Phase.SUCCEED: "Succeeded",
    Phase.FAILED: "Failed",
}
"""Phase of the machine -> phase for users. A job that has not run yet is Pending whatever it does; a suspended one is Suspended."""
REASONS = {
    FailedReason.BUDGET: "MaxRetryExceeded",
    FailedReason.BOOT: "NoHealthyNodes",
    FailedReason.PLACING: "NotPlaced",
    FailedReason.STOPPED: "Stopped",
    FailedReason.COMMAND: "CommandNotFound",
    FailedReason.EXITED: "NonZeroExit",
    FailedReason.PROGRESS: "NoProgress",
}
ENDED = ("Succeeded", "Failed")
CONDITIONS = ("Accepted", "Running", "Recovering", "Suspended", "Succeeded", "Failed")
MAX_NODES, MAX_WAITING = 64, 3
NOWHERE = "-"


def rfc3339(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def phase_of(job: Job) -> str:
    head = job.head
    if head.phase.terminal:
        return PHASES[head.phase]
    if head.suspended:
        return "Suspended"
    return "Pending" if not head.started else PHASES[head.phase]


def status(job: Job, seen: JobSeen, waiting: Sequence[tuple[str, str]] = (), now: int = 0) -> dict[str, Any]:
    """The whole status but `suspend`, which is written with the wish that it confirms. `now`: ms, dates conditions that change."""
    head, phase = job.head, phase_of(job)
    last = head.recent[-1] if head.recent else None
    message = last.message if last is not None else ""
    if phase == "Pending" and waiting:
        message = f"{len(waiting)} of {head.workerNum} workers wait: " + "; ".join(f"{pod}: {why}" for pod, why in waiting[:MAX_WAITING])
    reason = _reason(job, phase)
    present = sum(pod.present for pod in job.pods)
    found: dict[str, Any] = {
        "phase": phase,
        "job": head.job,
        "observedGeneration": seen.generation,
        "workers": f"{present}/{head.workerNum}",
        "restarts": f"{head.failures}/{head.maxRetry}",
        "recoverCount": head.recoverCount,
        "incarnation": head.incarnation,
        "step": head.step if head.step >= 0 else None,
        "reason": reason or None,
        "message": message[:500] or None,
        "errorNodes": [node.name for node in head.errorNodes if node.avoided(now)][-MAX_NODES:],
        "startTime": rfc3339(head.createdAt) if head.createdAt else None,
        "completionTime": rfc3339(last.timeStamp) if phase in ENDED and last is not None else None,
        "conditions": conditions(seen.status.get("conditions") or (), phase, reason, message, now),
    }
    failed = next((t for t in reversed(head.recent) if t.counted), None)
    if failed is not None:
        # an empty text in it is refused as null by some servers, and the rest of the status with it
        where = {"worker": failed.podName or NOWHERE, "node": failed.nodeName or NOWHERE, "reason": failed.cause or NOWHERE}
        found["lastFailure"] = {**where, "time": rfc3339(failed.timeStamp)}
    return found


def refused(seen: JobSeen, problems: Sequence[str], now: int) -> dict[str, Any]:
    """Status of an AegisJob that cannot be a job; another generation of it may."""
    message = "; ".join(problems)[:1000]
    known = seen.status.get("conditions") or ()
    made = {"phase": "Failed", "observedGeneration": seen.generation, "reason": "InvalidTemplate", "message": message}
    return {**made, "conditions": conditions(known, "Failed", "InvalidTemplate", message, now, accepted=False)}


def _reason(job: Job, phase: str) -> str:
    head = job.head
    if phase == "Failed" and head.failedReason is not None:
        return REASONS[head.failedReason]
    if phase == "Recovering":
        counted = next((t for t in reversed(head.recent) if t.phaseFrom is Phase.RUN_COMMAND), None)
        cause = counted.cause if counted is not None else ""
        return cause[:1].upper() + cause[1:]
    return ""


def conditions(known: Sequence[Mapping[str, Any]], phase: str, reason: str, message: str, now: int, *, accepted: bool = True) -> list[dict[str, Any]]:
    """Every condition, with the date of its last change; server-side apply refuses an empty reason or message, so there is none."""
    before = {str(entry.get("type")): entry for entry in known}
    found = []
    for kind in CONDITIONS:
        true = accepted if kind == "Accepted" else phase == kind
        value = "True" if true else "False"
        old = before.get(kind)
        changed = old is None or old.get("status") != value
        if old is None and not true:
            continue
        found.append(
            {
                "type": kind,
                "status": value,
                "reason": (reason if true and reason else kind if true else f"Not{kind}"),
                "message": (message if true and message and kind == phase else kind if true else f"not {kind.lower()}")[:1000],
                "lastTransitionTime": rfc3339(now) if changed or old is None else str(old.get("lastTransitionTime") or rfc3339(now)),
            }
        )
    return found


def differs(wanted: Mapping[str, Any], have: Mapping[str, Any]) -> dict[str, Any]:
    """What a merge patch must say: fields that are other than they are."""
    return {key: value for key, value in wanted.items() if have.get(key) != value}
