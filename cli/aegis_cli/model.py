"""What the live screen knows about one job: an immutable model and the steps that bring it forward. Pure: time is an argument.

Fed by the master's answers (`JobDetail`) and by `JobEvent`s; read by `screen.view` and by the plain lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from aegis_proto.api import JobDetail, WorkerView
from aegis_proto.messages import JobEvent
from aegis_proto.phases import Phase

EVENTS_KEPT = 50
SPANS_KEPT = 200


@dataclass(frozen=True)
class Span:
    """A stretch of one phase, from `start` (seconds since 1970); `failed`: a counted failure ended it."""

    phase: Phase
    start: float
    failed: bool = False


@dataclass(frozen=True)
class Model:
    """Everything a screen shows. Times are seconds since 1970."""

    job: str
    detail: JobDetail | None = None
    events: tuple[JobEvent, ...] = ()
    seen: frozenset[str] = field(default=frozenset(), repr=False)
    spans: tuple[Span, ...] = ()
    hint: str = ""
    keys: str = ""
    now: float = 0.0

    @property
    def phase(self) -> Phase:
        return Phase(self.detail.summary.phase) if self.detail else Phase.PENDING

    @property
    def terminal(self) -> bool:
        return self.phase.terminal


def state_of(worker: WorkerView) -> str:
    """One word for a worker: what is odd about it comes before what is ordinary."""
    if worker.mark:
        return "hung" if worker.mark == "hang" else "slow"
    if worker.state in ("suspect", "leaving"):
        return worker.state
    if worker.state == "empty":
        return "gone" if worker.reason else "wait"
    if worker.state == Phase.SUCCEED or (worker.finished and worker.state == Phase.RUN_COMMAND):
        return "done"
    return {Phase.RUN_COMMAND: "run", Phase.BOOT_CHECKING: "check", Phase.TROUBLESHOOTING: "check", Phase.FAILED: "ended"}.get(
        Phase(worker.state) if worker.state else Phase.PENDING, "wait"
    )


def with_detail(model: Model, detail: JobDetail, now: float) -> Model:
    """The master's answer arrived; one that is older than the last changes nothing but the clock."""
    if model.detail is not None and detail.seq < model.detail.seq:
        return replace(model, now=now)
    return replace(model, detail=detail, spans=_spans(detail, model.spans, now), now=now)


def _spans(detail: JobDetail, known: tuple[Span, ...], now: float) -> tuple[Span, ...]:
    """The phases so far: what the transitions say, after what earlier answers said."""
    created = detail.summary.createdAt / 1000 if detail.summary.createdAt else now
    steps = detail.transitions
    if not steps:
        return known or (Span(Phase(detail.summary.phase), created),)
    oldest = steps[0].timeStamp / 1000
    spans = [span for span in known if span.start < oldest] or [Span(steps[0].phaseFrom, min(created, oldest))]
    for step in steps:
        if step.counted:
            spans[-1] = replace(spans[-1], failed=True)
        if step.phaseTo is not spans[-1].phase:
            spans.append(Span(step.phaseTo, step.timeStamp / 1000))
    return tuple(spans[-SPANS_KEPT:])


def with_event(model: Model, event: JobEvent) -> Model:
    """An event arrived; a double (same eventId) changes nothing."""
    if event.eventId in model.seen:
        return model
    return replace(model, events=(*model.events, event)[-EVENTS_KEPT:], seen=model.seen | {event.eventId})


def at(model: Model, now: float, hint: str | None = None) -> Model:
    """Only the clock moved, or a new hint is to be shown."""
    return replace(model, now=now, hint=model.hint if hint is None else hint)
