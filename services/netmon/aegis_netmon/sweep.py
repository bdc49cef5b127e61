"""A sweep over the fabric within a time budget: whom to ask next, who did not answer, what was not reached. Pure; time is an argument.

Paths that are dead make a scan of seconds one of minutes, so that a node that was silent is asked last, and then only every few sweeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

EVERY_MOST = 8
"""A node that stays silent is asked in every eighth sweep at least."""


class Sweep(msgspec.Struct, frozen=True):
    """One sweep. `silence`: of each target, in how many sweeps in a row it was silent; kept from one sweep to the next."""

    begun: float
    budget: float
    waiting: tuple[str, ...]
    silence: Mapping[str, int]
    answered: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True):
    """`whole`: everybody was asked and answered; otherwise the result is partial and says who is missing and why."""

    whole: bool
    seconds: float
    answered: int
    silent: tuple[str, ...]
    not_reached: tuple[str, ...]
    skipped: tuple[str, ...]


def start(targets: Iterable[str], now: float, budget: float, silence: Mapping[str, int] | None = None, number: int = 0) -> Sweep:
    """The `number`-th sweep: those that answered last come first; of the silent only those whose turn it is."""
    silence = silence or {}
    order = sorted(targets, key=lambda target: silence.get(target, 0))
    turn = {target: min(2 ** max(silence.get(target, 0) - 1, 0), EVERY_MOST) for target in order}
    asked = tuple(target for target in order if number % turn[target] == 0)
    return Sweep(now, budget, asked, silence, skipped=tuple(target for target in order if target not in set(asked)))


def ask(sweep: Sweep, now: float) -> tuple[str, float] | None:
    """Whom to ask now, and for how long to wait at most; None: all asked, or the budget is spent."""
    left = sweep.begun + sweep.budget - now
    if not sweep.waiting or left <= 0:
        return None
    return sweep.waiting[0], min(left, max(left / len(sweep.waiting), 0.05 * sweep.budget))


def told(sweep: Sweep, target: str, answered: bool) -> Sweep:
    """After an answer or a silence."""
    silence = {**sweep.silence, target: 0 if answered else sweep.silence.get(target, 0) + 1}
    return msgspec.structs.replace(
        sweep,
        waiting=tuple(other for other in sweep.waiting if other != target),
        silence=silence,
        answered=(*sweep.answered, target) if answered else sweep.answered,
        silent=sweep.silent if answered else (*sweep.silent, target),
    )


def report(sweep: Sweep, now: float) -> Report:
    """What the sweep gave."""
    whole = not (sweep.silent or sweep.waiting or sweep.skipped)
    return Report(whole, now - sweep.begun, len(sweep.answered), tuple(sorted(sweep.silent)), sweep.waiting, sweep.skipped)
