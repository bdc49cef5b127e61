"""A port is judged by what its counters can prove: what is unproven is neither good nor bad."""

from __future__ import annotations

from pathlib import Path

import pytest
from aegis_netmon import ber, flaps, health, limits
from aegis_netmon.expected import Expected, Seen, missing, side
from aegis_netmon.health import Health, judge
from aegis_netmon.series import Poll, Port, observe
from aegis_parsers import parse
from aegis_parsers.schema import Item

UP = flaps.FlapVerdict("up")
TRAFFIC = {"port_xmit_packets": 0, "port_rcv_packets": 0, "port_xmit_data": 0, "port_rcv_data": 0}


def after(*rises: dict[str, int], every: float = 10.0, packets: int = 10_000_000) -> Port:
    """A busy port whose counters rose by so much in each poll."""
    values = {**TRAFFIC, **{name: 0 for rise in rises for name in rise}}
    port = observe(None, Poll("0x1", 1, 0.0, dict(values)))
    for n, rise in enumerate(rises, 1):
        for name in ("port_xmit_packets", "port_rcv_packets"):
            values[name] += packets
        for name in ("port_xmit_data", "port_rcv_data"):
            values[name] += packets * 1024
        for name, more in rise.items():
            values[name] += more
        port = observe(port, Poll("0x1", 1, n * every, dict(values)))
    return port


def codes(health: Health) -> dict[str, str]:
    return {finding.code: finding.severity for finding in health.findings}


def mlxlink(shared: Path, name: str) -> list[Item]:
    return list(parse("mlxlink", (shared / "net/mlxlink" / name).read_text()).items)


def test_zero_errors_prove_1e15_after_two_hours_at_ndr_and_not_before() -> None:
    assert ber.judge(0, 2.0 * 3600 * 425e9).state == "good"
    short = ber.judge(0, 1.5 * 3600 * 425e9)
    assert short.state == "not_enough_bits"
    assert short.bits_needed == pytest.approx(3e15 - 1.5 * 3600 * 425e9, rel=0.01)


@pytest.mark.parametrize(("errors", "bits", "state"), [(1, 1e12, "watch"), (1, 1e10, "bad"), (50, 1e12, "bad"), (3, 1e16, "good"), (5, 1e18, "good")])
def test_a_ber_is_what_its_interval_says(errors: int, bits: float, state: str) -> None:
    assert ber.judge(errors, bits).state == state


def test_an_unknown_count_is_never_good() -> None:
    assert ber.judge(None, 1e18).state == "unknown"
    assert ber.judge(0, 0).state == "unknown"


def test_a_quiet_port_is_unproven_and_becomes_healthy_with_its_bits() -> None:
    assert judge(after({"symbol_error": 0}, {}), UP, gbps=425).state == "unproven"
    assert judge(after({"symbol_error": 0}, {}, every=5000), UP, gbps=425).state == "healthy"


def test_months_of_silence_do_not_hide_a_link_that_breaks_now() -> None:
    port = after({"symbol_error": 0}, *[{}] * 40, every=36_000)
    for n in range(30):
        port = observe(port, Poll("0x1", 1, port.at + 10, {**port.values, "symbol_error": 20 * (n + 1)}))
    health = judge(port, UP, gbps=425)
    assert health.ber.state == "bad"
    assert health.state == "degraded"
    assert "symbol_error rose by 600" in next(finding.story for finding in health.findings if finding.counter == "symbol_error")


def test_one_retransmit_on_a_quiet_link_raises_nothing() -> None:
    assert codes(judge(after({"packet_seq_err": 1}, {}, packets=1_000_000), UP)) == {}


def test_retransmits_are_judged_per_packet() -> None:
    assert codes(judge(after({"packet_seq_err": 40}, {}), UP)) == {"retransmits": "warning"}
    assert codes(judge(after({"packet_seq_err": 40_000}, {}), UP)) == {"retransmits": "critical"}
    assert codes(judge(after({"packet_seq_err": 40}, {}, packets=0), UP)) == {}


def test_reordering_is_the_price_of_adaptive_routing_and_a_question_without_it() -> None:
    port = after({"out_of_sequence": 500}, {})
    assert codes(judge(port, UP, adaptive=True)) == {"reordered": "info"}
    assert codes(judge(port, UP, adaptive=False)) == {"out_of_sequence": "info"}


