"""The rank x (group, seq) matrix for people: text for the terminal, one HTML file without scripts.

Everything that comes from a dump is a tenant's text: control characters are escaped, HTML is quoted, lengths are cut.
"""

from __future__ import annotations

import html

import numpy as np

from aegis_lognexus.flight.report import Report, rank_list
from aegis_lognexus.flight.table import ABSENT, FINISHED, PENDING, RUNNING, UNKNOWN, Group, Table

MAX_ROWS = 256
LAST = 24  # columns shown of each group
_SIGN = {ABSENT: " ", PENDING: "s", RUNNING: "r", FINISHED: "."}
_WORD = {ABSENT: "not entered", PENDING: "scheduled", RUNNING: "started", FINISHED: "completed"}
_CLASS = {ABSENT: "a", PENDING: "s", RUNNING: "r", FINISHED: "d"}


def safe(text: str, limit: int = 120) -> str:
    """A tenant's text, harmless in a terminal: every character that is not printable becomes an escape."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def summary(report: Report) -> str:
    """The report in lines: the verdict as a sentence, evidence, what was missing."""
    who = f"{rank_list(report.culprits)}" if report.culprits else "nobody"
    lines = {
        "healthy": ["Healthy: nothing is unfinished and nobody is late."],
        "slow": [f"Slow, not hung: {rank_list(report.slow)} holds the others up."],
        "no_evidence": ["No evidence in the dumps."],
        "undecided": [f"Undecided ({report.cause}): the dumps name nobody."],
    }.get(report.verdict, [f"{report.verdict.capitalize()}: {who}, cause {report.cause}, confidence {report.confidence}."])
    if op := report.first_bad_op:
        lines.append(f"First bad operation: {safe(op.op) or 'unknown'} seq {op.seq} in {safe(op.pg)} [{safe(op.name)}].")
    lines += [f"  - {safe(e, 400)}" for e in report.evidence]
    lines += [f"  ? {safe(m, 400)}" for m in report.missing]
    return "\n".join(lines)


def _shown_ranks(table: Table, report: Report) -> list[int]:
    """All ranks of a small job; of a large one the culprits, who waits for them, and a sample of the rest."""
    if len(table.world) <= MAX_ROWS:
        return list(table.world)
    first = sorted({*report.culprits, *report.slow} & set(table.world))
    groups = {g for r in first[:4] for g in range(len(table.groups)) if table.groups[g].row(r) >= 0 and len(table.groups[g].rows) <= MAX_ROWS}
    near = {int(r) for g in groups for r in table.groups[g].rows}
    rest = [r for r in table.world if r not in near]
    return list(dict.fromkeys([*first, *sorted(near), *rest]))[:MAX_ROWS]


def table_text(table: Table, report: Report) -> str:
    """RANK OP SEQ STATE ROLE, one line per rank; equal neighbours are folded."""
    rows = [("RANK", "OP", "SEQ", "STATE", "ROLE")]
    run: list[int] = []
    for rank in [*sorted(report.roles), -1]:
        role = report.roles.get(rank)
        if run and (rank < 0 or role != report.roles[run[0]]):
            op, seq, state, part = report.roles[run[0]]
            label = str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
            rows.append((label, safe(op, 60) or "-", str(seq) if seq >= 0 else "-", state, part or "-"))
            run = []
        run.append(rank)
    if len(rows) > MAX_ROWS:
        rows = [rows[0], *sorted(rows[1:], key=lambda r: r[4] not in ("culprit", "slow"))[:MAX_ROWS]]
    widths = [max(len(r[i]) for r in rows) for i in range(5)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows)


def _groups(table: Table) -> list[Group]:
    """Groups with something unfinished or unequal first."""
    held = [g for g in table.groups if g.state.size]
    return sorted(held, key=lambda g: (not bool(((g.state == PENDING) | (g.state == RUNNING)).any()), -len(g.rows), g.gid))


def matrix_text(table: Table, report: Report) -> str:
    """One block per group: a line per rank, a character per operation (. completed, r started, s scheduled, blank not entered)."""
    blocks = ["matrix: . completed   r started   s scheduled   blank not entered   ? no dump"]
    shown = set(_shown_ranks(table, report))
    for g in _groups(table)[:16]:
        last = min(LAST, g.state.shape[1])
        blocks.append(f"{safe(g.title)}  seq {g.base + g.state.shape[1] - last} .. {g.base + g.state.shape[1] - 1}")
        for row, rank in enumerate(g.rows.tolist()):
            if rank not in shown:
                continue
            cells = "?" * last if g.enq[row] == UNKNOWN else "".join(_SIGN[int(s)] for s in g.state[row, -last:])
            mark = " <- culprit" if rank in report.culprits else " <- slow" if rank in report.slow else ""
            blocks.append(f"  {rank:>6} |{cells}|{mark}")
    return "\n".join(blocks)


_STYLE = """body{font:14px system-ui,sans-serif;margin:2em;color:#222}table{border-collapse:collapse;margin:0 0 2em}
td,th{padding:2px 5px;font:12px ui-monospace,monospace;border:1px solid #ddd;text-align:center}th{background:#f6f6f6}
.d{background:#cfe8d0}.s{background:#ffd9a0}.r{background:#ffe98a}.a{background:#f4c7c3}.u{background:#ddd}.culprit th{background:#c0392b;color:#fff}
.slow th{background:#e0a800}@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}td{color:#111}th{background:#2a2a2a;color:#ddd}}"""


def matrix_html(table: Table, report: Report, title: str = "Flight records") -> str:
    """A whole HTML page: the verdict, evidence, and a table per group with the operation's name in each cell's title."""
    q = html.escape
    out = [f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{q(safe(title))}</title><style>{_STYLE}</style><h1>{q(safe(title))}</h1>']
    out.append(f"<pre>{q(summary(report))}</pre>")
    out.append(
        '<p><span class="d">completed</span> <span class="r">started</span> <span class="s">scheduled</span> <span class="a">not entered</span></p>'
    )
    shown = _shown_ranks(table, report)
    for g in _groups(table)[:32]:
        rows = [r for r in shown if g.row(r) >= 0]
        last = min(LAST, g.state.shape[1])
        start = g.state.shape[1] - last
        head = "".join(f"<th>{g.base + start + c}</th>" for c in range(last))
        out.append(f"<h2>{q(safe(g.title))}</h2><table><tr><th>rank</th>{head}</tr>")
        for rank in rows:
            row = g.row(rank)
            kind = "culprit" if rank in report.culprits else "slow" if rank in report.slow else ""
            cells = []
            for c in range(start, g.state.shape[1]):
                state, k = int(g.state[row, c]), int(g.kind[row, c])
                if state == ABSENT and g.enq[row] == UNKNOWN:
                    cells.append('<td class="u" title="no dump">?</td>')
                elif state == ABSENT and g.enq[row] >= g.base + c:
                    cells.append('<td class="d" title="entered, not held any more"></td>')
                else:
                    label = f"{table.kinds[k].label} {_WORD[state]}" if k >= 0 else _WORD[state]
                    cells.append(f'<td class="{_CLASS[state]}" title="{q(safe(label), quote=True)}"></td>')
            out.append(f'<tr class="{kind}"><th>{rank}</th>{"".join(cells)}</tr>')
        hidden = len(g.rows) - len(rows)
        out.append("</table>" + (f"<p>{hidden} more ranks not shown</p>" if hidden else ""))
    out.append("</html>")
    return "".join(out)


def lateness_text(ranks: tuple[int, ...], late: np.ndarray[tuple[int, int], np.dtype[np.float64]], last: int = 12) -> str:
    """The entry-skew matrix: a line per rank, milliseconds late at each of the last operations."""
    lines = ["entry skew, ms after the others (own clock offset removed)"]
    for rank, row in list(zip(ranks, late, strict=True))[:MAX_ROWS]:
        lines.append(f"  {rank:>6} | " + " ".join(f"{x * 1000:7.1f}" for x in row[-last:]))
    return "\n".join(lines)
