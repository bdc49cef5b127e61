"""How a start in an allocation ends: with which code, and whether the job is to run again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
from aegis_proto.api import JobDetail
from aegis_proto.phases import FailedReason, Phase

from aegis_cli import codes, outcome
from aegis_cli.slurm.records import Notice

Again = Literal["", "ask", "hasten"]
"""Nothing; have the job requeued; it is requeued already, and only made to start soon."""


@dataclass(frozen=True, slots=True)
class Ending:
    """`code`: what every task leaves with. `end`: what the ledger keeps of it."""

    code: int
    again: Again
    end: str


def ending(detail: JobDetail, max_retry: int, notice: Notice | None) -> Ending:
    """`max_retry`: of the whole Slurm job, not what was left of it for this start.

    A spent budget ends with 76 also where the infrastructure spent it: another start of the same job has nothing left of it.
    """
    job = detail.summary
    if job.phase == Phase.SUCCEED:
        return Ending(codes.OK, "", "succeeded")
    if notice is not None and notice.again and job.failedReason not in (FailedReason.COMMAND, FailedReason.PROGRESS):
        return Ending(codes.REQUEUE, "ask", notice.why)
    if job.failedReason in (FailedReason.BOOT, FailedReason.PLACING):
        return Ending(codes.REQUEUE, "ask", str(job.failedReason))
    whole = msgspec.structs.replace(detail, summary=msgspec.structs.replace(job, maxRetry=max_retry))
    code = outcome.exit_code(whole)
    return Ending(codes.DO_NOT_REQUEUE if code == codes.REQUEUE else code, "", job.failedReason or "failed")


def interrupted(notice: Notice) -> Ending:
    """Slurm has signalled every process of the step: nobody is left who could say how the job ended."""
    if notice.requeued:
        return Ending(codes.REQUEUE, "hasten", notice.why)
    return Ending(codes.REQUEUE, "ask", notice.why) if notice.again else Ending(codes.STOPPED, "", notice.why)


def used(detail: JobDetail) -> int:
    """Counted faults of this start: no place has more than the job had failures."""
    counts = [int(part) for part in detail.retries.split(":") if part.isdigit()]
    return max([*counts, 0])