def test_congestion_is_told_and_is_no_damage() -> None:
    health = judge(after({"np_cnp_sent": 50_000}, {"np_cnp_sent": 50_000}, every=5000), UP)
    assert codes(health) == {"incast_victim": "info"}
    assert health.state != "degraded"


def test_a_burst_of_drops_is_named_although_its_rate_is_low() -> None:
    health = judge(after(*[{"port_xmit_discards": 0}] * 20, {"port_xmit_discards": 1500}), UP)
    assert codes(health) == {"drops_burst": "warning"}
    assert "within one poll" in health.findings[0].story


@pytest.mark.parametrize("name", ["local_link_integrity_errors", "rnr_nak_retry_err", "req_transport_retries_exceeded"])
def test_a_single_fatal_event_is_enough(name: str) -> None:
    assert judge(after({name: 1}), UP).state == "degraded"


def test_corruption_that_comes_again_is_damage_and_a_single_one_is_not() -> None:
    assert codes(judge(after({"rx_icrc_encapsulated": 1}, {}), UP)) == {}
    assert codes(judge(after({"rx_icrc_encapsulated": 1}, {"rx_icrc_encapsulated": 1}), UP)) == {"payload_corruption": "critical"}


def test_a_counter_at_its_cap_is_told_and_the_port_is_not_called_healthy() -> None:
    port = observe(None, Poll("0x1", 1, 0.0, {"symbol_error": 65535, **TRAFFIC}))
    port = observe(port, Poll("0x1", 1, 1e6, {"symbol_error": 65535, **TRAFFIC}))
    health = judge(port, UP, gbps=425)
    assert codes(health) == {"counter_saturated": "info"}
    assert health.state == "unproven"


def test_raw_errors_of_healthy_hdr_ports_raise_nothing(shared: Path) -> None:
    ports = mlxlink(shared, "hdr200_8hcas_counters.txt")
    assert len(ports) == 8
    for optics in ports:
        assert codes(judge(after({}, {}), UP, optics=optics)) == {}


def test_15e_255_is_no_error(shared: Path) -> None:
    optics = mlxlink(shared, "eth400_healthy.json")[0]
    health = judge(after({}, {}), UP, optics=optics)
    assert health.ber.errors == 0
    assert health.ber.state == "good"


def test_na_is_unknown(shared: Path) -> None:
    optics = mlxlink(shared, "na_fields.json")[0]
    assert judge(after({}, {}), UP, optics=optics).ber.state == "unknown"


def test_a_fec_margin_of_seven_is_fine_and_its_burst_tail_is_told(shared: Path) -> None:
    optics = mlxlink(shared, "eth400_fec_histogram.json")[0]
    health = judge(after({}, {}), UP, optics=optics)
    assert health.fec_margin == 7
    assert codes(health) == {"fec_bursts": "info"}


@pytest.mark.parametrize(("worst", "state"), [(8, "good"), (12, "watch"), (14, "bad"), (15, "bad")])
def test_the_fec_margin_is_what_is_left_to_the_last_bin(worst: int, state: str) -> None:
    assert ber.fec({0: 10**12, 1: 10**6, worst: 1}).state == state
    assert ber.fec({}).state == "unknown"


def test_one_lane_far_above_the_others_is_named() -> None:
    assert ber.odd_lanes([100, 120, 90_000, 110]) == [2]
    assert ber.odd_lanes([5_550_000, 28_835_305, 14_640_119, 16_746_846]) == []
    assert ber.odd_lanes([100, None, 90_000, 110]) == []


def test_a_raw_ber_is_judged_against_the_port_s_own_past() -> None:
    assert ber.raw_rising([4e-9] * 5, 5e-8)
    assert not ber.raw_rising([1e-7] * 5, 2e-7)
    assert not ber.raw_rising([4e-9], 5e-8)


def test_a_raw_ber_above_its_past_is_told_and_is_no_alarm(shared: Path) -> None:
    optics = mlxlink(shared, "eth400_healthy.json")[0]
    health = judge(after({}, {}), UP, optics=optics, raw_history=[4e-11] * 6)
    assert codes(health) == {"raw_ber_rising": "info"}
    assert health.state == "healthy"
    assert codes(judge(after({}, {}), UP, optics=optics, raw_history=[4e-10] * 6)) == {}


