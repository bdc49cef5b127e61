"""Silence alone never kills."""

from __future__ import annotations

import dataclasses

import pytest
from aegis_master import events as ev
from aegis_master import machine
from aegis_master.judge import AskPlatform, Dead, Judge, JudgeTimes, Suspect, fenced
from aegis_proto.phases import LostReason, Phase
from aegis_proto.state import JobSpec, JobState

TIMES = JudgeTimes()


def judge(workers: int = 8, now: float = 0.0) -> Judge:
    """All there and heard at `now`, the quiet period over."""
    made = Judge(TIMES, now - TIMES.quiet)
    made.follow([(i, 1, f"b{i}", False) for i in range(workers)], now)
    for i in range(workers):
        made.platform(i, 1, True, now)
    return made


def beat(made: Judge, now: float, silent: set[int], workers: int = 8) -> None:
    for i in range(workers):
        if i not in silent:
            assert made.heartbeat(i, 1, f"b{i}", int(now * 1000), now=now)


def run(made: Judge, until: int, silent: set[int], workers: int = 8, start: int = 0) -> list[object]:
    """Heartbeats every 5 s, a tick each second, from `start` + 1 s to `until`."""
    found: list[object] = []
    for second in range(start + 1, until + 1):
        if second % 5 == 0:
            beat(made, second, silent, workers)
        found += made.tick(second)
    return found


def dead(found: list[object]) -> set[int]:
    return {finding.index for finding in found if isinstance(finding, Dead)}


def suspects(found: list[object]) -> set[int]:
    return {finding.index for finding in found if isinstance(finding, Suspect) and finding.suspect}


def test_a_silent_worker_is_suspect_after_15_s_and_never_dead_while_the_platform_says_running() -> None:
    made = judge()
    assert suspects(run(made, 14, {3})) == set()
    found = run(made, 3600, {3}, start=14)
    assert suspects(found) == {3}
    assert dead(found) == set()


def test_who_was_suspect_before_a_takeover_is_so_until_it_is_heard() -> None:
    """The flag stands in the state; whoever takes the job over clears it when the heartbeat is back, and not because its own clock began anew."""
    made = Judge(TIMES, 0.0)
    made.follow([(i, 1, f"b{i}", i in (2, 3)) for i in range(8)], 0.0)
    found = run(made, 60, {3})
    assert [finding for finding in found if isinstance(finding, Suspect)] == [Suspect(2, 1, False)]
    quick = Judge(dataclasses.replace(TIMES, quiet=1.0), 0.0)
    quick.follow([(0, 1, "b0", True), (1, 1, "b1", False)], 0.0)
    assert quick.tick(2.0) == []
    quick.heard(0, 3.0)
    assert quick.tick(3.0) == [Suspect(0, 1, False)]


def test_a_finding_that_was_not_stored_is_found_again() -> None:
    """What the owner steps and cannot store never happened: the state it reads anew still says otherwise."""
    made = judge()
    beat(made, 20.0, {2})
    assert made.tick(20.0) == [Suspect(2, 1, True)]
    made.follow([(i, 1, f"b{i}", False) for i in range(8)], 20.5)
    assert made.tick(21.0) == [Suspect(2, 1, True)]
    made.follow([(i, 1, f"b{i}", i == 2) for i in range(8)], 21.5)
    assert made.tick(22.0) == []
    made.heard(2, 23.0)
    assert made.tick(23.0) == [Suspect(2, 1, False)]
    made.follow([(i, 1, f"b{i}", i == 2) for i in range(8)], 23.5)
    assert made.tick(24.0) == [Suspect(2, 1, False)]


def test_a_silent_worker_that_another_one_misses_is_dead_at_15_s() -> None:
    made = judge()
    made.peer_error(5, 1.0)
    assert dead(run(made, 14, {3})) == set()
    assert dead(run(made, 15, {3}, start=14)) == {3}


def test_a_silence_that_the_platform_says_again_and_again_lasts_since_it_was_said_first() -> None:
    made = judge()
    found: list[object] = []
    for second in range(1, 200):
        if second % 5 == 0:
            beat(made, second, {3})
        if second >= 16 and second % 60 == 16:  # the job controller repeats it each minute
            made.platform(3, 1, False, second)
        found += [(second, finding) for finding in made.tick(second) if isinstance(finding, Dead)]
    assert found and found[0][0] == 16 + TIMES.unconfirmed


def test_a_dead_worker_died_when_it_was_last_heard() -> None:
    made = judge()
    made.peer_error(5, 1.0)
    [death] = [finding for finding in run(made, 20, {3}) if isinstance(finding, Dead)][:1]
    assert death.silent == 15.0


def lost(workers: int, now: int = 0, **spec: object) -> JobState:
    """A run in which w0 was judged dead at `now` (ms), and nobody has verified that it is gone."""
    state = machine.create("j-000001", JobSpec("j", workers=workers, stopGrace=10.0, **spec), "uid1", "era1", now)  # type: ignore[arg-type]
    for i in range(workers):
        state, _ = machine.step(state, ev.PodReady(i, 1, f"b{i}", node=f"n{i}"), now)
    for i in range(workers):
        state, _ = machine.step(state, ev.Finished(i, 1, f"b{i}", 0, state.head.seqNum), now)
    assert state.head.phase is Phase.RUN_COMMAND
    state, _ = machine.step(state, ev.PodLost(0, 1, LostReason.NODE_LOST, now), now)
    return state


