"""The model of the fabric shows what a bad link and a crowd cost, and is honest about what decides it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from aegis_netmon.sim import flows, lossy, report, routes
from aegis_netmon.sim.experiment import Setup, run
from hypothesis import given, settings
from hypothesis import strategies as st

BAD = Setup(gpus=512, bad_links=1, ber=1e-6)
CROWD = Setup(gpus=1024, groups=64, placement="random")


def under(setup: Setup, routing: routes.Routing, switch: routes.Adaptive = routes.IDEAL) -> Setup:
    return msgspec.structs.replace(setup, routing=routing, switch=switch)


@pytest.mark.parametrize("seed", range(5))
def test_one_bad_uplink_takes_half_to_three_quarters_without_adaptive_routing_and_next_to_nothing_with_it(seed: int) -> None:
    bad = msgspec.structs.replace(BAD, seed=seed)
    static, adaptive = run(under(bad, "static")), run(under(bad, "adaptive"))
    assert 0.50 <= static.loss <= 0.75
    assert adaptive.loss <= 0.05
    assert static.bad_links == adaptive.bad_links
    assert static.healthy_bandwidth_gbps == adaptive.healthy_bandwidth_gbps == 8 * 200


def test_the_band_of_the_seed_is_an_error_rate_far_below_a_link_that_is_down() -> None:
    losses = [run(msgspec.structs.replace(BAD, ber=ber)).loss for ber in (1e-8, 4.8e-7, 1.4e-6)]
    assert losses[0] < 0.05
    assert losses[1] == pytest.approx(0.5, abs=0.02)
    assert losses[2] == pytest.approx(0.75, abs=0.02)


def test_a_switch_that_learns_late_loses_a_little_and_one_that_sees_no_errors_loses_more() -> None:
    losses = [run(under(BAD, "adaptive", routes.Adaptive(stale))).loss for stale in (0.0, 0.1, 0.5, 1.0)]
    assert losses == sorted(losses)
    assert losses[0] == 0.0
    assert 0.005 < losses[1] < 0.05 < losses[3] < run(BAD).loss


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("routing", ["static", "ecmp"])
def test_jobs_that_compete_are_unequal_without_adaptive_routing_and_equal_and_faster_with_it(routing: routes.Routing, seed: int) -> None:
    crowd = msgspec.structs.replace(CROWD, seed=seed)
    without, with_it = run(under(crowd, routing)), run(under(crowd, "adaptive"))
    assert without.spread >= 1.8
    assert with_it.spread <= 1.1
    assert with_it.bandwidth_gbps > without.bandwidth_gbps
    assert [group.hosts for group in without.groups] == [group.hosts for group in with_it.groups]


def test_a_bad_link_that_no_route_uses_costs_nothing_and_is_said_to_be_unused() -> None:
    result = run(msgspec.structs.replace(BAD, gpus=64, bad_links=3))
    assert (result.loss, result.bad_links_in_use) == (0.0, 0)
    assert "of these 0 are used" in report.words(result)


def test_a_bad_host_link_cannot_be_routed_around() -> None:
    host = msgspec.structs.replace(BAD, bad_where="host")
    assert run(under(host, "adaptive")).loss == pytest.approx(run(host).loss)


def test_a_receiver_at_half_rate_hurts_its_neighbours_only_where_queues_spread() -> None:
    slow = msgspec.structs.replace(CROWD, slow_ports=4, parallel=2)
    clean, still, spread = (
        [group.bandwidth_gbps for group in run(under(setup, "adaptive", routes.Adaptive(0.0, spreading))).groups]
        for setup, spreading in ((msgspec.structs.replace(slow, slow_ports=0), 0.5), (slow, 0.0), (slow, 0.5))
    )
    assert sum(now < before for now, before in zip(still, clean, strict=True)) <= 4
    assert sum(now < before for now, before in zip(spread, clean, strict=True)) > 16


def test_placement_decides_as_much_as_routing_and_is_printed_beside_every_number() -> None:
    scattered = run(msgspec.structs.replace(BAD, placement="random"))
    assert scattered.healthy_bandwidth_gbps < run(BAD).healthy_bandwidth_gbps
    assert "placement random, seed 0" in report.words(scattered)


def test_the_same_seed_gives_the_same_run() -> None:
    assert run(under(CROWD, "ecmp")) == run(under(CROWD, "ecmp"))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 7), st.floats(0.1, 2.0)), min_size=1, max_size=4, unique_by=lambda entry: entry[0]), min_size=1, max_size=6
    )
)
def test_rates_are_max_min_fair(used: list[list[tuple[int, float]]]) -> None:
    """No link carries more than it can; and every collective has a full link on which none is faster."""
    entries = [(group, link, share) for group, links in enumerate(used) for link, share in links]
    group, link, share = (np.array(column) for column in zip(*entries, strict=True))
    capacity = np.arange(1.0, 9.0)
    loads = flows.Load(group, link, share)
    rates = flows.maxmin(loads, len(used), capacity)
    carried = np.bincount(link, share * rates[group], 8)
    assert np.all(carried <= capacity * (1 + 1e-6))
    for each in range(len(used)):
        full = [place for place in link[group == each] if carried[place] >= capacity[place] * (1 - 1e-6)]
        assert any(rates[each] >= rates[group[link == place]].max() * (1 - 1e-6) for place in full)


def test_goodput_is_that_of_going_back_a_window() -> None:
    p = 1 - (1 - 1e-6) ** (8 * 4096)
    assert lossy.packet_loss(1e-6) == pytest.approx(p)
    assert float(lossy.goodput(p)) == pytest.approx((1 - p) / (1 - p + 64 * p))
    assert float(lossy.goodput(0.0)) == 1.0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"gpus": 100}, "100 GPUs"),
        ({"gpus": 64, "groups": 8}, "at least 2 hosts"),
        ({"routing": "magic"}, "static, ecmp, adaptive"),
        ({"gpus": 64, "bad_links": 1000}, "has 128 of kind uplink"),
        ({"ber": -1.0}, "ber is -1"),
        ({"groups": 0}, "0 groups"),
    ],
)
def test_a_setup_that_cannot_be_says_what_is_wrong(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run(msgspec.structs.replace(BAD, **wrong))


@pytest.mark.parametrize("setup", [BAD, CROWD])
def test_the_picture_holds_all_routings(setup: Setup) -> None:
    svg = report.picture(msgspec.structs.replace(setup, gpus=setup.gpus // 2, groups=max(1, setup.groups // 2)))
    assert svg.startswith("<svg")
    assert svg.endswith("</svg>")
    assert all(name in svg for name in ("static", "ecmp", "adaptive", "delayed"))
