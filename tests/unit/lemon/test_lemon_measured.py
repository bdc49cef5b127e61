"""Measured ETTR and plans: six sums over one ledger, their order, their intervals, and ledgers that cannot be."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from aegis_lemon.ettr import RSC1, Run, Setting, SettingError, Span, by, exact, measure, plan
from aegis_lemon.ettr.measured import longest_stretch, ratio_interval, t_quantile, windows
from aegis_lemon.ettr.plan import rate_interval
from aegis_proto.phases import LedgerState as S
from hypothesis import given
from hypothesis import strategies as st


def run_of(rows: list[tuple[S, float] | tuple[S, float, bool]], job: str = "j", **rest: object) -> Run:
    spans, at = [], 0.0
    for state, seconds, *stopped in rows:
        spans.append(Span(state, at, at + seconds, bool(stopped and stopped[0])))
        at += seconds
    return Run(job, tuple(spans), **rest)  # type: ignore[arg-type]


STORY = [
    (S.QUEUED, 100), (S.BOOTING, 50), (S.CHECKING, 50), (S.PRODUCTIVE, 1000), (S.SAVING, 20), (S.LOST, 180, True),
    (S.QUEUED, 40), (S.DRAINED, 10), (S.RESTORING, 50), (S.PRODUCTIVE, 500), (S.HUNG, 100, True),
]  # fmt: skip


def test_every_definition_is_a_sum_over_the_same_rows() -> None:
    measured = measure([run_of(STORY)])
    value = {name: ratio.value for name, ratio in measured.ratios.items()}
    assert sum(measured.seconds.values()) == 2100
    assert value["ettr"] == pytest.approx(1500 / 2100)
    assert value["cumulative"] == pytest.approx(1500 / 2000)
    assert value["no_queue"] == value["one_minus_waste"] == pytest.approx(1500 / 1960)
    assert value["runtime_goodput"] == pytest.approx(1500 / 1950)
    assert (1 - measured.parts["waste_saving"]) * (1 - measured.parts["waste_failure"]) == pytest.approx(value["one_minus_waste"])
    assert measured.cycles == 2 and measured.ratios["ettr"].low is None  # two cycles give no interval


def test_work_done_again_counts_once() -> None:
    """180 s were lost and their repeat is productive: the ledger holds 1,500 productive seconds, not 1,680."""
    assert measure([run_of(STORY)]).seconds["productive"] == 1500


ROWS = st.lists(st.tuples(st.sampled_from(list(S)), st.floats(0, 10_000), st.booleans()), min_size=1, max_size=40)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_the_definitions_keep_their_order(ledgers: list[list[tuple[S, float, bool]]]) -> None:
    measured = measure([run_of(rows, f"j{index}") for index, rows in enumerate(ledgers)])
    order = [measured.ratios[name].value for name in ("ettr", "cumulative", "no_queue", "runtime_goodput")]
    assert all(0 <= value <= 1 + 1e-9 for value in order)
    if measured.seconds["productive"]:
        assert all(a <= b + 1e-9 for a, b in pairwise(order)), order
        factors = (1 - measured.parts["waste_saving"]) * (1 - measured.parts["waste_failure"])
        assert factors == pytest.approx(measured.ratios["one_minus_waste"].value, abs=1e-6)


def test_the_hour_window_shows_a_burst_that_the_whole_run_hides() -> None:
    run = run_of([(S.PRODUCTIVE, 36_000), (S.CHECKING, 3_600, True), (S.PRODUCTIVE, 36_000)])
    shares = [share for _, share in windows(run)]
    assert len(shares) == 21 and shares[10] == 0 and shares[9] == shares[11] == 1
    measured = measure([run])
    assert measured.worst_window == 0 and measured.worst_stretch == longest_stretch(run) == 3_600
    assert measured.ratios["ettr"].value == pytest.approx(72 / 75.6)


def test_groups_are_size_priority_and_cluster() -> None:
    runs = [run_of(STORY, "a", gpus=8, priority="low", cluster="x"), run_of(STORY, "b", gpus=1024, priority="high", cluster="x")]
    assert set(by(runs, "size")) == {"1-8", "513-1024"}
    assert set(by(runs, "priority")) == {"low", "high"}
    assert by(runs, "cluster")["x"].runs == 2
    with pytest.raises(SettingError, match="group"):
        by(runs, "colour")


def simulated(setting: Setting, interval: float, failures: int, seed: int) -> Run:
    """A run drawn failure by failure, written as a ledger."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[S, float, bool]] = []
    for held in rng.exponential(setting.mttf, failures):
        rows.append((S.QUEUED, setting.queue, False))
        if held <= setting.restart:
            rows.append((S.RESTORING, held, True))
            continue
        left = held - setting.restart
        saves = left // (interval + setting.write)
        kept, saving = saves * interval, saves * setting.write
        rows += [(S.RESTORING, setting.restart, False), (S.PRODUCTIVE, kept, False), (S.SAVING, saving, False), (S.LOST, left - kept - saving, True)]
    return run_of(rows)


