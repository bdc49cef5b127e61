"""Managed or plain, train on or stop: what a worker does when Aegis cannot be reached. Pure (docs/agent.md, "Without Aegis").

House rule: nothing of Aegis stops a training that would have run without it. And: a worker that was managed once, or is not the first in its place,
never runs on its own, since somebody else may run in its stead.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

START_WAIT = 120.0
"""Seconds a worker tries to reach the bus before it decides (`AEGIS_AGENT_START_WAIT`)."""
CUT_OFF = 60.0
"""Seconds without the bus and without progress after which a managed child is stopped."""


class Start(StrEnum):
    TRY = "try"  # go on trying
    WAIT = "wait"  # connected: wait for orders, start nothing
    PLAIN = "plain"  # run the command as a plain job
    LEAVE = "leave"  # exit 75, to be placed anew


@dataclass(frozen=True, slots=True)
class Reach:
    """What is known about the way to the bus. `managed`: it was connected once. `told`: an answer that this attempt is over (revoked, superseded)."""

    attempt: int
    connected: bool
    managed: bool
    told: str = ""
    orphan: bool = False
    """Nobody could ever manage it: no job, or no address of the credentials service."""


def start(reach: Reach, waited: float, start_wait: float = START_WAIT) -> Start:
    """What to do before anything runs, `waited` seconds after the start."""
    if reach.told:
        return Start.LEAVE
    if reach.connected:
        return Start.WAIT
    if reach.attempt > 1 or reach.managed:
        return Start.TRY if waited < start_wait else Start.LEAVE
    if reach.orphan:
        return Start.PLAIN
    return Start.TRY if waited < start_wait else Start.PLAIN


class CutOff(StrEnum):
    TRAIN_ON = "trainOn"
    STOP = "stop"


def cut_off(*, silent: float, told: str, since_progress: float | None, longest_gap: float | None, expected_long: bool = False) -> CutOff:
    """What a managed, running child gets when the bus has been away for `silent` seconds.

    `since_progress`: seconds since its last step, None when it never told one (then nothing can be said, and it trains on). `longest_gap`: the
    longest time between two of its steps so far: slow steps are no stand-still, so three of them are waited for. An answer (`told`) always stops.
    """
    if told:
        return CutOff.STOP
    if silent < CUT_OFF or since_progress is None or longest_gap is None or expected_long:
        return CutOff.TRAIN_ON
    return CutOff.STOP if since_progress >= max(CUT_OFF, 3 * longest_gap) else CutOff.TRAIN_ON


def renew_after(lifetime: float, rng: random.Random) -> float:
    """Seconds until a JWT of `lifetime` seconds is renewed: a random point of [1/3, 2/3], so that a fleet does not renew in one second."""
    return lifetime * rng.uniform(1 / 3, 2 / 3)


def backoff(tries: int, rng: random.Random, first: float = 0.5, most: float = 15.0) -> float:
    """Seconds before the next try, with full jitter."""
    return rng.uniform(0.1, min(most, first * 2 ** min(tries, 10)))


def start_wait_from(environ: dict[str, str]) -> float:
    """`AEGIS_AGENT_START_WAIT` in seconds, or the default. ValueError names the variable."""
    text = environ.get("AEGIS_AGENT_START_WAIT", "")
    if not text:
        return START_WAIT
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"E130 AEGIS_AGENT_START_WAIT={text!r}: seconds are needed, for example 120") from None
    if not 0 <= value <= 86400:
        raise ValueError(f"E130 AEGIS_AGENT_START_WAIT={text!r}: between 0 and 86400 seconds")
    return value
