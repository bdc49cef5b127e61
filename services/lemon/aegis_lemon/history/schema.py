"""The documented format as data: tables, columns, states of jobs and kinds of events (docs/history.md), and what is wrong with a row."""

from __future__ import annotations

from dataclasses import dataclass


class HistoryError(ValueError):
    """A history that gives no answer; the message names the file and what was expected."""

    code = "E141"


@dataclass(frozen=True)
class Problem:
    """A row that was left out, or (line 0) something about a whole file. Lines count from 1, the header included."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file} line {self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


@dataclass(frozen=True)
class Table:
    """Columns that a file must have, and those that it may have."""

    required: tuple[str, ...]
    optional: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.required + self.optional


TABLES: dict[str, Table] = {
    "jobs": Table(("job", "start", "end", "nodes"), ("state", "failure", "blame", "user", "family", "excluded", "cause")),
    "events": Table(("time", "node", "kind"), ("end", "value", "job")),
    "nodes": Table(("node",), ("role", "rack", "switch", "serial", "since", "until")),
}

STATES: dict[str, str] = {
    "": "none",
    "completed": "none",
    "running": "none",
    "cancelled": "none",
    "preempted": "none",
    "requeued": "none",
    "suspended": "none",
    "timeout": "none",
    "deadline": "none",
    "out_of_memory": "none",
    "revoked": "none",
    "failed": "unknown",
    "node_fail": "infra",
    "boot_fail": "infra",
}
"""State -> whose failure it is when the column `failure` is empty. `unknown` becomes `infra` when a critical event of one of the job's nodes fell
into the last 10 minutes of the job or the 5 minutes after it (Kokolis et al., sec. III), else it is taken as the user's."""
FAILURES = ("none", "infra", "user", "unknown")
BEFORE_END, AFTER_END = 600.0, 300.0
"""Seconds of that rule."""

KINDS: dict[str, str] = {
    "xid": "a GPU error; `value` is its number",
    "failure": "the node failed, with or without a job",
    "outage": "the node failed and was out of service until `end`",
    "out": "taken out of service until `end`, for whatever reason",
    "ticket": "a repair ticket was opened",
    "exclude": "a job (`job`) asked not to run here",
    "repair": "repaired: what was before does not count; `value` is the serial that left, if one did",
}

EARLIEST, LATEST = 0.0, 7_258_118_400.0  # 1970 and 2200, seconds
SIGNALS = (
    "excl_jobid_count",
    "xid_cnt",
    "tickets",
    "out_count",
    "multi_node_node_fails",
    "single_node_node_fails",
    "single_node_node_failure_rate",
)
"""The seven of Kokolis et al., sec. IV-A, under their names. `xid_cnt` counts errors of the hardware class only: application errors (13, 31, 43, ...)
follow the user's code and make the count useless as a sign of bad hardware."""