def test_measured_and_expected_agree_and_the_interval_covers_as_often_as_it_says() -> None:
    setting, interval = Setting(1536, RSC1, write=10, restart=300, queue=120), 420.0
    truth = exact(setting, interval)
    covered = 0
    for seed in range(200):
        ratio = measure([simulated(setting, interval, 30, seed)]).ratios["ettr"]
        assert ratio.low is not None and ratio.high is not None
        covered += ratio.low <= truth <= ratio.high
    assert 0.88 <= covered / 200 <= 0.99, covered
    assert measure([simulated(setting, interval, 20_000, 1)]).ratios["ettr"].value == pytest.approx(truth, abs=0.002)


def test_a_ratio_of_few_cycles_has_no_interval() -> None:
    assert ratio_interval([1, 2, 3], [2, 3, 4]).low is None
    assert ratio_interval([], []).value == 0
    assert t_quantile(3, 0.95) == pytest.approx(3.182, rel=0.03)
    assert t_quantile(30, 0.95) == pytest.approx(2.042, rel=0.001)


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ((Span(S.QUEUED, 10, 5),), "before it starts"),
        ((Span(S.QUEUED, 0, 10), Span(S.PRODUCTIVE, 9, 20)), "before row 1 ends"),
        ((Span(S.QUEUED, 0, 10), Span(S.PRODUCTIVE, 12, 20)), "in no state"),
    ],
)
def test_a_ledger_that_cannot_be_is_refused_with_its_row(spans: tuple[Span, ...], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Run("j", spans)


def test_a_plan_names_the_interval_and_what_a_target_still_needs() -> None:
    setting = Setting.of_gpus(12288, RSC1, write=300, restart=300)
    made = plan(setting, 0.9, interval_now=3600)
    assert made.interval / 60 == pytest.approx(34.7, abs=0.05)
    assert made.now is not None and made.now < made.expected == pytest.approx(0.7334, abs=5e-5)
    assert made.need_rf < 1 and 20 < made.need_write < 23 and not made.notes


def test_a_plan_says_when_no_save_is_fast_enough() -> None:
    made = plan(Setting.of_gpus(12288, RSC1, write=10, restart=1200), 0.9)
    assert made.need_write == 0 and any("no save is fast enough" in note for note in made.notes)


def test_a_plan_is_bounded_by_persisting_and_by_late_detection() -> None:
    made = plan(Setting.of_gpus(12288, RSC1, write=2, restart=300, persist=900), 0.9, latency=1800)
    assert made.interval == 900
    assert any("durable" in note for note in made.notes) and any("noticed" in note for note in made.notes)


def test_a_plan_without_a_failure_yet_uses_what_the_silence_allows() -> None:
    rf, low, high = rate_interval(0, 1000)
    assert (rf, low) == (0, 0) and high == pytest.approx(3.69, rel=0.02)  # -ln(0.025) per 1000
    made = plan(Setting(100, rf, write=60), rf_range=(low, high))
    assert made.interval == made.low < made.high and any("no failure" in note for note in made.notes)


@pytest.mark.parametrize(("failures", "low", "high"), [(10, 4.80, 18.39), (100, 81.36, 121.63), (3, 0.62, 8.77)])
def test_rate_intervals_are_those_of_poisson_tables(failures: int, low: float, high: float) -> None:
    assert rate_interval(failures, 1000)[1:] == (pytest.approx(low, rel=0.03), pytest.approx(high, rel=0.01))
