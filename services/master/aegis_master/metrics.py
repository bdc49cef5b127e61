"""Metrics of the master. Labels are bounded: job gauges exist only for jobs this replica owns, and go when it lets go."""

from __future__ import annotations

from aegis_proto.messages import CheckResult
from aegis_proto.phases import Phase
from aegis_proto.state import Head, Transition
from prometheus_client import Counter, Gauge, Histogram

from aegis_master.rounds import FINDINGS, check_name

KNOWN = frozenset({"process", "environment", *FINDINGS})
"""Checks that have a label of their own."""
MOST_CHECKS = 32

JOB_PHASE = Gauge("aegis_job_phase", "1 for the phase a job of this replica is in", ["aegis_job", "phase"])
JOBS = Gauge("aegis_jobs", "Jobs owned by this replica, by phase", ["phase"])
JOBS_UNOWNED = Gauge("aegis_jobs_unowned", "Jobs whose owner is gone, as this replica sees it")
RETRIES_USED = Gauge("aegis_job_retries_used", "Counted failures of a job", ["aegis_job"])
RETRIES_LIMIT = Gauge("aegis_job_retries_limit", "Failures a job may survive", ["aegis_job"])
STEP = Gauge("aegis_job_step", "Lowest step said by the workers of a job", ["aegis_job"])
LAST_STEP = Gauge("aegis_job_last_step_timestamp_seconds", "When the lowest step of a job last rose", ["aegis_job"])

CREATED = Counter("aegis_jobs_created", "Jobs submitted", ["gpu_type", "worker_num"])
SUCCESS = Counter("aegis_jobs_success", "Jobs that ended Succeed", ["gpu_type", "worker_num"])
FAILED = Counter("aegis_jobs_failed", "Jobs that ended Failed", ["gpu_type", "worker_num", "reason"])
FAILURES = Counter("aegis_failures", "Counted failures, by cause", ["cause"])
RECOVERY = Histogram(
    "aegis_recovery_duration_seconds",
    "Leaving RunCommand by a failure to entering it again, by level (L1 in place, L2 a fresh container on its node, L3 another node)",
    ["level"],
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800),
)

CHECKS = Histogram(
    "aegis_check_duration_seconds",
    "How long a check took, as its agent says, by round (bootcheck, troubleshoot; hang: beside a run that stands still) and result (pass, fail)",
    ["check", "round", "result", "gpu_type", "worker_num"],
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 30, 60, 66, 120, 182, 300, 600),
)

ROUNDS = Counter(
    "aegis_rounds",
    "Rounds of checks of jobs that ended, by round (bootcheck, troubleshoot) and what came next (run, again, failed)",
    ["round", "outcome", "gpu_type", "worker_num"],
)

OWNER_CHANGES = Counter("aegis_master_owner_changes", "Jobs taken or let go", ["why"])
COMMIT = Histogram(
    "aegis_master_commit_duration_seconds",
    "Turns of an owner that committed: reports taken to commit answered",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
BATCH = Histogram("aegis_master_batch_reports", "Reports stepped together", buckets=(1, 2, 5, 10, 25, 50, 100, 250, 500, 1000))
REPORTS = Counter("aegis_master_reports", "Reports and facts taken from the stream")
DROPPED = Counter("aegis_master_reports_dropped", "Reports that changed nothing, by reason", ["reason"])
CONFLICTS = Counter("aegis_master_commit_conflicts", "Commits refused because somebody else wrote, or without an answer", ["outcome"])
HEARTBEATS = Counter("aegis_master_heartbeats", "Heartbeats heard", ["counted"])
DEAD = Counter("aegis_master_declared_dead", "Workers declared dead by silence, by what confirmed it", ["reason"])
EVENTS = Counter("aegis_master_events_published", "Job events published", ["healed"])
REPUBLISHED = Counter("aegis_master_orders_republished", "Orders published again for missing acknowledgements")
REQUESTS = Counter("aegis_master_requests", "Requests answered", ["verb", "code"])
STORE_USED = Gauge("aegis_store_used_ratio", "Share of the state store's max_bytes in use (alarm 0.5, submit refused 0.7)")
LAGS = Counter("aegis_master_loop_lags", "Times the event loop was late by more than a second: nobody is judged for a while")


def worker_num(workers: int) -> str:
    """A bounded label: exact to 8, then the next power of two."""
    return str(workers) if workers <= 8 else str(1 << (workers - 1).bit_length())


def round_ended(head: Head, transition: Transition) -> None:
    """Counts when `transition` leaves a round of checks."""
    if transition.phaseFrom not in (Phase.BOOT_CHECKING, Phase.TROUBLESHOOTING) or transition.phaseTo is transition.phaseFrom:
        return
    name = "bootcheck" if transition.phaseFrom is Phase.BOOT_CHECKING else "troubleshoot"
    outcome = "run" if transition.phaseTo is Phase.RUN_COMMAND else "failed" if transition.phaseTo is Phase.FAILED else "again"
    ROUNDS.labels(name, outcome, head.gpuType or "none", worker_num(head.workerNum)).inc()


def checked(head: Head, results: tuple[CheckResult, ...]) -> None:
    """The checks with which one worker answers the round that `head` is in, or looks at a run that stands still. What an agent says is a bounded
    label and a bounded number."""
    round_ = {Phase.BOOT_CHECKING: "bootcheck", Phase.RUN_COMMAND: "hang"}.get(head.phase, "troubleshoot")
    for result in results[:MOST_CHECKS]:
        name = check_name(result)
        labels = (name if name in KNOWN else "other", round_, "pass" if result.Pass else "fail", head.gpuType or "none", worker_num(head.workerNum))
        if 0 <= result.duration < 86400:  # also false for nan
            CHECKS.labels(*labels).observe(result.duration)


def show_job(before: Head | None, head: Head) -> None:
    """Gauges of one owned job after a commit (`before`: the head the gauges show now, None at the first)."""
    if before is None or before.phase is not head.phase:
        for phase in Phase:
            JOB_PHASE.labels(head.job, phase.value).set(1 if phase is head.phase else 0)
        if before is not None:
            JOBS.labels(before.phase.value).dec()
        JOBS.labels(head.phase.value).inc()
    if before is None or before.recoverCount != head.recoverCount or before.maxRetry != head.maxRetry:
        RETRIES_USED.labels(head.job).set(head.recoverCount)
        RETRIES_LIMIT.labels(head.job).set(head.maxRetry)


def forget_job(head: Head) -> None:
    """This replica owns the job no more: its gauges go, so that no stale value is shown."""
    JOBS.labels(head.phase.value).dec()
    for phase in Phase:
        _remove(JOB_PHASE, head.job, phase.value)
    for gauge in (RETRIES_USED, RETRIES_LIMIT, STEP, LAST_STEP):
        _remove(gauge, head.job)


def _remove(gauge: Gauge, *labels: str) -> None:
    try:
        gauge.remove(*labels)
    except KeyError:
        pass


def ended(head: Head) -> None:
    """Count the end of a job, once per owner that committed it."""
    labels = (head.gpuType or "none", worker_num(head.workerNum))
    if head.phase is Phase.SUCCEED:
        SUCCESS.labels(*labels).inc()
    elif head.phase is Phase.FAILED:
        FAILED.labels(*labels, head.failedReason.value if head.failedReason else "unknown").inc()
