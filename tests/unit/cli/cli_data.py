"""Jobs as the master would describe them, for the tests of what is shown."""

from __future__ import annotations

from typing import Any

import msgspec
from aegis_proto.api import JobDetail, JobSummary, WorkerView
from aegis_proto.messages import JobEvent
from aegis_proto.phases import Phase
from aegis_proto.state import ErrorNode, Transition

BEGAN = 1_795_984_000_000
"""ms since 1970: 2026-11-29 20:26:40 UTC."""


def step(at: float, before: Phase, after: Phase, incarnation: int, retries: str, cause: str, **more: Any) -> Transition:  # noqa: PLR0917 - the columns of a table
    """A transition `at` seconds after the job began."""
    return Transition(BEGAN + int(at * 1000), before, after, 1, incarnation, more.pop("recover", 0), retries, cause, **more)


def story() -> tuple[Transition, ...]:
    """Two counted failures, then running again."""
    pending, boot, run, again, look = Phase.PENDING, Phase.BOOT_CHECKING, Phase.RUN_COMMAND, Phase.RESTARTING, Phase.TROUBLESHOOTING
    return (
        step(2, pending, boot, 0, "0:0:0", "ready", message="every place filled"),
        step(3, boot, run, 0, "0:0:0", "passed", message="all passed, run"),
        step(303, run, again, 0, "1:0:0", "killed", podName="w0", nodeName="n01", message="w0 was killed, counted", counted=True),
        step(310, again, look, 0, "1:0:0", "ready", message="every place filled"),
        step(315, look, run, 1, "1:1:1", "passed", message="all passed, run"),
        step(
            905,
            run,
            look,
            1,
            "1:2:1",
            "error",
            podName="w1",
            nodeName="n02",
            message="w1 reported an error: ValueError (train.py:88), counted",
            counted=True,
        ),
        step(910, look, run, 2, "2:2:2", "passed", message="all passed, run"),
    )


def detail(**summary: Any) -> JobDetail:
    """A job of three workers, in its third incarnation."""
    base = dict(
        job="ddp-7f3a21",
        name="ddp",
        namespace="default",
        phase="RunCommand",
        workers=3,
        present=3,
        recoverCount=2,
        maxRetry=10,
        incarnation=2,
        step=8140,
        createdAt=BEGAN,
        phaseSince=BEGAN + 910_000,
        lastReason="error",
    )
    workers = tuple(WorkerView(f"w{i}", f"n0{i + 1}", "127.0.0.1", "RunCommand", False, 2) for i in range(3))
    return JobDetail(JobSummary(**{**base, **summary}), ("python", "train.py"), workers, story(), (), "2:2:2", 9, 100, 200)


def with_workers(found: JobDetail, *workers: WorkerView) -> JobDetail:
    return msgspec.structs.replace(found, workers=workers, summary=msgspec.structs.replace(found.summary, workers=len(workers)))


def with_error_node(found: JobDetail) -> JobDetail:
    node = ErrorNode("n03", "gpuLost", BEGAN + 1000, "w2")
    return msgspec.structs.replace(found, errorNodes=(node,), summary=msgspec.structs.replace(found.summary, errorNodes=1))


def event(number: int, message: str, **more: Any) -> JobEvent:
    """The `number`-th event."""
    time = f"2026-11-29T20:{30 + number // 60:02d}:{number % 60:02d}Z"
    base = dict(type="phase", incarnation=2, seqNum=9, phase="RunCommand")
    return JobEvent(f"e{number}", "ddp-7f3a21", "default", time=time, message=message, **{**base, **more})
