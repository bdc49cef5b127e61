"""The server's clock as a master knows it: steps of its own clock are nothing to it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from aegis_master.clock import ServerClock

DAY = 86400.0
SERVER = 1_700_000_000.0
TRAVEL = 20
"""Milliseconds that a message takes."""


@dataclass
class Machine:
    """A machine whose clocks are `seconds` after its start, its wall clock `wrong` seconds ahead of the server's."""

    seconds: float = 0.0
    wrong: float = 0.0

    def wall(self) -> float:
        return SERVER + self.seconds + self.wrong

    def monotonic(self) -> float:
        return 5.0 + self.seconds

    def server_ms(self) -> int:
        return round((SERVER + self.seconds) * 1000)


@pytest.mark.parametrize("step", [DAY, 3600.0, -3600.0, -DAY])
def test_a_step_of_the_own_clock_moves_no_deadline(step: float) -> None:
    machine = Machine()
    clock = ServerClock(machine.wall, machine.monotonic)
    clock.saw(machine.server_ms())
    machine.wrong = step
    for _ in range(300):
        machine.seconds += 1
        assert abs(clock.now_ms() - machine.server_ms()) <= TRAVEL
        clock.saw(machine.server_ms() - TRAVEL)


def test_before_any_message_it_is_the_own_clock_as_it_was_at_the_start() -> None:
    machine = Machine(wrong=2.0)
    clock = ServerClock(machine.wall, machine.monotonic)
    machine.seconds, machine.wrong = 10.0, DAY
    assert abs(clock.now_ms() - machine.server_ms() - 2000) <= 1
    clock.saw(machine.server_ms())
    assert abs(clock.now_ms() - machine.server_ms()) <= 1


def test_a_server_that_went_back_is_believed_after_two_windows() -> None:
    machine = Machine()
    clock = ServerClock(machine.wall, machine.monotonic)
    clock.saw(machine.server_ms())
    for _ in range(int(2 * ServerClock.WINDOW) + 2):
        machine.seconds += 1
        clock.saw(machine.server_ms() - 3_600_000)
    assert abs(clock.now_ms() - machine.server_ms() + 3_600_000) <= 1
