"""Seconds of training between two saves: Young, Daly, the exact minimiser, and what async saves change.

`mttf` is the job's mean time to failure, `write` the seconds that a save costs. All give the productive time between the end of one save and the
start of the next, but `availability_period`, whose period includes the save.
"""

from __future__ import annotations

import math

from .setting import Setting, SettingError

METHODS = ("young", "daly", "exact")


def young(write: float, mttf: float) -> float:
    """Young 1974, called Daly-Young by Kokolis et al.: sqrt(2 w M)."""
    return math.sqrt(2 * write * mttf) if write > 0 else 0.0


def daly_first(write: float, mttf: float, restart: float) -> float:
    """Daly's first order with restart time: sqrt(2 w (M + R)) - w; for w much smaller than M."""
    return max(0.0, math.sqrt(2 * write * (mttf + restart)) - write)


def daly_higher(write: float, mttf: float) -> float:
    """Daly 2006: a perturbation solution for w < 2 M, else M. The restart time drops out."""
    if write <= 0:
        return 0.0
    if write >= 2 * mttf:
        return mttf
    if math.isinf(mttf):
        return math.inf
    x = write / (2 * mttf)
    return math.sqrt(2 * write * mttf) * (1 + math.sqrt(x) / 3 + x / 9) - write


def lambert_w0(z: float) -> float:
    """Principal branch of Lambert's W for -1/e <= z <= 0, by Halley's iteration from the series at the branch point."""
    if z <= -1 / math.e:
        return -1.0
    p = math.sqrt(max(0.0, 2 * (math.e * z + 1)))
    x = -1 + p - p * p / 3 + 11 * p**3 / 72
    for _ in range(60):
        if x == -1:
            return x
        power = math.exp(x)
        f = x * power - z
        slope = power * (x + 1) - (x + 2) * f / (2 * x + 2)
        if slope == 0:
            return x
        following = x - f / slope
        if abs(following - x) < 1e-15:
            return following
        x = following
    return x


def daly_exact(write: float, mttf: float) -> float:
    """The minimiser of Daly's cost function: solves (1 - t/M) e^((t+w)/M) = 1, that is M (1 + W0(-e^-(1+w/M)))."""
    if write <= 0:
        return 0.0
    if math.isinf(mttf):
        return math.inf
    x = write / mttf
    if x < 1e-9:  # the argument of W meets the branch point in double precision; the higher order is exact there
        return daly_higher(write, mttf)
    return mttf * (1 + lambert_w0(-math.exp(-(1 + x))))


def availability_period(write: float, mttf: float, restart: float) -> float:
    """Availability-optimal period of arXiv 2410.18124, the save included: w + sqrt(2 (M + R) w + w^2)."""
    return write + math.sqrt(2 * (mttf + restart) * write + write * write)


def interval_of(setting: Setting, method: str = "young") -> float:
    """The interval that `method` picks; with async saves never shorter than one persist, since no save starts before the last is durable."""
    if method not in METHODS:
        raise SettingError(f'interval method "{method}": expected one of {", ".join(METHODS)}')
    rule = {"young": young, "daly": daly_higher, "exact": daly_exact}[method]
    return max(setting.persist, rule(setting.overhead, setting.mttf))
