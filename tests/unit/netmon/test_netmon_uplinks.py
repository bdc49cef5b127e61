"""Adaptive routing seen from counters: how even the uplinks are, what it hides, and whether to roll it out further."""

from __future__ import annotations

import doctest
from pathlib import Path

import msgspec
import pytest
from aegis_netmon import ber, correlate, flaps, rates, rollout, sensors, topology, uplinks, watch
from aegis_netmon.correlate import Sensor
from aegis_netmon.fabricpoll import Reading, ends
from aegis_netmon.limits import default
from aegis_netmon.rollout import Pod, Sample
from aegis_netmon.series import Poll
from aegis_netmon.sim import fabric as model
from aegis_netmon.sim import lossy
from aegis_netmon.topology import Fabric, build
from aegis_parsers import parse


@pytest.fixture(scope="module")
def fabric(shared: Path) -> Fabric:
    return build(parse("ibnetdiscover", (shared / "net/ibsim/ibnetdiscover_p.txt").read_text()).items)


def carrying(fabric: Fabric, octets: dict[int, float], seconds: float = 60.0) -> tuple[watch.Watch, Fabric]:
    """Two readings; in between each leaf sent so many octets on its port (5 to 8)."""
    state = watch.Watch()
    for n in range(2):
        polls = tuple(
            Poll(end[0], end[1], n * seconds, {"port_xmit_data": int(n * octets.get(end[1], 0) / 4), "port_xmit_discards": n * end[1]})
            for end in sorted(ends(fabric))
        )
        state, _ = watch.step(state, Reading(n * seconds, fabric, polls))
    return state, fabric


def test_even_and_uneven_uplinks_are_told_apart_per_leaf(fabric: Fabric) -> None:
    full = 10e9 / 8 * 60
    even = uplinks.spreads(*carrying(fabric, dict.fromkeys(range(5, 9), full / 2)))
    assert {leaf: verdict.state for leaf, verdict in even.items()} == {f"leaf{n}": "even" for n in range(1, 5)}
    assert {verdict.state for verdict in uplinks.spreads(*carrying(fabric, {5: full})).values()} == {"uneven"}
    assert {verdict.state for verdict in uplinks.spreads(*carrying(fabric, {5: full / 1000})).values()} == {"too_little"}


def test_an_uplink_that_is_gone_under_even_traffic_is_a_warning_at_its_leaf(fabric: Fabric) -> None:
    state, _ = carrying(fabric, dict.fromkeys(range(5, 9), 10e9 / 8 * 30))
    leaf = next(device.id for device in fabric.devices.values() if device.name == "leaf2")
    gone = next(key for key in fabric.of[leaf] if (leaf, 7) in (fabric.links[key].a, fabric.links[key].b))
    less = msgspec.structs.replace(fabric, links={key: link for key, link in fabric.links.items() if key != gone})
    found = uplinks.spreads(state, less)
    assert [leaf for leaf, verdict in found.items() if verdict.warning] == ["leaf2"]
    assert "port 7" in found["leaf2"].warning


def test_drops_are_summed_per_line_card_and_switches_without_cards_by_name(fabric: Fabric) -> None:
    state, _ = carrying(fabric, {})
    assert sensors.drops_by_card(state)["leaf1"] == sum(range(1, 9))
    named = msgspec.structs.replace(state, names=dict.fromkeys(state.names, "MF0;core1:CS8500/L6/U1"))
    assert set(sensors.drops_by_card(named)) == {"core1/L6"}


def test_fans_and_chip_of_a_switch_are_readings(shared: Path) -> None:
    rows = list(sensors.of_ibswinfo(parse("ibswinfo", (shared / "net/ibswinfo_test1.out").read_text()), 5.0))
    assert {row.part for row in rows} == {"1c34da0300010540"}
    assert [(row.name, row.value) for row in rows if row.kind == "temperature"] == [("chip", 45.0)]
    assert [row.value for row in rows if row.kind == "fan"] == [8493, 7349, 8441, 7270, 8337, 7156, 8441, 7232]


def test_a_fan_below_the_others_and_a_chip_above_its_past_are_told_until_they_are_as_usual() -> None:
    limits = default().common
    story = [Sensor(float(n), "core1/L6", "fan", f"fan{n}", 8400.0 + n) for n in range(1, 5)]
    story += [Sensor(float(n), "core1/L6", "temperature", "chip", 61.0 + n % 2) for n in range(4)]
    assert sensors.odd(story, limits) == []
    slow = [*story, Sensor(9.0, "core1/L6", "fan", "fan3", 4100.0), Sensor(9.0, "core1/L6", "temperature", "chip", 92.0)]
    assert sensors.odd(slow, limits) == [("core1/L6", "chip is at 92 C, 62 C is usual"), ("core1/L6", "fan3 turns at 4100 rpm, 8402 is usual")]
    well = [*slow, Sensor(10.0, "core1/L6", "fan", "fan3", 8300.0), Sensor(10.0, "core1/L6", "temperature", "chip", 62.0)]
    assert sensors.odd(well, limits) == []


@pytest.mark.parametrize(("tick", "lanes", "share"), [(0x07, 4, 0.0687), (0x1F, 4, 1.0)])
def test_waiting_is_a_share_of_time_by_the_tick_of_the_switch(tick: int, lanes: int, share: float) -> None:
    assert uplinks.stalled(2**32 - 1, 10.0, 400.0, tick, lanes)[0] == pytest.approx(share, rel=0.01)
    assert uplinks.stalled(5, 0.0, 400.0)[0] == 0.0


BEFORE = Sample(1e9, 10_000, 5_000, 1e15, 0, 800.0, 5.0)


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ({"retransmits": 100, "drops": 10, "bandwidth_gbps": 1200.0}, "go"),
        ({}, "go"),
        ({"bandwidth_gbps": 700.0}, "back"),
        ({"latency_us": 6.0}, "back"),
        ({"latency_us": 5.3}, "go"),
        ({"retransmits": 20_000}, "back"),
        ({"bit_errors": 900}, "wait"),
        ({"bandwidth_gbps": None}, "wait"),
        ({"packets": 0, "retransmits": 0, "drops": 0}, "wait"),
        ({"packets": 0, "bandwidth_gbps": 700.0}, "back"),
    ],
)
def test_a_rollout_goes_on_waits_or_goes_back_by_what_was_counted(change: dict[str, float], step: str) -> None:
    assert rollout.judge(BEFORE, msgspec.structs.replace(BEFORE, **change)).step == step


def test_a_few_events_more_or_less_are_no_change() -> None:
    assert rollout.counted("drops", (5, 1e9), (9, 1e9)).verdict == "same"
    assert rollout.counted("drops", (5, 1e9), (0, 0.0)).verdict == "unknown"


def test_the_pod_on_which_least_depends_goes_first() -> None:
    assert rollout.order([Pod("a", 512, core=True), Pod("b", 900), Pod("c", 16), Pod("d", 0, core=True)]) == ["c", "b", "d", "a"]


@pytest.mark.parametrize("module", [ber, correlate, flaps, lossy, model, rates, topology, uplinks])
def test_the_examples_in_the_docstrings_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]
