"""`aegis job why`: the story of a job as a person asks for it. Pure: events, transitions and the job controller's word in, an explanation out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from aegis_proto.api import JobDetail, JobSummary
from aegis_proto.api_nodes import JobPending
from aegis_proto.messages import JobEvent, Verdict
from aegis_proto.phases import Phase
from aegis_proto.snapshots import NodeSnapshot
from aegis_proto.times import rfc3339

from aegis_cli import times
from aegis_cli.output import Column, table
from aegis_cli.stack.output import LogLine, cleaned

Condition = Callable[[JobSummary], bool]
LineTest = Callable[[LogLine], bool]


class Line(msgspec.Struct, frozen=True):
    """One line of the timeline: when (RFC 3339), what, who says so, with which evidence."""

    time: str
    what: str
    who: str
    evidence: str
    incarnation: int
    counted: bool = False


class Explanation(msgspec.Struct, frozen=True):
    """`now`: the present state in a sentence; `waiting`: what it waits for, if anything."""

    job: str
    phase: str
    now: str
    waiting: str
    lines: tuple[Line, ...]


def explain(
    detail: JobDetail,
    events: Sequence[JobEvent],
    pending: JobPending | None,
    incarnation: str = "all",
    timeline: bool = False,
    *,
    verdicts: Sequence[Verdict] = (),
    machines: Sequence[NodeSnapshot] = (),
) -> Explanation:
    """Events first; transitions that no event tells (the head keeps the last 16) fill the gaps. Verdicts stand where they were found,
    what the kernel of a machine said where it said it, on the server's clock."""
    judged = {verdict.incarnation for verdict in verdicts}
    lines = [
        _of_event(event)
        for event in events
        if (timeline or event.counted or event.cause or event.type != "progress") and not (event.type == "verdict" and event.incarnation in judged)
    ]
    if not lines:
        lines = [
            Line(
                rfc3339(step.timeStamp),
                f"{step.phaseFrom} -> {step.phaseTo}: {what(step.message) or step.cause}",
                step.podName or "master",
                step.cause,
                step.incarnation,
                step.counted,
            )
            for step in detail.transitions
        ]
    more = [*map(_of_verdict, verdicts), *(line for each in machines for line in _of_machine(each, timeline))]
    if more:
        lines = sorted([*lines, *more], key=lambda line: times.of_text(line.time) or 0.0)
    if incarnation == "last":
        lines = [line for line in lines if line.incarnation == detail.summary.incarnation]
    elif incarnation.isdigit():
        lines = [line for line in lines if line.incarnation == int(incarnation)]
    return Explanation(detail.summary.job, detail.summary.phase, _now(detail), _waiting(detail, pending), tuple(lines))


def what(message: str) -> str:
    """A coded error says it all, without the sentence before it that says the same."""
    _, code, rest = message.partition(": E111 ")
    return f"E111 {rest}" if code else message


def said(event: JobEvent) -> str:
    """Who and what of an event, on its own."""
    text = what(event.message)
    return text if not event.pod or event.pod in text.replace(":", " ").split() else f"{event.pod}: {text}"


def _of_event(event: JobEvent) -> Line:
    who = f"{event.pod} on {event.node}" if event.pod and event.node else event.pod or "master"
    return Line(event.time, what(event.message) or f"{event.type} {event.phase}", who, event.cause, event.incarnation, event.counted)


def _of_verdict(verdict: Verdict) -> Line:
    sure = f"{verdict.cause}, confidence {verdict.confidence:.0%}"
    missing = f"; not at hand: {'; '.join(verdict.missing)}" if verdict.missing else ""
    return Line(rfc3339(verdict.at), verdict.sentence, verdict.service, sure + missing, verdict.incarnation)


def _of_machine(found: NodeSnapshot, whole: bool) -> list[Line]:
    """What the kernel said; with `whole`, also how the machine was."""
    it, who = found.snapshot, f"{found.pod} on {found.node}" if found.node else found.pod
    clock = f"clock {found.offset / 1000:+.3f} s" if abs(found.offset) >= 50 else "clock as the server's"
    lines = []
    for line in it.kernel:
        evidence = f"snapshot, {line.cause or line.label}, {clock}"
        lines.append(Line(rfc3339(line.at + found.offset), cleaned(f"kernel: {line.text}"), who, evidence, found.incarnation))
    if whole:
        parts = [f"load {it.load:g} on {it.cpus} CPUs"]
        parts += [f"{it.memory:.0%} of memory free"] if it.memory >= 0 else []
        parts += [f"waits for {name} {share:g} %" for name, share in it.pressure.items() if share >= 1]
        parts += [f"GPU {gpu}" for gpu in it.gpus]
        parts += [f"{port}: " + ", ".join(f"{name} {value}" for name, value in counters.items()) for port, counters in it.ports.items() if counters]
        missing = f"; not read: {'; '.join(it.missing)}" if it.missing else ""
        text = cleaned("; ".join(parts) + missing)
        lines.append(Line(rfc3339(it.at + found.offset), f"machine: {text}", who, f"snapshot, {clock}", found.incarnation))
    return lines


def _now(detail: JobDetail) -> str:
    job = detail.summary
    used = f"{min(job.recoverCount, job.maxRetry)} of {job.maxRetry} restarts used"
    if job.phase == Phase.SUCCEED:
        return f"{job.job} succeeded after {job.incarnation + 1} incarnation{'s' if job.incarnation else ''}, {used}"
    if job.phase == Phase.FAILED:
        return f"{job.job} failed ({job.failedReason or 'reason not recorded'}), {used}"
    return f"{job.job} is {job.phase}, incarnation {job.incarnation}, {used}"


def _waiting(detail: JobDetail, pending: JobPending | None) -> str:
    if detail.summary.phase in (Phase.SUCCEED, Phase.FAILED):
        return ""
    if pending is not None and pending.message:
        refused = "; ".join(f"{item.node}: {item.why}{f' ({item.detail})' if item.detail else ''}" for item in pending.refusals[:8])
        return pending.message + (f" [{refused}]" if refused else "")
    if pending is not None and pending.waitingTotal:
        return f"{pending.waitingTotal} of {pending.workers} workers wait for a node ({', '.join(pending.waiting[:8])})"
    if pending is not None and pending.stopping:
        return f"the previous process of {', '.join(pending.stopping[:8])} is not yet known to be gone"
    return detail.waiting


def render(explanation: Explanation, evidence: bool = False) -> str:
    """As text: the sentence, what it waits for, the timeline."""
    parts = [explanation.now]
    if explanation.waiting:
        parts.append(f"waits   {explanation.waiting}")
    columns = [
        Column("TIME", lambda line: times.clock_of(line.time)),
        Column("INC", lambda line: line.incarnation),
        Column("", lambda line: "✗" if line.counted else "·"),
        Column("WHAT", lambda line: line.what if evidence or len(line.what) <= 110 else line.what[:107] + "..."),
        Column("WHO", lambda line: line.who),
        Column("EVIDENCE", lambda line: line.evidence),
    ]
    if explanation.lines:
        parts.append(table(list(explanation.lines), columns))
    return "\n".join(parts)
