"""The health of one port: its counters, its bit error rate, its flaps, judged by the table of limits. Pure.

A limit is reached when the lower bound of the rate reaches it, so that one error on a quiet link raises nothing by itself; a single event is a
finding only of the counters whose row says so. What is unproven is said to be, and never called healthy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec
from aegis_parsers.ib import counters
from aegis_parsers.schema import SEVERITIES, Item, Severity

from aegis_netmon import ber, flaps, rates
from aegis_netmon.limits import CounterLimit, Limits, default
from aegis_netmon.series import Port, Step

State = Literal["healthy", "unproven", "watch", "degraded", "flapping", "down", "unknown"]
"""unproven: nothing wrong seen, and too few bits to call it good. degraded: a job on it suffers. The order is that of alarm."""

LEAST_EVENTS = 2
"""A rate has at least so many: one error on a quiet link raises nothing, however little it carried."""


class Finding(msgspec.Struct, frozen=True):
    """`code` is stable; `story` is what the counter did, in a sentence with its numbers; `source`: whose limit."""

    code: str
    severity: Severity
    counter: str
    story: str
    source: str = ""
    value: float | None = None
    low: float | None = None
    limit: float | None = None


class Slow(msgspec.Struct, frozen=True):
    """A link that is up and slower than it should be: `source` says by whose word."""

    reason: str
    severity: Severity
    source: str


class Health(msgspec.Struct, frozen=True):
    """One port. `ber` is the verdict on symbol errors (or the worst that the optics' tool prints)."""

    guid: str
    port: int
    state: State
    findings: tuple[Finding, ...]
    ber: ber.BerVerdict
    flap: flaps.FlapVerdict
    fec_margin: int | None = None


def judge(
    port: Port,
    flap: flaps.FlapVerdict | None = None,
    *,
    gbps: float | None = None,
    optics: Item | None = None,
    raw_history: Sequence[float] = (),
    adaptive: bool | None = None,
    expected: bool = True,
    slow: Slow | None = None,
    limits: Limits | None = None,
) -> Health:
    """One port after its last poll. `gbps`: line rate on the wire; `optics`: its item of mlxlink; `raw_history`: raw BERs of its past; `adaptive`:
    whether adaptive routing is on (None: unknown); `expected`: whether it should be up at all; `slow`: that it came up slower than it should."""
    limits = limits or default()
    flap = flap or flaps.FlapVerdict("unknown")
    found = list(of_counters(port, gbps, limits))
    found += of_order(port, adaptive)
    found += of_flaps(flap) if expected else []
    found += of_rate(slow)
    own, optic = symbol_ber(port, gbps, limits), None
    margin = None
    if optics is not None:
        optic, margin, more = of_optics(optics, limits)
        found += more
        if ber.raw_rising(raw_history, raw := number(optics.get("raw_ber")), limits.ber):
            story = f"raw BER {raw:.2g}, more than {limits.ber.raw_trend:g} times the port's own median: it is corrected still"
            found.append(Finding("raw_ber_rising", "info", "raw_ber", story, limits.ber.source, raw))
    verdict = worse(own, optic)
    found += of_ber(verdict, limits)
    found += [
        Finding("counter_saturated", "info", name, f"{name} stands at its cap of {bits_of(name)} bits: what comes is invisible until a reset")
        for name, state in sorted(port.odd.items())
        if state == "saturated" and name != "port_xmit_wait"
    ]
    return Health(port.guid, port.port, state_of(found, verdict, flap, expected, port), tuple(one_each(found)), verdict, flap, margin)


def state_of(found: Sequence[Finding], verdict: ber.BerVerdict, flap: flaps.FlapVerdict, expected: bool, port: Port) -> State:
    if expected and flap.state in ("down", "dropped"):
        return "down"
    if expected and flap.state == "flapping":
        return "flapping"
    worst = max((SEVERITIES.index(finding.severity) for finding in found), default=0)
    if worst >= SEVERITIES.index("critical"):
        return "degraded"
    if worst == SEVERITIES.index("warning"):
        return "watch"
    if not port.steps:
        return "unknown"
    return "unproven" if verdict.state in ("not_enough_bits", "unknown") else "healthy"


def one_each(found: Sequence[Finding]) -> Iterator[Finding]:
    """The worst finding of each code, worst first."""
    best: dict[str, Finding] = {}
    for finding in found:
        old = best.get(finding.code)
        if old is None or SEVERITIES.index(finding.severity) > SEVERITIES.index(old.severity):
            best[finding.code] = finding
    yield from sorted(best.values(), key=lambda finding: -SEVERITIES.index(finding.severity))


def of_counters(port: Port, gbps: float | None, limits: Limits) -> Iterator[Finding]:
    """Findings of the table's rows over the port's window."""
    rose = {name for step in port.steps if step.counts for name in step.counts}
    if rose:
        for row in limits.counter:
            if row.name in rose:
                yield from of_row(row, port, gbps, limits)


def of_row(row: CounterLimit, port: Port, gbps: float | None, limits: Limits) -> Iterator[Finding]:
    """Findings of one counter, which has risen."""
    steps = port.steps
    count = sum(step.counts.get(row.name, 0) for step in steps)
    seconds = sum(step.seconds for step in steps)
    words = f"{row.name} rose by {'at least ' if any(row.name in step.least for step in steps) else ''}{count} in {seconds:.0f} s"
    if row.any is not None and any(row.counts_in(step) for step in steps):
        yield Finding(row.code, row.any, row.name, words, row.source, count)
    if row.burst is not None and (top := rates.peak(steps, row.name)) and top[0] >= row.burst and top[0] >= limits.burst.share * count:
        story = f"{row.name} rose by {top[0]} within one poll ({top[1].seconds:.0f} s), of {count} in {seconds:.0f} s: a burst"
        yield Finding(f"{row.code}_burst", "warning", row.name, story, row.source, top[0], None, row.burst)
    if row.steady and sum(row.name in step.counts for step in steps) < rates.LEAST_STEPS:
        return
    found = rate_of(row, steps, gbps)
    if found is None or found.events < LEAST_EVENTS:
        return
    per = row.per.replace("_", " ").removesuffix("s")
    story = f"{words}: {found.value:.2g} per {per}, at least {found.low:.2g}"
    if row.bad is not None and found.low > row.bad:
        yield Finding(row.code, "critical", row.name, story, row.source, found.value, found.low, row.bad)
    elif row.warn is not None and found.low >= row.warn:
        yield Finding(row.code, row.severity, row.name, story, row.source, found.value, found.low, row.warn)


def rate_of(row: CounterLimit, steps: Sequence[Step], gbps: float | None) -> rates.Rate | None:
    """The rate that a row asks for. Line bits pass with or without traffic; where the line rate is unknown, the bits that were carried count."""
    if row.per != "line_bits":
        return rates.over(steps, row.name, row.per)
    if gbps is None:
        return rates.over(steps, row.name, "rcv_bits")
    found = rates.over(steps, row.name, "second")
    return found and rates.rate(found.events, found.exposure * gbps * 1e9, found.at_least)


def symbol_ber(port: Port, gbps: float | None, limits: Limits) -> ber.BerVerdict:
    """BER from symbol errors since the baseline, or over the window if that is worse: months of silence must not hide a link that breaks now."""
    if "symbol_error" not in port.values or port.odd.get("symbol_error") in ("unknown", "saturated"):
        return ber.BerVerdict("unknown")
    total = port.total.seconds * gbps * 1e9 if gbps else float(port.total.rcv_bits)
    recent = sum(step.seconds for step in port.steps) * gbps * 1e9 if gbps else float(sum(step.rcv_bits or 0 for step in port.steps))
    whole = proved(ber.judge(port.counts.get("symbol_error", 0), total, limits.ber), limits)
    window = proved(ber.judge(sum(step.counts.get("symbol_error", 0) for step in port.steps if step.counts), recent, limits.ber), limits)
    return window if BAD_FIRST.index(window.state) < min(2, BAD_FIRST.index(whole.state)) else whole


def proved(verdict: ber.BerVerdict, limits: Limits) -> ber.BerVerdict:
    """A single error is no rate: among thousands of ports some have theirs in the first seconds that are seen."""
    if verdict.errors is None or verdict.errors >= LEAST_EVENTS or verdict.state not in ("bad", "watch"):
        return verdict
    return msgspec.structs.replace(
        verdict, state="not_enough_bits", bits_needed=(verdict.high or 0.0) * verdict.bits / limits.ber.watch - verdict.bits
    )


BAD_FIRST = ("bad", "watch", "not_enough_bits", "unknown", "good")


def worse(one: ber.BerVerdict, other: ber.BerVerdict | None) -> ber.BerVerdict:
    """The one that alarms more; of two that do not, the one that knows more."""
    if other is None:
        return one
    for state in ("bad", "watch", "good", "not_enough_bits"):
        for verdict in (one, other):
            if verdict.state == state:
                return verdict
    return one


def of_ber(verdict: ber.BerVerdict, limits: Limits) -> Iterator[Finding]:
    """A BER above a limit, with what the bits prove."""
    if verdict.state not in ("bad", "watch"):
        return
    proof = f", between {verdict.low:.2g} and {verdict.high:.2g}" if verdict.low is not None and verdict.high is not None else ""
    story = f"BER {verdict.value:.2g}{proof}" + (f" ({verdict.errors} errors in {verdict.bits:.2g} bits)" if verdict.bits else "")
    code, severity, limit = ("ber_high", "critical", limits.ber.bad) if verdict.state == "bad" else ("ber_elevated", "warning", limits.ber.watch)
    yield Finding(code, "critical" if severity == "critical" else "warning", "", story, limits.ber.source, verdict.value, verdict.low, limit)


def of_order(port: Port, adaptive: bool | None) -> Iterator[Finding]:
    """Packets out of order: with adaptive routing on that is its price, unless packets are sent again too; without it, packets were lost."""
    late = sum(step.counts.get("out_of_sequence", 0) for step in port.steps if step.counts)
    if not late:
        return
    again = sum(step.counts.get("packet_seq_err", 0) for step in port.steps)
    if adaptive:
        story = f"out_of_sequence rose by {late}, packet_seq_err by {again}: adaptive routing reorders"
        yield Finding("reordered", "info", "out_of_sequence", story, "facts: normal with adaptive routing")
    else:
        why = "static routes do not reorder, packets were lost" if adaptive is False else "lost packets or adaptive routing, whose state is unknown"
        yield Finding("out_of_sequence", "info", "out_of_sequence", f"out_of_sequence rose by {late}: {why}", "facts")


def clock(at: float | None) -> str:
    """For a person.

    >>> clock(1796038995.4)
    '2026-11-30 11:43:15 UTC'
    """
    return f"{datetime.fromtimestamp(at or 0, UTC):%Y-%m-%d %H:%M:%S} UTC"


def of_flaps(flap: flaps.FlapVerdict) -> Iterator[Finding]:
    """Down, dropped, flapping, or down a moment ago."""
    if flap.state in ("down", "dropped"):
        yield Finding("link_down", "critical", "state", f"down for {flap.longest:.0f} s, since {clock(flap.since)}", "gpud")
    elif flap.state == "flapping":
        story = f"{flap.dips} dips, the longest {flap.longest:.0f} s; called well after {clock(flap.clears_at)} if none follows"
        yield Finding("link_flapping", "critical", "state", story, "gpud, oci")
    elif flap.state == "was_down":
        yield Finding("link_was_down", "warning", "state", f"down for {flap.longest:.0f} s, up again; shown until {clock(flap.clears_at)}", "ours")


def of_rate(slow: Slow | None) -> list[Finding]:
    """Up, and slower than it should be."""
    return [] if slow is None else [Finding("link_slow", slow.severity, "rate", slow.reason, slow.source)]


def aside(guid: str, port: int) -> Health:
    """A port that is no part of the fabric."""
    story = "an Ethernet port of a node with InfiniBand: taken for management, read and not judged; the manifest (netmon.expected) may name it"
    told = (Finding("not_judged", "info", "link_layer", story, "ours"),)
    return Health(guid, port, "unknown", told, ber.BerVerdict("unknown"), flaps.FlapVerdict("unknown"))


def of_optics(item: Item, limits: Limits) -> tuple[ber.BerVerdict, int | None, list[Finding]]:
    """What mlxlink says: effective and symbol BER, margin of the FEC, lanes. Raw BER alone is never a finding."""
    minutes, gbps = number(item.get("minutes_since_clear")), number(item.get("line_rate_gbps"))
    verdicts = [
        ber.printed(number(item.get(f"{kind}_ber")), minutes, gbps, whole(item.get(f"{kind}_errors")), limits.ber) for kind in ("effective", "symbol")
    ]
    bins = item.get("fec_histogram")
    histogram = {int(n): int(count) for n, count in bins.items() if isinstance(count, int)} if isinstance(bins, dict) else None
    margin = ber.fec(histogram, limits.fec, whole(item.get("fec_last_bin")))
    found = []
    if margin.state in ("watch", "bad"):
        severity: Severity = "critical" if margin.state == "bad" else "warning"
        story = f"code words {margin.margin} symbols short of uncorrectable"
        found.append(Finding("fec_margin", severity, "fec_histogram", story, limits.fec.source, margin.margin, None, limits.fec.margin_watch))
    if margin.burst_bins:
        story = f"the histogram does not fall after bin {', '.join(map(str, margin.burst_bins))}: errors come in bursts"
        found.append(Finding("fec_bursts", "info", "fec_histogram", story, limits.fec.source))
    lanes = item.get("raw_errors_per_lane")
    if isinstance(lanes, list) and (odd := ber.odd_lanes([whole(lane) for lane in lanes], limits.ber)):
        story = f"lane {', '.join(map(str, odd))} has far more raw errors than the others: {lanes}"
        found.append(Finding("odd_lane", "warning", "raw_errors_per_lane", story, limits.ber.source))
    return worse(verdicts[0], verdicts[1]), margin.margin, found


def number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def bits_of(name: str) -> int:
    row = counters.known(name)
    return row.bits if row else 64