def test_a_lost_worker_nobody_verified_is_taken_as_gone_after_the_fence_time_and_the_grace() -> None:
    state = lost(3)
    assert not state.pod(0).gone
    assert fenced(state, 99_999, 90.0) == []
    assert fenced(state, 100_000, 90.0) == [(0, 1)]
    state, _ = machine.step(state, ev.PodGone(0, 1), 100_000)
    assert state.pod(0).gone
    assert fenced(state, 200_000, 90.0) == []


def test_a_worker_that_needs_nobody_is_never_fenced_by_time() -> None:
    assert fenced(lost(1), 10_000_000, 90.0) == []


def test_nobody_is_fenced_while_a_new_era_asks_who_is_there() -> None:
    state, _ = machine.step(lost(3), ev.EraChanged("era2"), 1000)
    assert fenced(state, 10_000_000, 90.0) == []


def test_the_silent_workers_own_error_is_no_confirmation() -> None:
    made = judge()
    made.peer_error(3, 1.0)
    assert dead(run(made, 60, {3})) == set()


def test_an_error_long_before_the_silence_confirms_nothing() -> None:
    made = judge()
    made.peer_error(5, 0.0)
    run(made, 40, set())
    found = run(made, 100, {3}, start=40)
    assert suspects(found) == {3}
    assert dead(found) == set()


def test_a_silent_worker_that_the_platform_cannot_confirm_is_dead_after_120_s() -> None:
    made = judge()
    made.platform(3, 1, False, 10.0)
    assert dead(run(made, 129, {3})) == set()
    assert dead(made.tick(130.0)) == {3}


def test_the_platform_saying_running_again_withdraws_its_doubt() -> None:
    made = judge()
    made.platform(3, 1, False, 10.0)
    run(made, 100, {3})
    made.platform(3, 1, True, 100.0)
    assert dead(made.tick(500.0)) == set()


def test_a_platform_that_never_said_anything_is_asked_once_and_counts_as_unconfirmed() -> None:
    made = Judge(TIMES, -TIMES.quiet)
    made.follow([(0, 1, "b0", False), (1, 1, "b1", False), (2, 1, "b2", False)], 0.0)
    found = run(made, 40, {2}, 3)
    assert [finding for finding in found if isinstance(finding, AskPlatform)] == [AskPlatform(2, 1)]
    made.platform_unknown(2, 1, 40.0)
    assert dead(run(made, 159, {2}, 3, start=40)) == set()
    assert dead(run(made, 160, {2}, 3, start=159)) == {2}


def test_many_silent_together_are_a_common_cause_and_nobody_is_dead() -> None:
    made = judge()
    made.peer_error(5, 10.0)
    made.platform(1, 1, False, 5.0)
    made.platform(2, 1, False, 5.0)
    found = run(made, 600, {1, 2})
    assert suspects(found) == {1, 2}
    assert dead(found) == set()


def test_one_of_two_workers_is_no_common_cause() -> None:
    made = judge(2)
    made.peer_error(1, 10.0)
    assert dead(run(made, 20, {0}, 2)) == {0}


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_nothing_is_judged_for_25_s_after_a_takeover_or_reconnect(workers: int) -> None:
    made = judge(workers)
    made.platform(0, 1, False, 0.0)
    made.quiet(100.0)
    made.peer_error(workers - 1, 101.0)
    for second in range(101, 125):
        assert made.tick(float(second)) == []
    assert suspects(made.tick(125.0)) == set(range(workers))


def test_heartbeats_of_another_attempt_boot_or_number_do_not_count() -> None:
    made = judge()
    assert made.heartbeat(0, 1, "b0", 5, now=1.0)
    assert not made.heartbeat(0, 1, "b0", 5, now=2.0)
    assert not made.heartbeat(0, 1, "b0", 4, now=2.0)
    assert not made.heartbeat(0, 2, "b0", 9, now=2.0)
    assert not made.heartbeat(0, 1, "other", 9, now=2.0)
    assert not made.heartbeat(99, 1, "b0", 9, now=2.0)
    assert made.heartbeat(0, 1, "b0", 6, now=2.0)


def test_a_worker_heard_again_is_suspect_no_more() -> None:
    made = judge()
    assert suspects(run(made, 20, {3})) == {3}
    assert made.heartbeat(3, 1, "b3", 99_000, now=21.0)
    assert Suspect(3, 1, False) in made.tick(21.5)


def test_a_new_attempt_starts_its_own_clock() -> None:
    made = judge()
    run(made, 14, {3})
    made.follow([(i, 2 if i == 3 else 1, f"b{i}" if i != 3 else "new", False) for i in range(8)], 14.0)
    beat(made, 28.0, {3})
    assert suspects(made.tick(28.0)) == set()
    assert suspects(made.tick(29.0)) == {3}


def test_the_lowest_step_is_what_counts_as_progress() -> None:
    made = judge(3)
    made.heartbeat(0, 1, "b0", 1, now=1.0, step=10)
    made.heartbeat(1, 1, "b1", 1, now=1.0, step=8)
    assert made.steps(2.0) == (8, 10, 3)
    made.forget_steps()
    assert made.steps(2.0) == (-1, -1, 3)
