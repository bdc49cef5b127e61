"""The live screen of a job: `view(model, width, height)`, a pure function to a rich renderable, and its plain-line sister.

A state is a sign or letter first and a colour second. Never more than `height` lines, never wider than `width`.
"""

from __future__ import annotations

from aegis_proto.api import WorkerView
from aegis_proto.messages import JobEvent
from aegis_proto.phases import Phase
from rich.console import Group
from rich.text import Text

from aegis_cli import times
from aegis_cli.model import Model, state_of
from aegis_cli.units import clock

SIGNS = {
    "run": ("●", "green"),
    "check": ("◐", "cyan"),
    "wait": ("◌", "dim"),
    "done": ("✓", "green"),
    "ended": ("■", "dim"),
    "gone": ("✗", "red"),
    "leaving": ("↷", "yellow"),
    "slow": ("▲", "yellow"),
    "hung": ("▲", "red"),
    "suspect": ("?", "yellow"),
}
SHADES = {
    Phase.PENDING: ("·", "dim"),
    Phase.BOOT_CHECKING: ("░", "cyan"),
    Phase.RUN_COMMAND: ("█", "green"),
    Phase.RESTARTING: ("▒", "yellow"),
    Phase.TROUBLESHOOTING: ("▓", "magenta"),
    Phase.SUCCEED: ("✓", "green"),
    Phase.FAILED: ("■", "red"),
}
ODD = {"gone", "leaving", "slow", "hung", "suspect"}
MANY = 32


def view(model: Model, width: int, height: int) -> Group:
    """At most `height` lines of at most `width` columns: headline, phases, workers, the last events, hint, keys."""
    lines = [headline(model), phases(model, width), *workers(model, width)]
    tail = [Text(line, style=style) for line, style in ((model.hint, "yellow"), (model.keys, "dim")) if line]
    room = height - len(lines) - len(tail)
    lines += [event_line(event) for event in model.events[-min(room, 6) :]] if room > 0 else []
    lines = [*lines[: max(height - len(tail), 1)], *tail][:height]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return Group(*lines)


def headline(model: Model) -> Text:
    """`ddp-7f3  RunCommand 00:41:07  inc 2  step 8,140  restarts 2/10`: only what is known."""
    text = Text()
    text.append(model.job, style="bold")
    text.append("  ")
    text.append(str(model.phase), style=SHADES[model.phase][1])
    if model.detail is None:
        return text
    job = model.detail.summary
    text.append(f" {clock(model.now - model.spans[-1].start)}  inc {job.incarnation}")
    if job.step >= 0:
        text.append(f"  step {job.step:,}")
    text.append(f"  restarts {min(job.recoverCount, job.maxRetry)}/{job.maxRetry}")
    if job.mode == "plain":
        text.append("  plain: without Aegis", style="yellow")
    if job.suspended:
        text.append("  suspended", style="yellow")
    if job.errorNodes:
        text.append(f"  nodes left {job.errorNodes}")
    return text


def phases(model: Model, width: int) -> Text:
    """The story so far as a bar: every stretch gets at least one cell, the longest gives way; a counted failure is a ✗."""
    text = Text("phases   ")
    spans = model.spans
    if not spans:
        return text
    marks = sum(span.failed for span in spans)
    cells = max(min(width, 100) - 9 - marks, 1)
    shown = spans[-cells:]
    ends = [span.start for span in shown[1:]] + [max(model.now, shown[-1].start)]
    lengths = [max(end - span.start, 0.0) for span, end in zip(shown, ends, strict=True)]
    total = sum(lengths) or 1.0
    widths = [max(1, round(length / total * cells)) for length in lengths]
    while sum(widths) > cells and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    for span, size in zip(shown, widths, strict=True):
        shade, style = SHADES[span.phase]
        text.append(shade * size, style=style)
        if span.failed:
            text.append("✗", style="bold red")
    return text


def cell(worker: WorkerView) -> Text:
    """`w0 n01 ● run r1`, with what is special behind it."""
    state = state_of(worker)
    sign, style = SIGNS[state]
    text = Text(f"{worker.pod} {worker.node or '-'} ")
    text.append(f"{sign} {state}", style=style)
    if worker.retries:
        text.append(f" r{worker.retries}")
    if worker.reason and state in ODD:
        text.append(f" {worker.reason}", style="dim")
    return text


def workers(model: Model, width: int) -> list[Text]:
    """A grid of cells; above 32 workers a count per state and only the odd ones."""
    if model.detail is None:
        return []
    rows = model.detail.workers
    lines: list[Text] = []
    if len(rows) > MANY:
        counts: dict[str, int] = {}
        for worker in rows:
            counts[state_of(worker)] = counts.get(state_of(worker), 0) + 1
        lines.append(
            Text(
                f"{model.detail.summary.workers:,} workers  "
                + "  ".join(f"{SIGNS[state][0]} {count:,} {state}" for state, count in sorted(counts.items()))
            )
        )
        rows = tuple(worker for worker in rows if state_of(worker) in ODD)[:MANY]
    cells = [cell(worker) for worker in rows]
    if not cells:
        return lines
    size = max(len(item) for item in cells) + 3
    per_line = max(width // size, 1)
    for start in range(0, len(cells), per_line):
        line = Text()
        for item in cells[start : start + per_line]:
            item.pad_right(size - len(item))
            line.append_text(item)
        line.rstrip()
        lines.append(line)
    return lines


def event_line(event: JobEvent) -> Text:
    """`11:42:07 ✗ w2: killed by signal 9 ...` (local time): the sign tells a counted failure from news."""
    text = Text(times.clock_of(event.time))
    if event.counted:
        text.append(" ✗ ", style="bold red")
    else:
        text.append(" · ", style="dim")
    text.append(sentence(event))
    return text


def sentence(event: JobEvent) -> str:
    """Who and what. A coded error in it is left out: the command says it in full when the job has ended."""
    text = event.message.partition(": E111 ")[0]
    return text if not event.pod or event.pod in text.replace(":", " ").split() else f"{event.pod}: {text}"


def plain(event: JobEvent) -> str:
    """One event as one line, for pipes and CI: time, phase, incarnation, retries, text (the text says whether it was counted)."""
    return f"{times.clock_of(event.time)} {event.phase} inc {event.incarnation} {event.retries or '-'}  {sentence(event)}"
