"""A second opinion on the closed forms: long runs drawn failure by failure, exponential or Weibull. The generator is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .setting import Setting, SettingError

BATCHES = 20
LEAST_SHAPE, MOST_SHAPE = 0.05, 100.0
"""Of a Weibull time to failure: beyond the lower end its mean is not a number any more."""


@dataclass(frozen=True)
class Drawn:
    """Mean of the batches, and its standard error."""

    ettr: float
    error: float


def generator(seed: int) -> np.random.Generator:
    """For whoever has a number only."""
    return np.random.default_rng(seed)


def simulate(setting: Setting, interval: float, rng: np.random.Generator, failures: int = 40_000, shape: float = 1.0) -> Drawn:
    """`failures` cycles of queue, restart, training and saves, each ended by a failure. `shape` 1 is exponential, else Weibull of the same mean.

    The time to failure is drawn anew from the moment the nodes are held. Work counts up to the last save that was durable at the failure.
    """
    if setting.rate <= 0:
        raise SettingError("rf 0: a simulation ends at failures, and there are none")
    if not interval > 0 or interval < setting.persist:
        raise SettingError(f"interval {interval}: expected seconds, more than 0 and not less than persist")
    if not LEAST_SHAPE <= shape <= MOST_SHAPE:
        raise SettingError(f"shape {shape}: expected {LEAST_SHAPE} to {MOST_SHAPE}")
    per = max(1, failures // BATCHES)
    scale = setting.mttf / math.gamma(1 + 1 / shape)
    held = scale * rng.weibull(shape, (BATCHES, per))
    period = interval + setting.overhead
    saves = np.floor((held - setting.restart - setting.persist) / period)
    work = interval * np.maximum(saves, 0).sum(axis=1)
    ratios = work / (held.sum(axis=1) + per * setting.queue)
    return Drawn(float(ratios.mean()), float(ratios.std(ddof=1) / math.sqrt(BATCHES)))
