"""Time to failure by size of job: does it fall as 1/N, and with which rate? Reads a `History`."""

from __future__ import annotations

from dataclasses import dataclass

from aegis_lemon.ettr import rate_interval

from .observe import DAY
from .store import History

SETTLED = 16
"""Nodes above which a job's failures are the nodes': the paper takes r_f from jobs of more than 128 GPUs. Smaller ones fail for other reasons too."""


@dataclass(frozen=True)
class SizeClass:
    """Jobs of `low` to `high` nodes. Seconds; `mttf` is None without a failure, its interval 90 %."""

    low: int
    high: int
    jobs: int
    failures: int
    node_days: float
    mttf: float | None
    mttf_low: float
    mttf_high: float | None
    nodes: float
    """Mean nodes of the class, by time."""


def by_size(history: History) -> list[SizeClass]:
    """One row for each power of two that has jobs."""
    rows = history.rows_of("""SELECT CAST(ceil(log2(count)) AS INTEGER) c, count(*), count(*) FILTER (failure = 'infra'),
        sum((e - s) * count) / 86400, sum(e - s) / 86400 FROM jobs WHERE e > s GROUP BY c ORDER BY c""")
    found = []
    for power, jobs, failures, node_days, days in rows:
        nodes = node_days / days
        rate, low, high = (value / 1000 * nodes for value in rate_interval(failures, node_days, 0.9))
        mttf = DAY / rate if failures else None
        found.append(SizeClass(2**power // 2 + 1, 2**power, jobs, failures, node_days, mttf, DAY / high, DAY / low if low > 0 else None, nodes))
    return found


def settled_rate(history: History) -> tuple[float, float, float]:
    """r_f per 1000 node-days of jobs above `SETTLED` nodes (of all, when there are none), with a 95 % interval."""
    sql = "SELECT count(*) FILTER (failure = 'infra'), coalesce(sum((e - s) * count), 0) / 86400 FROM jobs WHERE e > s"
    failures, node_days = history.rows_of(f"{sql} AND count > {SETTLED}")[0]
    if not node_days:
        failures, node_days = history.rows_of(sql)[0]
    return rate_interval(failures, node_days) if node_days else (0.0, 0.0, 0.0)
