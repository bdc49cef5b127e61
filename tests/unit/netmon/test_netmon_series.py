"""Counters become series that never invent an event: baselines, resets, caps and gaps are what they are."""

from __future__ import annotations

import math

import pytest
from aegis_netmon import rates
from aegis_netmon.series import Poll, Port, observe, series
from hypothesis import given
from hypothesis import strategies as st


def run(*readings: dict[str, int | None], boots: str = "", wide: bool = False, every: float = 10.0) -> Port:
    """A port after these readings, ten seconds apart; `boots` has one letter per reading."""
    port = None
    for n, values in enumerate(readings):
        port = observe(port, Poll("0x1", 1, n * every, values, boots[n] if boots else "", wide))
    assert port is not None
    return port


def states(port: Port) -> dict[str, str]:
    return {row.name: row.state for row in series(port)}


def test_a_first_value_is_a_baseline_and_a_first_cap_is_no_event() -> None:
    port = run({"link_downed": 48, "excessive_buffer_overrun_errors": 15})
    assert states(port) == {"link_downed": "baseline", "excessive_buffer_overrun_errors": "saturated"}
    assert not port.steps
    assert not port.counts


def test_a_rise_is_counted_once() -> None:
    port = run({"symbol_error": 5}, {"symbol_error": 9}, {"symbol_error": 9})
    assert [dict(step.counts) for step in port.steps] == [{"symbol_error": 4}, {}]
    assert states(port) == {"symbol_error": "counting"}


def test_a_lower_value_is_a_reset_and_never_a_wrap() -> None:
    port = run({"symbol_error": 65530}, {"symbol_error": 3})
    assert dict(port.steps[-1].counts) == {"symbol_error": 3}
    assert port.steps[-1].reset == {"symbol_error"}
    assert "symbol_error" in port.steps[-1].least
    assert states(port) == {"symbol_error": "reset"}


def test_a_reboot_with_a_higher_count_claims_only_what_is_certain() -> None:
    port = run({"link_downed": 48}, {"link_downed": 49}, boots="ab")
    assert dict(port.steps[-1].counts) == {"link_downed": 1}
    assert states(port) == {"link_downed": "reset"}
    assert dict(run({"link_downed": 48}, {"link_downed": 0}, boots="ab").steps[-1].counts) == {}


def test_a_cap_says_at_least_and_then_nothing_until_a_reset() -> None:
    port = run({"symbol_error": 65000}, {"symbol_error": 65535}, {"symbol_error": 65535})
    assert dict(port.steps[0].counts) == {"symbol_error": 535}
    assert "symbol_error" in port.steps[0].least
    assert dict(port.steps[1].counts) == {}
    assert states(port) == {"symbol_error": "saturated"}
    after = observe(port, Poll("0x1", 1, 99.0, {"symbol_error": 2}))
    assert dict(after.steps[-1].counts) == {"symbol_error": 2}


def test_the_64_bit_counter_does_not_clamp() -> None:
    port = run({"symbol_error": 65535}, {"symbol_error": 70000}, wide=True)
    assert dict(port.steps[-1].counts) == {"symbol_error": 4465}
    assert states(port) == {"symbol_error": "counting"}
    assert next(series(port)).bits == 64


def test_from_the_narrow_to_the_wide_counter_is_a_new_baseline() -> None:
    narrow = run({"symbol_error": 65535})
    assert states(observe(narrow, Poll("0x1", 1, 10.0, {"symbol_error": 70000}, wide=True))) == {"symbol_error": "baseline"}


def test_an_unreadable_counter_is_unknown_alone_and_the_next_reading_spans_the_gap() -> None:
    port = run({"symbol_error": 1, "port_rcv_errors": 1}, {"symbol_error": None, "port_rcv_errors": 2}, {"symbol_error": 4, "port_rcv_errors": 2})
    assert dict(port.steps[0].counts) == {"port_rcv_errors": 1}
    assert dict(port.steps[1].counts) == {"symbol_error": 3}
    gone = run({"symbol_error": 1}, {})
    assert states(gone) == {"symbol_error": "unknown"}


def test_a_reading_from_the_cache_is_no_second_reading() -> None:
    port = run({"symbol_error": 1})
    assert observe(port, Poll("0x1", 1, 0.0, {"symbol_error": 1})) is port


def test_data_counters_are_octets_by_four_and_multiplied_once() -> None:
    port = run({"port_xmit_data": 0, "port_rcv_data": 100}, {"port_xmit_data": 1_000_000, "port_rcv_data": 100})
    assert port.steps[-1].xmit_bits == 1_000_000 * 4 * 8
    assert port.steps[-1].rcv_bits == 0
    assert port.steps[-1].xmit_packets is None


@given(st.lists(st.integers(0, 70_000), min_size=2, max_size=20))
def test_no_delta_is_negative_and_none_is_more_than_happened(increments: list[int]) -> None:
    true, shown, port = 0, 0, None
    for n, more in enumerate(increments):
        true += more
        shown = min(65535, shown + more)
        port = observe(port, Poll("0x1", 1, float(n), {"symbol_error": shown}))
    assert port is not None
    total = sum(step.counts.get("symbol_error", 0) for step in port.steps)
    assert 0 <= total <= true - increments[0]


def test_poisson_intervals_are_those_of_the_tables() -> None:
    for count, low, high in ((0, 0.0, 3.689), (1, 0.0253, 5.572), (10, 4.795, 18.390), (100, 81.364, 121.627), (1000, 938.97, 1063.94)):
        assert rates.poisson(count) == (pytest.approx(low, rel=2e-3, abs=1e-9), pytest.approx(high, rel=2e-3))


def test_a_rate_needs_two_steps_and_something_carried() -> None:
    port = run({"symbol_error": 0}, {"symbol_error": 5})
    assert rates.over(port.steps, "symbol_error") is None
    port = run({"symbol_error": 0}, {"symbol_error": 5}, {"symbol_error": 5})
    found = rates.over(port.steps, "symbol_error")
    assert found is not None
    assert (found.value, found.events) == (0.25, 5)
    assert rates.over(port.steps, "symbol_error", "rcv_bits") is None


def test_a_rate_that_met_a_cap_has_no_upper_bound() -> None:
    found = rates.over(run({"symbol_error": 0}, {"symbol_error": 9}, {"symbol_error": 65535}).steps, "symbol_error")
    assert found is not None
    assert found.at_least
    assert found.high == math.inf


def test_a_burst_shorter_than_a_poll_stands_in_one_step() -> None:
    port = run(*({"port_xmit_discards": n} for n in (0, 0, 0, 40_000, 40_001)))
    found = rates.peak(port.steps, "port_xmit_discards")
    assert found is not None
    assert (found[0], found[1].at) == (40_000, 30.0)


def test_the_window_is_bounded() -> None:
    assert len(run(*({"symbol_error": n} for n in range(100))).steps) == 30
