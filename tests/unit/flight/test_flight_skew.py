"""Who enters late is told from noise, from a wrong clock, and from who is only late because it waits for that one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from aegis_lognexus.flight import Report, analyze, from_mapping
from flight_jobs import call, raw

ALL = "0"


def entered(
    rng: random.Random,
    world: int,
    operations: int,
    *,
    work: float,
    noise: float,
    tail: float,
    clocks: float,
    late: Sequence[int] = (),
    by: float = 0.0,
) -> dict[int, list[float]]:
    """When each rank, by its clock, enters operations that each end when all are in, s. The late ones are so at each but the last."""
    offsets = [rng.uniform(-clocks, clocks) for _ in range(world)]
    done, times = 0.0, {r: list[float]() for r in range(world)}
    for i in range(operations):
        at = []
        for r in range(world):
            begin = done if i else rng.random() * 0.03  # started one after the other
            chance = rng.expovariate(1 / noise) + (rng.expovariate(1 / (noise * 10)) if rng.random() < tail else 0.0)
            at.append(begin + work + chance + (by * rng.uniform(0.97, 1.05) if r in late and i < operations - 1 else 0.0))
            times[r].append(at[-1] + offsets[r])
        done = max(at) + 0.0005
    return times


def read(times: dict[int, list[float]]) -> Report:
    groups = {ALL: sorted(times)}
    return analyze({r: from_mapping(r, raw(r, [call(at=t - i) for i, t in enumerate(at)], groups, told=False)) for r, at in times.items()})


@pytest.mark.parametrize("seed", range(24))
def test_noise_and_clocks_make_nobody_late(seed: int) -> None:
    rng = random.Random(seed)
    world, operations = rng.choice([4, 5, 6, 8, 16]), rng.choice([7, 8, 13, 30])
    work, noise, tail, clocks = (
        rng.choice([0.0005, 0.005, 0.05]),
        rng.choice([0.0003, 0.002, 0.008]),
        rng.choice([0, 0.05, 0.2]),
        rng.choice([0, 0.02, 3.0]),
    )
    report = read(entered(rng, world, operations, work=work, noise=noise, tail=tail, clocks=clocks))
    assert (report.verdict, report.slow) == ("healthy", ())


@pytest.mark.parametrize("seed", range(16))
def test_a_late_rank_is_named_whatever_its_number_and_however_many_there_are(seed: int) -> None:
    rng = random.Random(seed)
    world = rng.choice([4, 6, 8, 16])
    late = sorted(rng.sample(range(world), 1 if world < 8 else rng.choice([1, 2])))
    report = read(
        entered(rng, world, rng.choice([7, 13, 30]), work=0.005, noise=0.002, tail=0.05, clocks=0.002, late=late, by=rng.choice([0.1, 0.25, 0.5]))
    )
    assert (report.verdict, report.culprits, report.slow, report.cause) == ("slow", (), tuple(late), "slow_not_hung")


def test_a_rank_late_by_the_same_time_at_each_is_named_where_the_others_only_wait_but_not_surely() -> None:
    times = entered(random.Random(3), 6, 13, work=0.002, noise=0.001, tail=0, clocks=0, late=[0], by=0.25)
    report = read({r: at[:-1] for r, at in times.items()})
    assert (report.slow, report.confidence) == ((0,), "low")
    assert "its clock is off" in report.evidence[0]


@pytest.mark.parametrize("at_all", [True, False])
def test_who_waits_for_a_late_rank_in_a_group_of_two_is_not_late_itself(at_all: bool) -> None:
    groups = {ALL: [0, 1, 2, 3, 4, 5], "1": [0, 1], "2": [2, 3], "3": [4, 5]}
    calls: dict[int, list[dict[str, object]]] = {r: [] for r in range(6)}
    for step in range(13):
        for r in range(6):
            slow = 0.2 if at_all or step < 12 else 0.0  # rank 3 comes late to its pair; then both come late to all
            pair = step * 0.21 + (slow if r == 3 else 0.0) + r / 1e4
            both = step * 0.21 + 0.002 + (slow if r in (2, 3) else 0.0) + r / 1e4
            calls[r] += [call(group=str(1 + r // 2), at=pair - 2 * step), call(at=both - 2 * step - 1)]
    report = analyze({r: from_mapping(r, raw(r, c, groups, told=False)) for r, c in calls.items()})
    assert report.slow == (3,)
