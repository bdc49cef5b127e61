"""`aegis job why`: the story of a job as a person asks for it. Pure: events, transitions and the job controller's word in, an explanation out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from aegis_proto.api import JobDetail, JobSummary
from aegis_proto.api_nodes import JobPending
from aegis_proto.messages import JobEvent, Verdict
from aegis_proto.phases import Phase
from aegis_proto.times import rfc3339

from aegis_cli import firstlayer, times
from aegis_cli.firstlayer import FirstLayer, Line
from aegis_cli.output import Column, table
from aegis_cli.stack.output import LogLine, cleaned
from aegis_cli.verdicts import sentence

Condition = Callable[[JobSummary], bool]
LineTest = Callable[[LogLine], bool]
SAME = 60
"""Characters by which a verdict and the event that its fact became are the same."""


class Explanation(msgspec.Struct, frozen=True):
    """`now`: the present state in a sentence; `waiting`: what it waits for, if anything; `cause`: the last verdict in a sentence, if there is one."""

    job: str
    phase: str
    now: str
    waiting: str
    lines: tuple[Line, ...]
    cause: str = ""


def explain(
    detail: JobDetail,
    events: Sequence[JobEvent],
    pending: JobPending | None,
    incarnation: str = "all",
    timeline: bool = False,
    *,
    verdicts: Sequence[Verdict] = (),
    layer: FirstLayer | None = None,
) -> Explanation:
    """Events first; transitions that no event tells (the head keeps the last 16) fill the gaps. Verdicts stand where they were found,
    what the first layer has where it happened, on the server's clock."""
    judged = {(verdict.incarnation, verdict.sentence[:SAME]) for verdict in verdicts}
    lines = [
        _of_event(event)
        for event in events
        if (timeline or event.counted or event.cause or event.type != "progress")
        and not (event.type == "verdict" and (event.incarnation, event.message[:SAME]) in judged)
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
    more = [line for verdict in verdicts for line in _of_verdict(verdict)]
    if layer is not None:
        more += firstlayer.lines(layer, detail.summary.incarnation, timeline)
    if more:
        lines = sorted([*lines, *more], key=lambda line: times.of_text(line.time) or 0.0)
    if incarnation == "last":
        lines = [line for line in lines if line.incarnation == detail.summary.incarnation]
    elif incarnation.isdigit():
        lines = [line for line in lines if line.incarnation == int(incarnation)]
    return Explanation(detail.summary.job, detail.summary.phase, _now(detail), waiting(detail, pending), tuple(lines), sentence(verdicts))


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


def _of_verdict(verdict: Verdict) -> Iterator[Line]:
    sure = f"{verdict.cause}, confidence {verdict.confidence:.0%}"
    missing = f"; not at hand: {'; '.join(verdict.missing)}" if verdict.missing else ""
    time = rfc3339(verdict.at)
    yield Line(time, verdict.sentence, verdict.service, sure + missing, verdict.incarnation, more=verdict.evidence)
    yield from firstlayer.of_history(verdict.history, time, verdict.incarnation)


def _now(detail: JobDetail) -> str:
    job = detail.summary
    used = f"{min(job.recoverCount, job.maxRetry)} of {job.maxRetry} restarts used"
    if job.phase == Phase.SUCCEED:
        return f"{job.job} succeeded after {job.incarnation + 1} incarnation{'s' if job.incarnation else ''}, {used}"
    if job.phase == Phase.FAILED:
        return f"{job.job} failed ({job.failedReason or 'reason not recorded'}), {used}"
    hung = [worker.pod for worker in detail.workers if worker.mark == "hang"]
    if hung and job.phase == Phase.RUN_COMMAND:
        return f"{job.job} makes no progress, incarnation {job.incarnation}: {', '.join(hung[:8])} marked as hung, nothing is stopped yet; {used}"
    return f"{job.job} is {job.phase}, incarnation {job.incarnation}, {used}"


def waiting(detail: JobDetail, pending: JobPending | None) -> str:
    """What a job waits for, with the reason of each node that refuses it; "" where it waits for nothing."""
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
    """As text: the sentence, what it waits for, the cause, the timeline."""
    parts = [explanation.now]
    if explanation.waiting:
        parts.append(f"waits   {explanation.waiting}")
    if explanation.cause:
        parts.append(cleaned(explanation.cause))
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
    if evidence:
        parts += [
            f"{line.who} at {times.clock_of(line.time)}\n" + "\n".join(f"  {cleaned(text)}" for text in line.more)
            for line in explanation.lines
            if line.more
        ]
    return "\n".join(parts)
