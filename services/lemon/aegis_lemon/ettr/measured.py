"""Measured ETTR: one ledger of second-exact states per run, and every definition in use as a sum over the same rows.

The states are those of `aegis_proto.phases.LedgerState`. Work that a failure threw away is `lost` in the ledger and its repeat is `productive`:
it is counted once. A blocking save is not productive (the paper's second version).

    ettr             productive / all                                      Kokolis: the queue is in
    cumulative       productive / all since nodes were first held          ByteRobust: the run so far
    no_queue         productive / (all - queued)
    runtime_goodput  productive / (all - queued - drained)                 Google: of the time in which all nodes are there
    one_minus_waste  (1 - saving share of fault-free time) (1 - failure share of time on the machine)    HPC; equals no_queue here
so ettr <= cumulative <= no_queue <= runtime_goodput. The 1-hour window is `windows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aegis_proto.phases import LedgerState

from .setting import SettingError

HOUR = 3600.0
NAMES = ("ettr", "cumulative", "no_queue", "runtime_goodput", "one_minus_waste")


class LedgerError(SettingError):
    """Rows that cannot be a ledger; the message names the run and the row."""


@dataclass(frozen=True)
class Span:
    """One state of a run, from `start` to `end`, seconds. `stopped` marks a row after which the run was stopped by a failure: a cycle ends."""

    state: LedgerState
    start: float
    end: float
    stopped: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Run:
    """A run's ledger, in order of time and without gaps, and what it is grouped by."""

    job: str
    spans: tuple[Span, ...]
    gpus: int = 0
    priority: str = ""
    cluster: str = ""

    def __post_init__(self) -> None:
        before: Span | None = None
        for index, span in enumerate(self.spans):
            if not (math.isfinite(span.start) and math.isfinite(span.end)) or span.end < span.start:
                raise LedgerError(f"run {self.job}, row {index + 1}: ends at {span.end:g} before it starts at {span.start:g}")
            if before is not None and span.start < before.end - 1e-6:
                raise LedgerError(f"run {self.job}, row {index + 1}: starts at {span.start:g}, before row {index} ends at {before.end:g}")
            if before is not None and span.start > before.end + 1e-6:
                raise LedgerError(f"run {self.job}, row {index + 1}: {span.start - before.end:g} s after row {index} are in no state")
            before = span


