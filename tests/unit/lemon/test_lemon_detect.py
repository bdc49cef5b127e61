"""Detectors: what they find, what the guards withhold, and the arithmetic under them."""

from __future__ import annotations

import math
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from aegis_lemon.detect import DETECTORS, DetectError, Guards, Rules, Thresholds, rank
from aegis_lemon.detect.cusum import Cusum, changes
from aegis_lemon.detect.rates import gamma_prior, gamma_sf, lemon_posterior, shrunk, split_blame, two_rates
from aegis_lemon.detect.rules import apply_rules
from aegis_lemon.detect.score import cheapest, curve, precision_recall, predict, walk_forward, wilson
from aegis_lemon.history import lanl
from aegis_lemon.history.observe import Blame, Observed
from aegis_lemon.history.rows import Imported
from aegis_lemon.history.schema import SIGNALS
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(os.environ.get("AEGIS_SHARED_DATA", Path(__file__).resolve().parents[3].parent / "shared/data"))
RF = 6.5e-3


def fleet(
    nodes: int = 2000, lemons: int = 24, ratio: float = 225.0, days: float = 23.0, seed: int = 1, **more: object
) -> tuple[Observed, np.ndarray]:
    """Counts of a fleet whose first nodes are lemons."""
    rng = np.random.default_rng(seed)
    healthy = RF / (1 + lemons / nodes * (ratio - 1))
    rate = np.full(nodes, healthy)
    rate[:lemons] *= ratio
    return Observed.of_counts(rng.poisson(rate * days), np.full(nodes, days), **more), np.arange(nodes) < lemons


def poisson_sf(k: int, mean: float) -> float:
    return 1 - sum(math.exp(-mean) * mean**i / math.factorial(i) for i in range(k))


@pytest.mark.parametrize(
    ("ratio", "threshold", "precision", "recall"),
    [
        (5, 2, 0.16, 0.22),
        (10, 2, 0.33, 0.49),
        (10, 3, 0.81, 0.23),
        (20, 3, 0.93, 0.57),
        (50, 3, 0.98, 0.93),
        (225, 2, 0.91, 1.00),
        (225, 4, 1.00, 1.00),
    ],
)
def test_what_counts_can_tell_in_28_days_is_the_closed_form(ratio: float, threshold: int, precision: float, recall: float) -> None:
    """The count detector on 200,000 nodes reaches the closed form, no more and no less."""
    share = 24 / 2000
    healthy = RF / (1 + share * (ratio - 1))
    hit, false = poisson_sf(threshold, 28 * ratio * healthy), poisson_sf(threshold, 28 * healthy)
    assert (share * hit / (share * hit + (1 - share) * false), hit) == (pytest.approx(precision, abs=0.006), pytest.approx(recall, abs=0.006))
    observed, lemon = fleet(200_000, 2400, ratio, 28.0)
    flagged = DETECTORS["count"](observed, Guards(), Thresholds(count=threshold))[0].flagged
    assert precision_recall(flagged, lemon) == (pytest.approx(precision, abs=0.03), pytest.approx(recall, abs=0.03))


@pytest.mark.parametrize("detector", ["blame", "mixture", "shrinkage", "count"])
def test_extreme_lemons_are_found_by_every_counting_detector(detector: str) -> None:
    observed, _ = fleet()
    flagged = {node.node for node in rank(observed, detector).flagged}
    truth = {f"n{i}" for i in range(24)}
    assert len(flagged & truth) >= 22 and len(flagged - truth) <= 1


def test_blame_finds_what_no_failure_names() -> None:
    """Every failure is of a job of 16 nodes and names none; the lemons are in all of theirs."""
    rng = np.random.default_rng(3)
    nodes, lemons = 400, 4
    sets = []
    for lemon in range(lemons):
        sets += [np.append(rng.choice(np.arange(lemons, nodes), 15, replace=False), lemon) for _ in range(8)]
    blame = Blame(np.arange(len(sets) + 1) * 16, np.concatenate(sets))
    observed = Observed.of_counts(np.zeros(nodes), np.full(nodes, 23.0), blame=blame)
    assert {node.node for node in rank(observed, "blame").flagged} == {"n0", "n1", "n2", "n3"}
    assert rank(observed, "mixture").flagged == []


