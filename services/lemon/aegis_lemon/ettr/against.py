"""Measured ETTR beside the expected one, by size of job: does one failure rate per node explain all sizes? Pure.

One rate for all groups, from all failures over all node-days that nodes were held. Everything else is the group's own: what a restart and a wait for
nodes took in the mean, what saving cost, and the interval that its lost work speaks of (a failure loses half of one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegis_proto.phases import LedgerState

from .expected import exact
from .measured import GROUPS, Interval, Run, measure
from .setting import DAY, GPUS_PER_NODE, Setting

HOUR = 3600.0


@dataclass(frozen=True)
class Seen:
    """What runs say of a job's surroundings. Seconds, GPUs by time; `write` -1 and `every` 0: not known."""

    gpus: float
    failures: int
    node_days: float
    restart: float
    queue: float
    write: float
    every: float

    def setting(self, rf: float, every: float = 0.0) -> tuple[Setting, float]:
        """(the setting at that rate, the interval between saves: the given, else the seen, else an hour)."""
        return Setting(self.gpus / GPUS_PER_NODE, rf, max(0.0, self.write), self.restart, self.queue), every or self.every or HOUR


@dataclass(frozen=True)
class Against:
    """One group."""

    group: str
    seen: Seen
    measured: Interval
    expected: float


def seen(runs: Sequence[Run]) -> Seen:
    """Of runs whose GPUs are known. Where no save is in the ledger, a failure is taken to have lost half an interval."""
    sums = measure(runs).seconds
    spans = [span for run in runs for span in run.spans]
    failures = sum(span.stopped for span in spans)
    saves = sum(span.state is LedgerState.SAVING for span in spans)
    whole = sum(run.spans[-1].end - run.spans[0].start for run in runs if run.spans)
    held = sum(run.gpus * (run.spans[-1].end - run.spans[0].start) for run in runs if run.spans)
    starts = max(1, failures + len(runs))
    back = sum(sums[name] for name in ("booting", "restoring", "checking", "hung"))
    return Seen(
        held / whole if whole else 0.0,
        failures,
        held / GPUS_PER_NODE / DAY,
        back / starts,
        (sums["queued"] + sums["drained"]) / starts,
        sums["saving"] / saves if saves else -1.0,
        (sums["productive"] + sums["lost"]) / saves if saves else 2 * sums["lost"] / failures if failures else 0.0,
    )


def against(runs: Sequence[Run], group: str = "size", every: float = 0.0, level: float = 0.95) -> tuple[float, list[Against]]:
    """(failures per 1000 node-days of all, one row for each group whose GPUs are known)."""
    known = [run for run in runs if run.gpus and run.spans]
    all_ = seen(known)
    rf = all_.failures / all_.node_days * 1000 if all_.node_days else 0.0
    grouped: dict[str, list[Run]] = {}
    for run in known:
        grouped.setdefault(GROUPS[group](run), []).append(run)
    rows = []
    for name, mine in grouped.items():
        found = seen(mine)
        rows.append(Against(name, found, measure(mine, level).ratios["ettr"], exact(*found.setting(rf, every))))
    return rf, sorted(rows, key=lambda row: row.seen.gpus)
