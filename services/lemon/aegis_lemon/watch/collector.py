"""Events of jobs, verdicts and taints to rows of the documented history. Pure: what is heard goes in, rows come out (`take`).

A run is written when its end is understood: a failure waits for the verdict on it, at most `settle` seconds. What a tenant can say (its own lines)
never makes a failure the infrastructure's: that takes the platform, a check, or a verdict that accuses a node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aegis_proto.hostlist import HostlistError, expand
from aegis_proto.lemon import SERVICE
from aegis_proto.messages import JobEvent, Taint, Verdict
from aegis_proto.phases import LostReason, Phase
from aegis_proto.times import seconds

log = logging.getLogger(__name__)

SETTLE = 120.0
"""Seconds after its end in which a failed run may still be explained: lines settle, are read, are judged."""
REPEAT = 3600.0
"""Seconds within which the same finding of the same node is one row."""
MOST_OPEN, MOST_SIZES = 100_000, 5_000
INFRA = frozenset({LostReason.NODE_LOST, LostReason.GPU_LOST, LostReason.SLOW})
"""Reasons that only the platform, a daemon or a check can give; they name the node."""
NOBODY = frozenset({LostReason.PREEMPTED, LostReason.ORDERED, LostReason.PORT})
VERDICTS: dict[str, str] = {
    "gpu_hw": "infra",
    "node_hw": "infra",
    "network": "infra",
    "storage": "infra",
    "contention": "infra",
    "user_code": "user",
    "cuda_oom": "user",
    "preemption": "none",
}
"""Cause of a verdict -> whose failure it is; of the infrastructure only with a node that trusted evidence accuses."""
NODE_FINDINGS = frozenset({"gpuSilent"})
"""Anomalies of a machine that are a failure of the node; the others are of the job that runs there."""


class Run(msgspec.Struct):
    """One run of a job, open until `end`. `nodes` folded; times in seconds since 1970."""

    job: str
    incarnation: int
    start: float
    nodes: str = ""
    user: str = ""
    family: str = ""
    excluded: tuple[str, ...] = ()
    end: float = 0.0
    state: str = ""
    failure: str = ""
    blame: str = ""
    injected: bool = False
    cause: str = ""

    def row(self, names: Sequence[str]) -> dict[str, Any]:
        """Of `jobs`. A run that goes on has no end."""
        return {
            "job": f"{self.job}-{self.incarnation}", "start": round(self.start, 3), "end": round(self.end, 3) if self.end else "",
            "nodes": ";".join(names), "state": self.state or "running", "failure": self.failure,
            "blame": self.blame if self.blame in names else "", "user": self.user, "family": self.family, "excluded": ";".join(self.excluded),
            "cause": self.cause,
        }  # fmt: skip


class Memory(msgspec.Struct):
    """What a collector knows beyond the rows it gave: written down with them."""

    open: dict[str, Run] = {}
    """Job -> its run that goes on."""
    ended: dict[str, Run] = {}
    """`job-incarnation` -> a failure that is not explained yet."""
    out: dict[str, tuple[float, int]] = {}
    """Node -> since when it is out, and `at` of the taint (ms); 0: by our own verdict."""
    said: dict[str, float] = {}
    """`node kind` -> when it was last written."""
    serials: dict[str, str] = {}
    sizes: dict[str, tuple[int, int, str]] = {}
    """Job -> processes per node, priority, cluster: of those heard of last."""
    unplaced: int = 0
    """Runs of which nobody told where they were."""


def _names(run: Run) -> list[str]:
    """Its nodes; none where nobody told, or what was told is no list of hosts."""
    try:
        return expand(run.nodes) if run.nodes else []
    except HostlistError as error:
        log.warning("run %s-%d: %s", run.job, run.incarnation, error)
        return []


@dataclass
class Collector:
    """`hear_*` with what is heard, in order; `take` gives the rows that are complete."""

    memory: Memory = field(default_factory=Memory)
    settle: float = SETTLE
    jobs: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    # --- jobs --------------------------------------------------------------------------------------------------------------------

    def hear_event(self, event: JobEvent, stored: float) -> None:
        """`stored`: when the server took it, seconds; it dates an event whose own time cannot be read."""
        at = seconds(event.time) or stored
        open_ = self.memory.open.get(event.job)
        if event.phase == Phase.RUN_COMMAND and (event.run is not None or (open_ is None and event.type == "phase")):
            self._begin(event, at)
        elif open_ is not None and event.type == "inject":
            open_.injected = True
        elif open_ is not None and event.phase != Phase.RUN_COMMAND and event.type in ("phase", "counted"):
            self._end(open_, event, at)

    def _begin(self, event: JobEvent, at: float) -> None:
        self.lose(event.job, at)
        run = event.run
        if run is not None:
            self.memory.sizes.pop(event.job, None)
            self.memory.sizes[event.job] = (run.gpus, run.priority, run.cluster)
            while len(self.memory.sizes) > MOST_SIZES:
                self.memory.sizes.pop(next(iter(self.memory.sizes)))
        self.memory.open[event.job] = Run(
            event.job,
            event.incarnation,
            at,
            run.nodes if run else "",
            run.user if run else "",
            run.family if run else "",
            run.exclude if run else (),
        )
        while len(self.memory.open) > MOST_OPEN:
            self.memory.open.pop(next(iter(self.memory.open)))

    def lose(self, job: str, at: float) -> None:
        """End its run, if there is one, whose end was not heard: nobody knows how it ended, so nobody is blamed."""
        run = self.memory.open.pop(job, None)
        if run is not None:
            run.end, run.state = max(run.start, at), "requeued"
            self._write(run)

    def place(self, job: str, nodes: str) -> None:
        """Where a run is whose event did not say it."""
        if job in self.memory.open:
            self.memory.open[job].nodes = nodes

    @property
    def unplaced(self) -> list[str]:
        """Jobs whose run is somewhere nobody told."""
        return [job for job, run in self.memory.open.items() if not run.nodes]

    def _end(self, run: Run, event: JobEvent, at: float) -> None:
        del self.memory.open[run.job]
        run.end = max(run.start, at)
        if not event.counted:
            succeeded = event.phase == Phase.SUCCEED
            run.state = "completed" if succeeded else "preempted" if event.cause == LostReason.PREEMPTED else "cancelled"
            self._write(run)
        elif run.injected or event.cause in NOBODY:
            run.state, run.failure = "failed", "none"
            self._write(run)
        elif event.cause in INFRA:
            run.state, run.failure, run.blame, run.cause = "node_fail", "infra", event.node, event.cause
            self._write(run)
        else:
            run.state, run.failure = "failed", "unknown"
            self.memory.ended[f"{run.job}-{run.incarnation}"] = run

    def hear_verdict(self, verdict: Verdict) -> None:
        """Of lognexus, on a failed run."""
        run = self.memory.ended.pop(f"{verdict.job}-{verdict.incarnation}", None)
        if run is None:
            return
        whose = VERDICTS.get(verdict.cause, "unknown")
        if whose == "infra" and not verdict.accused:
            whose = "unknown"
        run.failure = whose
        if whose == "infra":
            run.state, run.blame, run.cause = "node_fail", verdict.accused[0], verdict.cause
        self._write(run)

    def _write(self, run: Run) -> None:
        names = _names(run)
        if names:
            self.jobs.append(run.row(names))
        else:
            self.memory.unplaced += 1

    def running(self, now: float) -> Iterable[dict[str, Any]]:
        """Rows of the runs that go on (up to `now`), and of failures that are not explained yet: for a ranking now, not for the files."""
        for run in [*self.memory.open.values(), *self.memory.ended.values()]:
            names = _names(run)
            if names:
                row = run.row(names)
                yield row if run.end else {**row, "end": round(max(run.start, now), 3)}

    # --- nodes -------------------------------------------------------------------------------------------------------------------

    def hear_anomaly(self, node: str, code: str, at: float) -> None:
        if code in NODE_FINDINGS:
            self._event(at, node, "failure", value=code, repeat=REPEAT)

    def hear_own(self, verdict: Verdict) -> None:
        """What this service decided: a time out of service, a ticket, and a node that was given back, are history too."""
        at = verdict.at / 1000
        for node in verdict.nodes:
            if verdict.state in ("drained", "relapsed"):
                self.memory.out.setdefault(node, (at, 0))
            elif verdict.state in ("probation", "clear") and node in self.memory.out and not self.memory.out[node][1]:
                self._event(self.memory.out.pop(node)[0], node, "out", end=at)
            if verdict.state in ("failed", "relapsed"):
                self._event(at, node, "ticket", value=verdict.id)
            elif verdict.state == "probation":
                self._event(at, node, "repair")

    def see_taint(self, taint: Taint, now: float) -> None:
        """By level: the record as it is now. A time out of service is written when it is over. Of our own taints the verdicts tell."""
        if taint.by == SERVICE:
            return
        excluded = taint.excluded and (taint.until == 0 or taint.until / 1000 > now)
        since = self.memory.out.get(taint.node)
        if since is not None and since[1] and (not excluded or since[1] != taint.at):
            end = taint.at / 1000 if since[1] != taint.at else taint.until / 1000
            self._event(since[0], taint.node, "out", end=max(since[0], end))
            del self.memory.out[taint.node]
        if excluded and taint.node not in self.memory.out:
            self.memory.out[taint.node] = (taint.at / 1000, taint.at)

    def see_serial(self, node: str, serial: str, now: float) -> None:
        """Another serial in the same slot: what was before does not count, and the one that left is remembered."""
        before = self.memory.serials.get(node, "")
        if serial and serial != before:
            if before:
                self._event(now, node, "repair", value=before)
            self.memory.serials[node] = serial

    def _event(self, at: float, node: str, kind: str, *, end: float = 0.0, value: str = "", repeat: float = 0.0) -> None:
        if repeat:
            key = f"{node} {kind}"
            if at - self.memory.said.get(key, float("-inf")) < repeat:
                return
            self.memory.said[key] = at
        self.events.append({"time": round(at, 3), "node": node, "kind": kind, "end": round(end, 3) if end else "", "value": value, "job": ""})

    # --- out ---------------------------------------------------------------------------------------------------------------------

    def take(self, now: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """(rows of jobs, rows of events) that are complete; failures that nobody explained in time stay unknown."""
        for key in [key for key, run in self.memory.ended.items() if now - run.end > self.settle]:
            self._write(self.memory.ended.pop(key))
        jobs, events = self.jobs, self.events
        self.jobs, self.events = [], []
        return jobs, events
