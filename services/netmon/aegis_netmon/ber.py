"""Bit error rates, judged by what the bits can prove. Pure.

Zero errors prove a BER below 1e-15 only after 3e15 bits (two hours at NDR400), so that "not enough bits" is a state of its own: neither good nor bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Literal

import msgspec

from aegis_netmon import rates
from aegis_netmon.limits import Ber, Fec, default

State = Literal["good", "watch", "bad", "not_enough_bits", "unknown"]


class BerVerdict(msgspec.Struct, frozen=True):
    """`value` is the estimate, the true rate lies in [low, high] (95 %); `bits_needed`: how many more, without an error, would prove it good."""

    state: State
    errors: int | None = None
    bits: float = 0.0
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bits_needed: float = 0.0


def judge(errors: int | None, bits: float, limits: Ber | None = None) -> BerVerdict:
    """Errors among so many bits. `errors` None: unknown.

    >>> judge(0, 1e12).state, judge(0, 4e15).state, judge(50, 1e12).state
    ('not_enough_bits', 'good', 'bad')
    """
    limits = limits or default().ber
    if errors is None or bits <= 0:
        return BerVerdict("unknown", errors, max(bits, 0.0))
    low, high = rates.poisson(errors)
    if errors == 0:
        high = 2.995732273553991  # one-sided: there is no lower bound to pay for
    state: State = (
        "bad" if low > limits.bad * bits else "watch" if low > limits.watch * bits else "good" if high <= limits.watch * bits else "not_enough_bits"
    )
    needed = max(0.0, high / limits.watch - bits) if state == "not_enough_bits" else 0.0
    return BerVerdict(state, errors, bits, errors / bits, low / bits, high / bits, needed)


def printed(ber: float | None, minutes: float | None, gbps: float | None, errors: int | None = None, limits: Ber | None = None) -> BerVerdict:
    """A BER as mlxlink prints it, with the time since its counters were cleared and the line rate on the wire. Without these a BER above a limit
    is believed and "no error" is not enough."""
    limits = limits or default().ber
    if ber is None:
        return BerVerdict("unknown")
    if minutes and gbps:
        bits = minutes * 60 * gbps * 1e9
        return judge(round(ber * bits) if errors is None else errors, bits, limits)
    state: State = "bad" if ber > limits.bad else "watch" if ber > limits.watch else "not_enough_bits"
    return BerVerdict(state, errors, 0.0, ber)


def worst(verdicts: Iterable[BerVerdict]) -> BerVerdict | None:
    """Of the ends of a link the one that is worst, and else the one that proves least; None where nothing is known of any.

    >>> worst([judge(0, 4e15), judge(0, 1e12), judge(None, 0)]).bits
    1000000000000.0
    """
    known = [verdict for verdict in verdicts if verdict.value is not None]
    return max(known, key=lambda one: (one.state == "bad", one.state == "watch", one.value if one.high is None else one.high), default=None)


def odd_lanes(errors: Sequence[int | None], limits: Ber | None = None) -> list[int]:
    """Lanes (from 0) whose raw errors are far above the others': a bad fibre or laser of a port that still corrects everything."""
    limits = limits or default().ber
    known = [count for count in errors if count is not None]
    if len(known) < 2 or len(known) < len(errors):
        return []
    usual = median(known)
    return [lane for lane, count in enumerate(known) if count > 100 and count > limits.lane_spread * max(usual, 1)]


def raw_rising(history: Sequence[float], now: float | None, limits: Ber | None = None) -> bool:
    """Whether the raw BER stands far above the port's own median; a level alone never says anything."""
    limits = limits or default().ber
    return now is not None and len(history) >= 5 and median(history) > 0 and now > limits.raw_trend * median(history)


class FecVerdict(msgspec.Struct, frozen=True):
    """`margin`: bins between the worst code word and the last correctable one. `burst_bins`: after these the tail does not fall: errors in bursts."""

    state: Literal["good", "watch", "bad", "unknown"]
    margin: int | None = None
    burst_bins: tuple[int, ...] = ()


def fec(histogram: Mapping[int, int] | None, limits: Fec | None = None, last: int | None = None) -> FecVerdict:
    """Code words by corrected symbols (bin -> count). `last`: how many the link's code corrects; margins are limits of 15 and go with it."""
    limits = limits or default().fec
    last = last or limits.last_bin
    scale = last / limits.last_bin
    if not histogram:
        return FecVerdict("unknown")
    worst = max((n for n, count in histogram.items() if count), default=0)
    margin = last - worst
    bursts = tuple(
        n for n in sorted(histogram) if n > 0 and histogram[n] >= limits.tail_least and histogram.get(n + 1, 0) * limits.tail_ratio > histogram[n]
    )
    state: Literal["good", "watch", "bad"] = (
        "bad" if margin <= limits.margin_bad * scale else "watch" if margin <= limits.margin_watch * scale else "good"
    )
    return FecVerdict(state, margin, bursts)
