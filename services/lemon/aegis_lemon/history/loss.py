"""Goodput that failures cost, by size of job: of the jobs that failed, and of those that were preempted when such a job came back. Reads a `History`.

As Kokolis et al. (fig. 8): every job is taken to save once an hour, so that a stop costs half of that, or its whole run where that was shorter, times
its GPUs. First order: the jobs that the infrastructure failed. Second order: a job that was preempted between such a failure and a minute after the
failed job's next run began, on a node of that run; it is charged to the size of the job that came back.
"""

from __future__ import annotations

from dataclasses import dataclass

from aegis_lemon.ettr.setting import GPUS_PER_NODE

from .observe import DAY
from .store import History

HALF_INTERVAL = 1800.0
GRACE = 60.0
"""Seconds after the start of a run in which a job that made room for it may end."""


@dataclass(frozen=True)
class LossClass:
    """Jobs of `low` to `high` nodes; GPU-hours."""

    low: int
    high: int
    failed: int
    first: float
    preempted: int
    second: float


def goodput_loss(history: History, half_interval: float = HALF_INTERVAL) -> list[LossClass]:
    """One row for each power of two of nodes that lost anything."""
    cost = f"least(e - s, ?) * count * {GPUS_PER_NODE} / 3600"
    first = history.rows_of(
        f"SELECT CAST(ceil(log2(count)) AS INTEGER) c, count(*), sum({cost}) FROM jobs WHERE failure = 'infra' GROUP BY c", [half_interval]
    )
    second = history.rows_of(
        f"""WITH runs AS (SELECT id, e, failure,
              lead(id) OVER one AS again, lead(s) OVER one AS back, lead(count) OVER one AS size
              FROM jobs WINDOW one AS (PARTITION BY regexp_replace(job, '-[0-9]+$', '') ORDER BY s, id)),
            pushed AS (SELECT p.id, arg_min(r.size, r.back) size FROM runs r
              JOIN jobs p ON p.preempted AND p.e BETWEEN r.e AND r.back + {GRACE}
              JOIN job_nodes n ON n.id = p.id JOIN job_nodes m ON m.id = r.again AND m.node = n.node
              WHERE r.failure = 'infra' AND r.back BETWEEN r.e AND r.e + {DAY} GROUP BY p.id)
            SELECT CAST(ceil(log2(size)) AS INTEGER) c, count(*), sum({cost}) FROM pushed JOIN jobs USING (id) GROUP BY c""",
        [half_interval],
    )
    failed, pushed = ({power: (count, lost) for power, count, lost in rows} for rows in (first, second))
    rows = []
    for power in sorted({*failed, *pushed}):
        (jobs, lost), (preempted, more) = failed.get(power, (0, 0.0)), pushed.get(power, (0, 0.0))
        rows.append(LossClass(2**power // 2 + 1, 2**power, jobs, lost, preempted, more))
    return rows


def second_share(rows: list[LossClass]) -> float:
    """Of all loss; 16 % on the paper's first cluster."""
    total = sum(row.first + row.second for row in rows)
    return sum(row.second for row in rows) / total if total else 0.0
