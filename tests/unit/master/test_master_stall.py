"""A run is hung when no rank advances, and only then; who holds it up is named by what can be seen from outside."""

from __future__ import annotations

import pytest
from aegis_master.stall import Hung, Stall
from aegis_proto.messages import Heartbeat
from aegis_proto.state import JobSpec

SPEC = JobSpec("j", hangSilence=30.0, firstStepTimeout=600.0)


def beat(step: int = -1, silence: float = -1.0, **more: object) -> Heartbeat:
    return Heartbeat("b", 1, running=True, incarnation=0, step=step, silence=silence, **more)  # type: ignore[arg-type]


class Play:
    """Heartbeats every 5 s; workers step each second until `stop`."""

    def __init__(self, workers: int = 4) -> None:
        self.stall = Stall(0.0)
        self.stall.follow(0, 0.0)
        self.workers = workers
        self.found: list[tuple[float, Hung]] = []

    def run(self, start: int, end: int, stop: int, spec: JobSpec = SPEC, said: dict[int, dict[str, object]] | None = None) -> None:
        for now in range(start, end):
            if now % 5 == 0:
                for i in range(self.workers):
                    more = {"step": min(now, stop), "silence": float(max(0, now - stop)), "sign": "idle", "cpu": 0.0, **(said or {}).get(i, {})}
                    if not more.pop("mute", False):
                        self.stall.beat(i, beat(**more), now)  # type: ignore[arg-type]
            hung = self.stall.tick(spec, range(self.workers), now)
            if hung is not None:
                self.found.append((now, hung))


def named(said: dict[int, dict[str, object]], workers: int = 4, spec: JobSpec = SPEC) -> Hung:
    play = Play(workers)
    play.run(0, 300, 100, spec, said)
    assert play.found
    return play.found[-1][1]


def test_a_run_that_advances_is_never_hung() -> None:
    play = Play()
    play.run(0, 500, 10_000)
    assert not play.found


@pytest.mark.parametrize(
    ("said", "who"),
    [
        ({2: {"sign": "stopped"}}, (2,)),
        ({2: {"sign": "blocked"}}, (2,)),
        ({3: {"step": 99}}, (3,)),
        ({1: {"sign": "busy", "cpu": 1.0}}, (1,)),
        ({0: {"sign": "busy"}, 1: {"sign": "busy"}, 2: {"sign": "busy"}}, (3,)),
        ({i: {"gpu": 3.0 if i == 1 else 98.0, "sign": "busy"} for i in range(4)}, (1,)),
        ({i: {"gpu": 100.0 if i == 0 else 0.0} for i in range(4)}, (0,)),
        ({i: {"gpu": 50.0 if i == 1 else 98.0} for i in range(4)}, (0, 1, 2, 3)),
        ({}, (0, 1, 2, 3)),
        ({0: {"sign": "busy"}, 1: {"sign": "busy"}}, (0, 1, 2, 3)),
    ],
)
def test_who_holds_it_up_is_named_by_how_it_looks(said: dict[int, dict[str, object]], who: tuple[int, ...]) -> None:
    assert named(said).indexes == who


def test_a_stopped_process_is_named_within_a_heartbeat_of_the_limit() -> None:
    play = Play()
    play.run(0, 300, 100, SPEC, {2: {"sign": "stopped"}})
    assert 130 <= play.found[0][0] <= 136


def test_workers_that_spoke_at_different_times_are_not_compared() -> None:
    """The first to speak was a step behind, by right; nobody is accused of it before all have said how they look now."""
    stall, spec = Stall(0.0), JobSpec("j", hangSilence=4.0)
    stall.follow(0, 0.0)
    for i, step, at in ((0, 91, 99.9), (1, 92, 100.1), (2, 92, 100.2)):
        stall.beat(i, beat(step, 0.1, sign="idle" if i == 0 else "busy"), at)
    assert all(stall.tick(spec, range(3), now) is None for now in (101.0, 103.0, 104.5))
    for i, sign, at in ((0, "idle", 104.9), (1, "stopped", 105.1), (2, "idle", 105.2)):
        stall.beat(i, beat(92, at - 100.0, sign=sign), at)
        hung = stall.tick(spec, range(3), at)
        assert (hung.indexes if hung else ()) == ((1,) if i else ()), f"after w{i} spoke"


