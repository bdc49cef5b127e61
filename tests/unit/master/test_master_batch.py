"""How soon a change is stored, and when an order is repeated: each commit of a large job reaches every agent."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any, cast

import pytest
from aegis_master import batch, machine
from aegis_master import events as ev
from aegis_master.intake import Beside, Taken
from aegis_master.settings import OwnerSettings
from aegis_master.watch import ANSWERING, Watch
from aegis_proto.messages import CheckResult
from aegis_proto.phases import Phase
from aegis_proto.state import JobSpec, JobState

FLAGS = 2.0


def booting(workers: int) -> JobState:
    """A job in its first round, which began at 2,000 ms."""
    state = machine.create("j-1", JobSpec("j", workers=workers), "uid", "era", 1000)
    for index in range(workers):
        state, _ = machine.step(state, ev.PodReady(index, 1, "b"), 2000)
    assert state.head.phase is Phase.BOOT_CHECKING
    return state


def urgency(state: JobState, event: ev.Event, at: int) -> float:
    after, _ = machine.step(state, event, at)
    assert after is not state
    return batch.urgency(state, event, after, FLAGS, at)


def finish(state: JobState, index: int) -> ev.Finished:
    return ev.Finished(index, 1, "b", 0, state.head.seqNum)


@pytest.mark.parametrize(("at", "within"), [(2100, 2.0), (5000, 3.0), (9000, 7.0), (600_000, 10.0)])
def test_a_flag_of_a_large_job_waits_as_long_as_its_round_has_lasted(at: int, within: float) -> None:
    state = booting(100)
    assert urgency(state, finish(state, 1), at) == within
    assert urgency(state, ev.Stopped(1, 1, "b", 0), at) == within


def test_a_flag_of_a_small_job_and_whatever_changes_an_order_are_stored_at_once() -> None:
    small = booting(3)
    assert urgency(small, finish(small, 1), 2100) == 0.0
    large = booting(100)
    for index in range(99):
        large, _ = machine.step(large, finish(large, index), 2100)
    assert urgency(large, finish(large, 99), 2100) == 0.0  # the last answer is the order to run


def test_an_acknowledgement_is_stored_with_the_next_change() -> None:
    state = booting(100)
    assert urgency(state, ev.Acked(1, 1, "b", state.head.seqNum), 2100) == math.inf


def test_an_order_is_not_repeated_to_all_while_answers_still_come() -> None:
    settings = OwnerSettings(ack_after=2.0, ack_repeats=1)
    watch = Watch(cast(Any, None), cast(Any, None), cast(Any, None), settings, "j-1")
    state = booting(100)
    now = time.monotonic()
    assert not watch.missing_acks(state, now)
    watch.take(Taken(heard=1))  # an answer, now
    watch._order_at = now - 3.0
    assert not watch.missing_acks(state, now + ANSWERING / 2)
    assert watch.missing_acks(state, now + 2 * ANSWERING)


def test_a_check_beside_a_run_that_stands_still_is_told_once_while_it_stands() -> None:
    watch = Watch(cast(Any, None), cast(Any, None), cast(Any, None), OwnerSettings(), "j-1")
    state = booting(3)
    beside = Beside(1, CheckResult("io", False, "critical mount_stalled /data: no answer within 20 s"), 5000)
    (note,) = watch.beside(state, beside)
    assert (note.kind, note.index, note.details["check"], note.at) == ("check", 1, "io", 5000)
    assert note.message.startswith("w1 failed io: critical mount_stalled")
    assert watch.beside(state, beside) == watch.beside(state, Beside(2, CheckResult("hang", True), 6000)) == ()
    assert watch.beside(state, Beside(1, CheckResult("astrology", False, "x"), 6000)) == ()
    asyncio.run(watch.tick(state, time.monotonic()))  # nobody is marked any more
    assert watch.beside(state, beside) == (note,)


def test_a_stream_of_answers_does_not_hold_a_repeat_back_for_ever() -> None:
    watch = Watch(cast(Any, None), cast(Any, None), cast(Any, None), OwnerSettings(ack_after=2.0), "j-1")
    state = booting(100)
    now = time.monotonic()
    assert not watch.missing_acks(state, now)
    watch._order_at = now - 10.0
    watch.take(Taken(heard=1))
    assert watch.missing_acks(state, now + 0.01)
