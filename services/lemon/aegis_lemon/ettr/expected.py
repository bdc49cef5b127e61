"""Expected ETTR in closed form: exact for Poisson failures, the first-order forms of Kokolis et al., the ceiling, and what a target needs.

Exact: failures strike in training, save and restart, never in the queue. With L the job's failure rate, dt the interval, w, u, q as in `Setting`:
    ETTR = L dt e^(-L P) / ((e^(L (dt+w)) - 1) e^(L u) (1 + L q))
P is the time until an async snapshot is durable (0 when saves block). With q = 0 and P = 0 this is Daly's cost function turned over. First order
(v2 of the paper) is 1 - L (u + dt/2) over 1 + w/dt; it is good to a few percent up to 8,000 GPUs and far off at 100,000: compare with it, decide by
the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from .intervals import interval_of
from .setting import Setting, SettingError

Form = Callable[[Setting, float], float]


def _checked(setting: Setting, interval: float) -> float:
    if not interval >= 0:
        raise SettingError(f"interval {interval}: expected seconds, not negative")
    if interval < setting.persist and setting.persist > 0:
        raise SettingError(f"interval {interval:g} s is shorter than the {setting.persist:g} s that a snapshot takes to be durable")
    return interval


def ceiling(setting: Setting) -> float:
    """No schedule of saves can beat this: free and continuous ones. e^(-L u) / (1 + L q)."""
    return math.exp(-setting.rate * setting.restart) / (1 + setting.rate * setting.queue)


def exact(setting: Setting, interval: float) -> float:
    """Expected ETTR for exponential failures, 0..1. An interval of 0 means free, continuous saves when `write` is 0, and no progress else."""
    dt = _checked(setting, interval)
    rate, cost = setting.rate, setting.overhead
    if dt == 0:
        return ceiling(setting) if cost == 0 else 0.0
    if rate == 0:
        steady = 1.0 if math.isinf(dt) else dt / (dt + cost)
        return setting.run / (setting.queue + setting.restart + setting.run / steady) if setting.run else steady
    if rate * (dt + cost) > 700 or rate * (setting.restart + setting.persist) > 700:
        return 0.0
    per_interval = math.expm1(rate * (dt + cost)) * math.exp(rate * (setting.restart + setting.persist)) * (1 / rate + setting.queue)
    if not setting.run:
        return dt / per_interval
    first = setting.queue * math.exp(rate * setting.restart) + math.expm1(rate * setting.restart) / rate
    return setting.run / (first + setting.run / dt * per_interval)


def first_order(setting: Setting, interval: float) -> float:
    """First order in L, with queue and finite run: W = q + (1 + L q) ((1 + w/dt) R + u) / (1 - L (u + dt/2 + P)). 0 where the form breaks down."""
    dt = _checked(setting, interval)
    rate = setting.rate
    lost = rate * (setting.restart + dt / 2 + setting.persist) if rate else 0.0
    if lost >= 1:
        return 0.0
    cost = setting.overhead
    if dt == 0 and cost > 0:
        return 0.0
    stretch = 1 + (cost / dt if cost else 0.0)
    waiting = 1 + rate * setting.queue
    if not setting.run:
        return (1 - lost) / (stretch * waiting)
    return setting.run / (setting.queue + waiting * (stretch * setting.run + setting.restart) / (1 - lost))


def lower_bound(setting: Setting, interval: float) -> float:
    """The bound-style form of the paper's first version, free saves, cross terms dropped: (1 - L (u + dt/2)) / (1 + (u+q)/R + L q)."""
    dt = _checked(setting, interval)
    once = (setting.restart + setting.queue) / setting.run if setting.run else 0.0
    return max(0.0, (1 - setting.rate * (setting.restart + dt / 2)) / (1 + once + setting.rate * setting.queue))


def at_best(setting: Setting, form: Form = exact, method: str = "young") -> float:
    """A form at the interval that `method` picks."""
    return form(setting, interval_of(setting, method))


def _bisect(function: Callable[[float], float], low: float, high: float, target: float) -> float:
    """Where a falling function of a positive number meets `target`; bisection on the logarithm."""
    for _ in range(200):
        middle = math.sqrt(low * high)
        if function(middle) > target:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def _check_target(target: float) -> None:
    if not 0 < target < 1:
        raise SettingError(f"target {target}: expected a ratio between 0 and 1")


def need_rf(setting: Setting, target: float = 0.9, form: Form = exact, method: str = "young") -> float:
    """The highest failure rate, per 1000 node-days, at which the target holds with everything else as it is; 0 when none does."""
    _check_target(target)

    def reach(rf: float) -> float:
        return at_best(replace(setting, rf=rf), form, method)

    return 0.0 if reach(1e-9) < target else _bisect(reach, 1e-9, 1e6, target)


def need_write(setting: Setting, target: float = 0.9, form: Form = exact, method: str = "young") -> float:
    """The longest save, seconds, at which the target holds; 0 when not even a free one does."""
    _check_target(target)

    def reach(write: float) -> float:
        return at_best(replace(setting, write=write), form, method)

    return 0.0 if reach(1e-9) < target else _bisect(reach, 1e-9, 1e7, target)