@dataclass(frozen=True)
class Interval:
    """A ratio with its confidence interval; `low` and `high` are None when too few failures were seen to give one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Measured:
    """Every ratio of one group. `seconds` sums each state, `cycles` counts stretches between failures, `worst_stretch` the longest one (seconds)
    without any productive second."""

    runs: int
    cycles: int
    seconds: Mapping[str, float]
    ratios: Mapping[str, Interval]
    worst_window: float
    worst_stretch: float
    parts: Mapping[str, float] = field(default_factory=dict)


def _sums(spans: Iterable[Span]) -> dict[str, float]:
    sums = {state.value: 0.0 for state in LedgerState}
    for span in spans:
        sums[span.state.value] += span.seconds
    return sums


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def cycles(run: Run) -> list[list[Span]]:
    """The run cut behind each failure: what the confidence interval takes as independent."""
    cut: list[list[Span]] = [[]]
    for span in run.spans:
        cut[-1].append(span)
        if span.stopped:
            cut.append([])
    return [cycle for cycle in cut if cycle]


def first_held(run: Run) -> float:
    """When the run left its first queue; its end if it never did."""
    return next((span.start for span in run.spans if span.state is not LedgerState.QUEUED), run.spans[-1].end if run.spans else 0.0)


def _whole(name: str, sums: Mapping[str, float], first_wait: float) -> float:
    everything = sum(sums.values())
    match name:
        case "ettr":
            return everything
        case "cumulative":
            return everything - first_wait
        case "runtime_goodput":
            return everything - sums["queued"] - sums["drained"]
        case _:
            return everything - sums["queued"]


def t_quantile(freedom: int, level: float) -> float:
    """Two-sided Student t, by Cornish-Fisher from the normal quantile: within 1 % for 3 or more degrees of freedom."""
    from statistics import NormalDist

    z = NormalDist().inv_cdf(0.5 + level / 2)
    n = float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )  # fmt: skip


def ratio_interval(parts: Sequence[float], wholes: Sequence[float], level: float = 0.95) -> Interval:
    """Sum of parts over sum of wholes, with the delta-method interval of a ratio over independent cycles; none below 4 cycles."""
    total = sum(wholes)
    value = _share(sum(parts), total)
    count = len(parts)
    if count < 4 or total <= 0:
        return Interval(value)
    spread = sum((part - value * whole) ** 2 for part, whole in zip(parts, wholes, strict=True))
    half = t_quantile(count - 1, level) * math.sqrt(count / (count - 1) * spread) / total
    return Interval(value, max(0.0, value - half), min(1.0, value + half))


def windows(run: Run, width: float = HOUR) -> list[tuple[float, float]]:
    """(end of window, productive share) at each whole window from the run's start; the last may be cut short and is left out unless it is alone."""
    if not run.spans:
        return []
    begin, end = run.spans[0].start, run.spans[-1].end
    count = max(1, int((end - begin) // width))
    productive = [0.0] * count
    for span in run.spans:
        if span.state is LedgerState.PRODUCTIVE:
            for index in range(int((span.start - begin) // width), min(count - 1, int((span.end - begin) // width)) + 1):
                left = begin + index * width
                productive[index] += max(0.0, min(span.end, left + width) - max(span.start, left))
    length = min(width, end - begin)
    return [(begin + (index + 1) * length, _share(value, length)) for index, value in enumerate(productive)]


def longest_stretch(run: Run) -> float:
    """Longest time without a productive second, the first queue left out."""
    longest, since = 0.0, first_held(run)
    for span in run.spans:
        if span.state is LedgerState.PRODUCTIVE and span.seconds > 0:
            longest, since = max(longest, span.start - since), span.end
    return max(longest, run.spans[-1].end - since) if run.spans else 0.0


def measure(runs: Sequence[Run], level: float = 0.95) -> Measured:
    """All definitions over a group of runs; the interval treats the stretches between failures as independent."""
    sums = _sums(span for run in runs for span in run.spans)
    pieces: list[tuple[dict[str, float], float]] = []
    for run in runs:
        held = first_held(run)
        for cycle in cycles(run):
            pieces.append((_sums(cycle), sum(max(0.0, min(span.end, held) - span.start) for span in cycle)))
    useful = [piece["productive"] for piece, _ in pieces]
    ratios = {name: ratio_interval(useful, [_whole(name, piece, wait) for piece, wait in pieces], level) for name in NAMES}
    fault_free = sums["productive"] + sums["saving"]
    failure = sum(sums.values()) - sums["queued"] - fault_free
    parts = {"waste_saving": _share(sums["saving"], fault_free), "waste_failure": _share(failure, fault_free + failure)}
    shares = [share for run in runs for _, share in windows(run)]
    return Measured(
        len(runs), len(pieces), sums, ratios, min(shares, default=0.0), max((longest_stretch(run) for run in runs), default=0.0), parts
    )  # fmt: skip


SIZES = (8, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper ends of the size classes, in GPUs; the paper's figures use powers of two."""


def size_class(run: Run) -> str:
    """`65-256`: the class of a run's GPUs."""
    low = 1
    for high in SIZES:
        if run.gpus <= high:
            return f"{low}-{high}"
        low = high + 1
    return f"{low}+"


GROUPS: dict[str, Callable[[Run], str]] = {"size": size_class, "priority": lambda run: run.priority, "cluster": lambda run: run.cluster}


def by(runs: Sequence[Run], group: str, level: float = 0.95) -> dict[str, Measured]:
    """Measured per size class, priority or cluster."""
    if group not in GROUPS:
        raise SettingError(f'group "{group}": expected one of {", ".join(GROUPS)}')
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(GROUPS[group](run), []).append(run)
    return {key: measure(members, level) for key, members in grouped.items()}
