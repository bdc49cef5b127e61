"""Who keeps which job: everybody who sees the same replicas says the same, and few jobs move when one comes or goes."""

from __future__ import annotations

from collections import Counter

from aegis_lognexus.share import Shares, owner

JOBS = [f"job-{n:06d}" for n in range(3000)]
THREE = ["logs-1", "logs-2", "logs-3"]


def test_every_job_has_one_owner_whatever_the_order_in_which_the_replicas_are_seen() -> None:
    assert [owner(job, THREE) for job in JOBS] == [owner(job, reversed(THREE)) for job in JOBS]
    assert owner("x", []) == ""


def test_the_jobs_are_spread_evenly() -> None:
    assert all(800 < count < 1200 for count in Counter(owner(job, THREE) for job in JOBS).values())


def test_only_the_jobs_of_who_goes_or_comes_move() -> None:
    for job in JOBS:
        before, after = owner(job, THREE), owner(job, THREE[:2])
        assert before in (after, "logs-3")


def test_a_replica_knows_what_it_gained_and_always_counts_itself() -> None:
    mine = Shares("logs-1")
    assert all(mine.mine(job) for job in JOBS)
    assert mine.update(THREE) == {"logs-1"}
    assert mine.update(reversed(THREE)) is None
    kept = [job for job in JOBS if mine.mine(job)]
    before = mine.update(["logs-2"])
    assert before == set(THREE) and mine.live == {"logs-1", "logs-2"}
    gained = [job for job in JOBS if mine.gained(job, before)]
    assert gained and not set(gained) & set(kept)
    assert {job for job in JOBS if mine.mine(job)} == {*kept, *gained}