def test_a_worker_that_is_not_heard_is_named() -> None:
    play = Play()
    play.run(0, 100, 100)
    play.run(100, 300, 100, SPEC, {1: {"mute": True}})
    assert play.found[-1][1].indexes == (1,)


def test_the_one_outside_of_the_collective_is_named_when_stacks_come() -> None:
    play = Play()
    play.run(0, 140, 100)
    assert play.found[-1][1].indexes == (0, 1, 2, 3)
    for i in range(4):
        play.stall.looked(i, "elsewhere" if i == 2 else "waiting", "load (data.py:9)")
    play.run(140, 150, 100)
    hung = play.found[-1][1]
    assert hung.indexes == (2,) and "data.py:9" in hung.why


def test_progress_of_anybody_is_progress_and_ends_it() -> None:
    play = Play()
    play.run(0, 200, 100, SPEC, {2: {"sign": "stopped"}})
    assert play.found
    play.found.clear()
    play.run(200, 220, 10_000)
    assert not play.found


def test_before_the_first_step_only_its_own_deadline_holds() -> None:
    silent = {i: {"silence": -1.0, "step": -1, "cpu": 0.0} for i in range(4)}
    play = Play()
    play.run(0, 600, 0, SPEC, silent)
    assert not play.found
    play.run(600, 640, 0, SPEC, silent)
    assert play.found


def test_a_phase_that_said_it_will_be_long_has_its_own_deadline() -> None:
    play = Play()
    play.run(0, 105, 100, SPEC, {0: {"patience": 95.0}})  # says at 100 that it saves for 95 s
    play.run(105, 195, 100, SPEC)  # patience is told by the heartbeat that has it
    first = play.found[0][0] if play.found else None
    assert first is not None and first >= 130
    play = Play()
    for now in range(0, 400):
        if now % 5 == 0:
            for i in range(4):
                patience = max(0.0, 300.0 - now) if now >= 100 and i == 0 else 0.0
                play.stall.beat(i, beat(min(now, 100), float(max(0, now - 100)), patience=patience, sign="stopped" if i == 1 else "idle"), now)
        if (hung := play.stall.tick(SPEC, range(4), now)) is not None:
            play.found.append((now, hung))
    assert 300 <= play.found[0][0] <= 306


def test_one_that_prints_nothing_is_not_hung_while_another_tells_steps() -> None:
    play = Play()
    play.run(0, 500, 10_000, SPEC, {i: {"silence": -1.0, "step": -1} for i in (1, 2, 3)})
    assert not play.found


def test_without_a_wish_the_limit_is_learned_from_the_steps_with_a_floor_and_a_cap() -> None:
    spec = JobSpec("j", hangTimeout=600.0)
    stall = Stall(0.0)
    stall.follow(0, 0.0)
    stall.beat(0, beat(5, 1.0), 0.0)
    assert stall.limit(spec, "step") == 600.0
    stall.beat(0, beat(50, 1.0, gap=2.0), 0.0)
    assert stall.limit(spec, "step") == 60.0
    stall.beat(0, beat(60, 1.0, gap=200.0), 0.0)
    assert stall.limit(spec, "step") == 200.0
    stall.beat(0, beat(70, 1.0, gap=9_000.0), 0.0)
    assert stall.limit(spec, "step") == 600.0


def test_nothing_of_an_earlier_incarnation_speaks_about_this_one() -> None:
    play = Play()
    play.run(0, 140, 100)
    assert play.found
    play.found.clear()
    play.stall.follow(1, 140.0)
    for now in range(140, 300, 5):
        for i in range(4):
            play.stall.beat(i, beat(100, float(now - 100), sign="stopped"), now)  # late heartbeats of incarnation 0
        assert play.stall.tick(SPEC, range(4), now) is None
