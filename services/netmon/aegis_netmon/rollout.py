"""Turning adaptive routing on, one pod first: before against after, and whether to go on. Pure.

The pod that goes first is the one on which least depends. What should fall are retransmits and drops; bandwidth must not fall, and the latency of
small messages may rise a little: that is the price, and it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from aegis_netmon import rates

SLACK = 0.02
"""Change of bandwidth that is noise (ours)."""
LATENCY_SLACK = 0.10
"""Rise of the latency of small messages that is still bought gladly (ours)."""


class Pod(msgspec.Struct, frozen=True):
    """A pod with its jobs' GPUs and whether it is called core."""

    name: str
    busy_gpus: int
    core: bool = False


class Sample(msgspec.Struct, frozen=True):
    """What was counted over a time: events with what they happened to, bandwidth (Gbit/s) and latency of small messages (us) as measured."""

    packets: float
    retransmits: int
    drops: int
    bits: float
    bit_errors: int
    bandwidth_gbps: float | None = None
    latency_us: float | None = None


class Row(msgspec.Struct, frozen=True):
    """One quantity. `better`, `worse` only where the intervals do not touch or the change is more than noise."""

    name: str
    before: float | None
    after: float | None
    verdict: Literal["better", "worse", "same", "unknown"]
    unit: str = ""


class Decision(msgspec.Struct, frozen=True):
    """`go`: on to the next pod; `back`: turn it off again; `wait`: not enough is known."""

    step: Literal["go", "back", "wait"]
    reason: str
    rows: tuple[Row, ...]


def order(pods: Sequence[Pod]) -> list[str]:
    """In which order pods are switched: those that are not core and least busy first."""
    return [pod.name for pod in sorted(pods, key=lambda pod: (pod.core, pod.busy_gpus, pod.name))]


def counted(name: str, before: tuple[int, float], after: tuple[int, float]) -> Row:
    """Rates of events, compared by their intervals."""
    one, other = rates.rate(*before), rates.rate(*after)
    if one is None or other is None:
        return Row(name, one and one.value, other and other.value, "unknown")
    verdict: Literal["better", "worse", "same"] = "better" if other.high < one.low else "worse" if other.low > one.high else "same"
    return Row(name, one.value, other.value, verdict)


def measured(name: str, before: float | None, after: float | None, slack: float, unit: str, *, more_is_better: bool) -> Row:
    """Measured values, compared with what is noise."""
    if not before or after is None:
        return Row(name, before, after, "unknown", unit)
    change = after / before - 1
    if abs(change) <= slack:
        return Row(name, before, after, "same", unit)
    return Row(name, before, after, "better" if (change > 0) == more_is_better else "worse", unit)


def judge(before: Sample, after: Sample) -> Decision:
    """One pod, before and after."""
    rows = (
        counted("retransmits per packet", (before.retransmits, before.packets), (after.retransmits, after.packets)),
        counted("drops per packet", (before.drops, before.packets), (after.drops, after.packets)),
        counted("bit error rate", (before.bit_errors, before.bits), (after.bit_errors, after.bits)),
        measured("bandwidth", before.bandwidth_gbps, after.bandwidth_gbps, SLACK, "Gbit/s", more_is_better=True),
        measured("latency of small messages", before.latency_us, after.latency_us, LATENCY_SLACK, "us", more_is_better=False),
    )
    by: Mapping[str, Row] = {row.name: row for row in rows}
    if by["bandwidth"].verdict == "unknown":
        return Decision("wait", "bandwidth was not measured before and after", rows)
    worse = [row.name for row in rows if row.verdict == "worse" and row.name != "bit error rate"]
    if worse:
        return Decision("back", f"worse: {', '.join(worse)}", rows)
    uncounted = [name for name in ("retransmits per packet", "drops per packet") if by[name].verdict == "unknown"]
    if uncounted:
        return Decision("wait", f"not counted before and after: {', '.join(uncounted)}", rows)
    if by["bit error rate"].verdict == "worse":
        return Decision("wait", "the bit error rate rose: that is a link, not the routing; mend it first", rows)
    better = [row.name for row in rows if row.verdict == "better"]
    return Decision("go", f"better: {', '.join(better)}" if better else "nothing is worse", rows)