@given(st.integers(0, 40), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_splitting_blame_neither_makes_nor_loses_failures(unnamed: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    hard = rng.poisson(0.2, 60).astype(float)
    blame = Blame(np.arange(unnamed + 1) * size, rng.integers(0, 60, unnamed * size))
    split = split_blame(hard, rng.uniform(0, 28, 60), blame)
    assert split.sum() == pytest.approx(hard.sum() + unnamed)
    assert (split >= hard - 1e-9).all()


@given(st.floats(0, 20), st.floats(0.1, 28), st.floats(0.001, 0.01), st.floats(5, 300))
def test_more_failures_are_worse_and_more_days_without_are_better(count: float, days: float, healthy: float, ratio: float) -> None:
    counts, exposure = np.array([count, count + 1, count]), np.array([days, days, days + 5])
    a, worse, better = lemon_posterior(counts, exposure, healthy, healthy * ratio, 0.012)
    assert better <= a + 1e-12 and a <= worse + 1e-12


def test_a_quiet_fleet_has_no_lemon() -> None:
    quiet = Observed.of_counts(np.zeros(50), np.full(50, 10.0))
    for detector in DETECTORS:
        assert rank(quiet, detector).flagged == []
    unseen = Observed.of_counts(np.zeros(3), np.zeros(3))
    assert [node.score for node in rank(unseen).nodes] == [0, 0, 0]
    even, _ = fleet(lemons=0, ratio=1)
    assert len(rank(even).flagged) <= 2


def test_one_failure_accuses_nobody_however_quiet_the_fleet() -> None:
    assert rank(Observed.of_counts([1] + [0] * 299, np.full(300, 20.0))).flagged == []
    few = rank(Observed.of_counts([9, 8, 7, 1, 1] + [0] * 295, np.full(300, 20.0)))
    assert {node.node for node in few.flagged} == {"n0", "n1", "n2"}


def test_a_mild_lemon_beside_extreme_ones_is_found_and_a_chance_failure_is_not() -> None:
    """Lemons that fail 2 to 12 times in 20 days; of 1,976 healthy nodes 60 fail once. Two equal rates would take the one with two for healthy."""
    lemons = [2, 3, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 12] + [7] * 9
    observed = Observed.of_counts([*lemons, *[1] * 60, *[0] * 1916], np.full(2000, 20.0))
    assert {node.node for node in rank(observed).flagged} == {f"n{index}" for index in range(24)}


def test_a_small_clusters_one_bad_node_is_found() -> None:
    observed = Observed.of_counts([7, 0, 0, 1], np.full(4, 10.0))
    assert [node.node for node in rank(observed).flagged] == ["n0"]


@pytest.mark.parametrize(
    ("x", "shape", "wanted"), [(1.0, 1.0, math.exp(-1)), (5.0, 3.0, math.exp(-5) * (1 + 5 + 12.5)), (0.5, 2.0, 1.5 * math.exp(-0.5))]
)
def test_the_gamma_tail_is_that_of_integer_shapes(x: float, shape: float, wanted: float) -> None:
    assert gamma_sf(np.array([x]), np.array([shape]))[0] == pytest.approx(wanted, rel=1e-10)


@given(st.floats(0.01, 200), st.floats(0.05, 100))
def test_the_gamma_tail_falls_from_one_to_nothing(x: float, shape: float) -> None:
    tail = gamma_sf(np.array([0.0, x, 2 * x, 1e4]), np.full(4, shape))
    assert tail[0] == 1 and tail[3] < 1e-9
    assert tail[0] >= tail[1] >= tail[2] >= tail[3] >= 0


def test_shrinkage_pulls_a_barely_seen_node_to_the_fleet() -> None:
    count, days = np.append(np.random.default_rng(2).poisson(0.2, 500), [1, 8]).astype(float), np.append(np.full(500, 28.0), [0.05, 28.0])
    mean, certain = shrunk(count, days, 5.0)
    assert mean[500] < 5 * count.sum() / days.sum()  # 20 failures a day on the face of it, 2,500 times the fleet
    assert certain[501] > 0.9 > certain[500]
    shape, rate = gamma_prior(count, days)
    assert shape / rate == pytest.approx(count.sum() / days.sum())


def test_mixture_rates_come_out_of_their_own_counts() -> None:
    observed, _ = fleet(20_000, 240)
    found = two_rates(observed.hard, observed.exposure)
    healthy = RF / (1 + 0.012 * 224)
    assert (found.healthy, found.lemon, found.share) == (
        pytest.approx(healthy, rel=0.1),
        pytest.approx(225 * healthy, rel=0.1),
        pytest.approx(0.012, rel=0.15),
    )


def with_signals(**signals: list[float]) -> dict[str, np.ndarray]:
    n = len(next(iter(signals.values())))
    return {name: np.asarray(signals.get(name, [0.0] * n), float) for name in SIGNALS}


def test_rules_a_and_b_are_the_seeds_and_recent_counts_weigh_double() -> None:
    signals = with_signals(multi_node_node_fails=[3, 2, 2, 0], xid_cnt=[6, 6, 6, 9], single_node_node_failure_rate=[0, 0, 0.5, 0.3])
    recent = with_signals(multi_node_node_fails=[0, 1, 0, 0], xid_cnt=[0, 0, 0, 0])
    observed = Observed.of_counts([3, 2, 2, 1], np.ones(4), signals=signals, recent_signals=recent, recent=np.array([0.0, 0, 0, 1]))
    rule_a, rule_b = apply_rules(observed, Rules())
    assert rule_a.tolist() == [True, True, False, False]  # the second by a failure of this week
    assert rule_b.tolist() == [False, False, False, True]  # the third had none this week
    assert apply_rules(observed, Rules(recent_weight=1.0))[0].tolist() == [True, False, False, False]
    ranking = rank(observed, "rules")
    assert {node.node for node in ranking.flagged} == {"n0", "n1", "n3"}
    assert ranking.nodes[0].reason.startswith("rule")


def test_a_role_is_compared_with_its_own() -> None:
    """Every 32nd node fails fifteen times as often for what it does."""
    rng = np.random.default_rng(4)
    role = ["head" if node % 32 == 0 else "" for node in range(2000)]
    rate = np.array([0.06 if what else 0.004 for what in role])
    rate[[64, 100]] = [1.0, 0.4]
    observed = Observed.of_counts(rng.poisson(rate * 23), np.full(2000, 23.0), role=role)
    flagged = {node.node for node in rank(observed).flagged}
    assert {"n64", "n100"} <= flagged and len(flagged) <= 4
    blind = {node.node for node in rank(observed, guards=Guards(roles=False)).flagged}
    assert len([name for name in blind if int(name[1:]) % 32 == 0]) > 10


def test_a_failing_rack_is_not_sixteen_lemons_and_a_lemon_in_it_still_shows() -> None:
    observed, _ = fleet(1600, 0, 1)
    count = observed.hard.copy()
    count[[0, 400, 1200]] = 9
    count[800:816] = 5
    count[805] = 60
    rack = [f"r{node // 16}" for node in range(1600)]
    racked = Observed.of_counts(count, observed.exposure, rack=rack)
    flagged = {node.node for node in rank(racked).flagged}
    assert "n805" in flagged
    assert not {f"n{node}" for node in range(800, 816) if node != 805} & flagged
    withheld = [node for node in rank(racked).nodes if node.withheld]
    assert len(withheld) == 15 and "its rack r50 fails" in withheld[0].withheld
    assert {"n0", "n400", "n1200"} <= flagged  # lemons of quiet racks stay


def test_two_lemons_of_one_rack_do_not_excuse_each_other() -> None:
    count = np.zeros(160)
    count[[0, 1]] = 8
    observed = Observed.of_counts(count, np.full(160, 23.0), rack=[f"r{node // 16}" for node in range(160)])
    assert {node.node for node in rank(observed).flagged} == {"n0", "n1"}


def test_one_users_failures_accuse_the_user() -> None:
    users = [{"u1"}, {"u1", "u2"}, set()]
    observed, _ = fleet(300, 0, 1)
    count = observed.hard.copy()
    count[:3] = 9
    seen = Observed.of_counts(count, observed.exposure, users=users + [set()] * 297)
    ranking = rank(seen)
    assert {node.node for node in ranking.flagged} == {"n1", "n2"}  # n2: the history does not say
    assert next(node for node in ranking.nodes if node.node == "n0").withheld == "all its failures are of one user: u1"
    most = Observed.of_counts(count, observed.exposure, users=users + [set()] * 297, user_share={"u1": 0.8, "u2": 0.2})
    assert {node.node for node in rank(most).flagged} == {"n0", "n1", "n2"}  # nine of nine is what chance does
    family = Observed.of_counts(count, observed.exposure, families=[{"f1"}] + [{"f1", "f2"}] * 299)
    assert {node.node for node in rank(family).flagged} == {"n1", "n2"}


def test_the_cap_keeps_the_worst_and_says_so() -> None:
    observed, _ = fleet()
    ranking = rank(observed, guards=Guards(cap=0.002))
    assert len(ranking.flagged) == 4
    assert any("beyond the cap of 4 nodes" in node.withheld for node in ranking.nodes)
    assert len(rank(observed, guards=Guards(cap=1e-9)).flagged) == 1


def test_probation_needs_less_to_flag_again() -> None:
    observed, _ = fleet(1000, 12, 50)
    count = observed.hard.copy()
    count[500:502] = 2
    probation = np.zeros(1000, bool)
    probation[500] = True
    nodes = {node.node: node for node in rank(Observed.of_counts(count, observed.exposure, probation=probation)).nodes}
    assert nodes["n500"].score > nodes["n501"].score and nodes["n500"].probation


def test_an_unknown_detector_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DetectError, match="blame, mixture, shrinkage, count, cusum, rules"):
        rank(Observed.of_counts([1], [1]), "magic")


def test_cusum_alarms_at_the_onset_and_sees_recovery() -> None:
    cusum = Cusum(healthy=0.004)
    bad = [100 + 4.0 * i for i in range(6)]
    found = changes(bad, 400.0, cusum)
    assert len(found) == 1
    assert found[0].onset == 100.0 and 100 < found[0].alarm <= 120
    assert found[0].recovered is not None and found[0].recovered > bad[-1]
    assert changes(bad, 125.0, cusum)[0].recovered is None
    assert changes([], 400.0, cusum) == [] and changes([10.0, 210.0], 400.0, cusum) == []


def test_cusum_gives_few_false_alarms_and_is_not_late() -> None:
    """2,000 nodes, 50 times: about 4 a year and 13 days in the reference simulation."""
    rng = np.random.default_rng(6)
    healthy = RF / (1 + 0.012 * 49)
    cusum = Cusum(healthy)
    false = sum(len(changes(np.cumsum(rng.exponential(1 / healthy, 40))[:30].tolist(), 3000.0, cusum)) for _ in range(2000))
    assert false / (2000 * 3000 / 365) * 2000 < 12
    delays = [changes(np.cumsum(rng.exponential(1 / (50 * healthy), 200)).tolist(), 1000.0, cusum)[0].alarm for _ in range(300)]
    assert 9 < np.median(delays) < 18


def test_intervals_of_shares_are_wilsons() -> None:
    assert wilson(34, 40) == (pytest.approx(0.71, abs=0.005), pytest.approx(0.93, abs=0.005))
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_curve_is_monotone_and_its_cheapest_point_follows_the_costs() -> None:
    observed, lemon = fleet(ratio=20)
    score = np.array([node.score for node in sorted(rank(observed).nodes, key=lambda node: int(node.node[1:]))])
    points = curve(score, lemon)
    assert all(a.recall <= b.recall and a.false_positive_rate <= b.false_positive_rate for a, b in pairwise(points))
    careful, eager = cheapest(curve(score, lemon, 1, 10)), cheapest(curve(score, lemon, 100, 1))
    assert careful.flagged < eager.flagged and careful.recall <= eager.recall


def test_prediction_counts_rates_not_failures() -> None:
    flagged = np.array([True, False, False])
    found = predict([(flagged, np.array([2.0, 1, 1]), np.array([1.0, 10, 10]))])
    assert (found.ratio, found.caught) == (pytest.approx(2 / (4 / 21)), 0.5)
    assert predict([(np.zeros(3, bool), np.ones(3), np.ones(3))]).ratio == 0


@pytest.mark.skipif(not (DATA / "traces").is_dir(), reason=f"third-party samples are not in {DATA}")
@pytest.mark.parametrize(("system", "nodes", "promised", "without_roles"), [("18", 1024, 10.0, 3.5), ("19", 1024, 15.0, 7.0), ("20", 512, 8.0, 6.0)])
def test_flagged_nodes_of_a_real_fleet_go_on_failing(system: str, nodes: int, promised: float, without_roles: float) -> None:
    rows = list(lanl.outages(DATA / "traces/lanl_failures_1996_2005.csv.xz", system, Imported()))
    first, chosen = min(row.start for row in rows), Thresholds()

    def flag(count: np.ndarray, window: float) -> np.ndarray:
        return shrunk(count, np.full(len(count), window), chosen.times)[1] > chosen.certain

    days, at = np.array([(row.start - first) / 86_400 for row in rows]), np.array([row.node for row in rows])
    found = walk_forward(days, at, nodes, lambda count, window: shrunk(count, np.full(nodes, window), 3.0)[1] > 0.9)
    assert found.ratio >= promised and 2 < found.flagged < 4
    found = walk_forward(days, at, nodes, flag)
    assert found.ratio >= promised and 1 < found.flagged < 4
    own = at % lanl.ROLE_EVERY > 0
    found = walk_forward(days[own], (at - at // lanl.ROLE_EVERY - 1)[own], nodes - nodes // lanl.ROLE_EVERY, flag)
    assert found.ratio >= without_roles and 0.5 < found.flagged < 3