def test_down_counts_only_against_the_manifest_or_the_peers() -> None:
    nodes = [Seen(f"n{n}", f"mlx5_{d}", 1, not (n == 3 and d == 2) and d != 7) for n in range(8) for d in range(8)]
    assert [(row.node, row.device, row.by) for row in missing(nodes)] == [("n3", "mlx5_2", "peers")]
    assert {(row.node, row.device) for row in missing(nodes, [Expected("mlx5_7", node="n0"), Expected("mlx5_0")])} == {("n0", "mlx5_7")}


def test_a_manifest_also_knows_the_rate_and_what_is_not_there() -> None:
    ports = [Seen("n0", "mlx5_0", 1, True, gbps=200)]
    rows = missing(ports, [Expected("mlx5_0", gbps=400), Expected("mlx5_1")])
    assert [(row.device, row.reason) for row in rows] == [("mlx5_0", "200 Gb/s, expected 400"), ("mlx5_1", "not there")]


def test_management_ports_are_left_out_and_a_roce_node_keeps_its_own() -> None:
    infiniband = [Seen(f"n{n}", "mlx5_0", 1, True) for n in range(8)]
    management = [Seen(f"n{n}", "mlx5_9", 1, n > 0, "Ethernet") for n in range(8)]
    assert missing(infiniband + management) == []
    assert [row.node for row in missing(management)] == ["n0"]
    assert [row.by for row in missing(infiniband + management, [Expected("mlx5_9", node="n0")])] == ["manifest"]


def test_a_few_nodes_are_no_peers() -> None:
    assert missing([Seen("n0", "mlx5_0", 1, False), Seen("n1", "mlx5_0", 1, True)]) == []


@pytest.mark.parametrize(
    ("a", "b", "suspect"),
    [
        ({"symbol_error": 900}, {}, "b"),
        ({}, {"port_rcv_errors": 17}, "a"),
        ({"symbol_error": 900}, {"symbol_error": 300}, "cable"),
        ({"port_rcv_remote_physical_errors": 40}, {}, "upstream"),
        ({"port_xmit_discards": 40}, {}, "none"),
    ],
)
def test_the_receiver_tells_which_side_of_the_cable(a: dict[str, int], b: dict[str, int], suspect: str) -> None:
    assert side(a, b).suspect == suspect


def test_the_reason_names_the_ends() -> None:
    reason = side({}, {"symbol_error": 900}, names=("spine1 port 3", "leaf2 port 5")).reason
    assert reason == "only leaf2 port 5 receives errors (900): the transmitter of spine1 port 3, or the fibre from there; its own receiver last"
    assert "other links of spine1 are" in side({}, {}, [True, True], names=("spine1 port 3", "leaf2 port 5")).reason


def test_when_a_link_went_down_is_a_time_of_day() -> None:
    (told,) = health.of_flaps(flaps.FlapVerdict("down", 1, 15.0, 1796038995.0))
    assert told.story == "down for 15 s, since 2026-11-30 11:43:15 UTC"


def test_many_bad_links_of_one_device_are_the_device() -> None:
    assert side({"symbol_error": 9}, {}, others_of_a=[True, True, True, False]).suspect == "a_device"


def test_every_limit_names_its_source() -> None:
    table = limits.default()
    assert all(row.source for row in table.counter)
    assert all(part.source for part in (table.ber, table.fec, table.flap, table.down, table.burst, table.spread))


def test_a_site_s_limits_lie_over_the_shipped_ones() -> None:
    own = limits.of_site('[ber]\nbad = 1e-11\n[[counter]]\nname="port_xmit_discards"\ncode="drops"\nper="second"\nwarn=5.0\nsource="site"')
    assert (own.ber.bad, own.ber.watch) == (1e-11, 1e-15)
    assert [row.warn for row in own.counter if row.name == "port_xmit_discards"] == [5.0]
    with pytest.raises(limits.BadLimits, match="flap"):
        limits.of_site("[flap]\ncount = 'three'")
