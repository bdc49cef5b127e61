"""Failure rates from counts and exposure: blame split over jobs, shrinkage towards the fleet, and a mixture of healthy nodes and lemons. Pure.

c failures and e node-days per node throughout. Poisson counts; see the closed forms in the tests for what 28 days can tell at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import lgamma

import numpy as np
from numpy.typing import NDArray

from aegis_lemon.history.observe import Blame

Floats = NDArray[np.float64]


def split_blame(hard: Floats, exposure: Floats, blame: Blame, rounds: int = 60, prior: float = 0.2) -> Floats:
    """Failures per node after splitting each unnamed one over its job's nodes by their rates (EM).

    A weak Gamma prior of shape `prior` holds a node that was hardly seen at the fleet's mean.
    """
    if not len(blame):
        return hard
    failures = hard.sum() + len(blame)
    mean = failures / max(exposure.sum(), 1e-9)
    rate = np.full(len(hard), mean)
    for _ in range(rounds):
        counts = hard + shares(blame, rate)
        rate = (counts + prior) / (exposure + prior / mean)
    return counts


def shares(blame: Blame, rate: Floats) -> Floats:
    """What each node gets of the unnamed failures when each is split over its job's nodes by `rate`."""
    each = rate[blame.node]
    part = each / np.repeat(np.add.reduceat(each, blame.start[:-1]), np.diff(blame.start))
    found: Floats = np.bincount(blame.node, part, len(rate)).astype(float)
    return found


ALIKE, WIDE = math.inf, 0.7
"""How far the mean rates within a class differ, as the shape of their Gamma distribution: not at all, or widely (counts negative binomial). Nodes are
judged by both. Alike decides in small fleets; wide finds a lemon that is mild beside extreme ones. One shape for both classes of a view: then more
failures are never better, whatever the exposure (docs/decisions/0014)."""
RAISED = 1.5
"""Times by which the odds of a lemon are raised in the wide view: the fitted share counts only those that show."""
UNSEEN = 0.5
"""Failures that the healthy nodes of a fleet are taken to have had at least: a young fleet in which none failed yet is not one that never fails."""


@dataclass(frozen=True)
class Mixture:
    """Mean rates per node-day of healthy nodes and lemons, how far rates of a class differ, the share of lemons, and the probability of being one."""

    posterior: Floats
    healthy: float
    lemon: float
    share: float
    shape: float = ALIKE


def two_rates(count: Floats, exposure: Floats, shape: float = ALIKE, *, rounds: int = 200, share: float = 0.012, ratio: float = 30.0) -> Mixture:
    """EM for both rates and the share of lemons, kept within 0.2 to 5 %, the lemon rate at least 4 times the healthy one."""
    total, days = float(count.sum()), float(exposure.sum())
    if total == 0 or days <= 0:
        return Mixture(np.zeros(len(count)), 0.0, 0.0, 0.0, shape)
    mixture = Mixture(np.zeros(len(count)), total / days / 2, total / days * ratio, share, shape)
    for _ in range(rounds):
        mixture = _step(count, exposure, mixture)
    return mixture


def _step(count: Floats, exposure: Floats, mixture: Mixture) -> Mixture:
    """Posteriors under the present rates, then the rates under the posteriors."""
    posterior = lemon_posterior(count, exposure, mixture.healthy, mixture.lemon, mixture.share, shape=mixture.shape)
    share = min(0.05, max(0.002, float(posterior.mean())))
    lemon = max(float((posterior * count).sum()) / max(1e-9, float((posterior * exposure).sum())), 4 * mixture.healthy)
    healthy = max(UNSEEN, float(((1 - posterior) * count).sum())) / max(1e-9, float(((1 - posterior) * exposure).sum()))
    return Mixture(posterior, healthy, lemon, share, mixture.shape)


def lemon_posterior(
    count: Floats,
    exposure: Floats,
    healthy: float | Floats,
    lemon: float | Floats,
    share: float | Floats,
    *,
    shape: float = ALIKE,
    raised: float = 1.0,
) -> Floats:
    """P(lemon | c, e) for given mean rates of the classes and share of lemons, its odds `raised` so many times; the log odds are clipped at 50."""
    good, bad, prior = np.asarray(healthy, float), np.asarray(lemon, float), np.asarray(share, float)
    if math.isinf(shape):
        seen = count * np.log(bad / good) - exposure * (bad - good)
    else:
        quiet = shape * (np.log1p(good * exposure / shape) - np.log1p(bad * exposure / shape))
        seen = quiet + count * (np.log(shape / good + exposure) - np.log(shape / bad + exposure))
    odds = seen + np.log(raised * prior / (1 - prior))
    found: Floats = 1 / (1 + np.exp(-np.clip(odds, -50, 50)))
    return found


def gamma_prior(count: Floats, exposure: Floats) -> tuple[float, float]:
    """Shape and rate of a Gamma prior by moments, exposure taken into account."""
    days = float(exposure.sum())
    mean = float(count.sum()) / max(days, 1e-9)
    if mean <= 0:
        return 1.0, 1e9
    variance = max(1e-12, float(((count - mean * exposure) ** 2 - mean * exposure).sum()) / max(1e-12, float((exposure**2).sum())))
    return mean * mean / variance, mean / variance


def gamma_sf(x: Floats, shape: Floats) -> Floats:
    """P(Gamma(shape, 1) > x): series below shape + 1, continued fraction (Lentz) above, as in Numerical Recipes 6.2."""
    x, a = np.broadcast_arrays(np.asarray(x, float), np.asarray(shape, float))
    front = np.exp(-x + a * np.log(np.maximum(x, 1e-300)) - np.vectorize(lgamma, otypes=[float])(a))
    term = 1 / a
    series, k = term.copy(), a.copy()
    for _ in range(2000):
        k = k + 1
        term = term * np.where(x < a + 1, x, 0.0) / k
        series = series + term
        if (term < series * 1e-14).all():
            break
    tail = np.where(x >= a + 1, x, a + 2)  # the fraction is used there only, and grows without bound elsewhere
    b = tail + 1 - a
    c, d = np.full(x.shape, 1e300), 1 / np.where(b == 0, 1e-300, b)
    fraction = d.copy()
    for i in range(1, 2000):
        an = -i * (i - a)
        b = b + 2
        d = an * d + b
        d = 1 / np.where(np.abs(d) < 1e-300, 1e-300, d)
        c = b + an / c
        c = np.where(np.abs(c) < 1e-300, 1e-300, c)
        step = c * d
        fraction = fraction * step
        if (np.abs(np.where(x >= a + 1, step, 1.0) - 1) < 1e-14).all():
            break
    found: Floats = np.where(x <= 0, 1.0, np.where(x < a + 1, 1 - front * series, front * fraction))
    return np.clip(found, 0.0, 1.0)


def shrunk(count: Floats, exposure: Floats, times: float) -> tuple[Floats, Floats]:
    """(posterior mean rate, P(rate > times x fleet mean)) under the fitted Gamma prior."""
    shape, rate = gamma_prior(count, exposure)
    mean = float(count.sum()) / max(float(exposure.sum()), 1e-9)
    if mean <= 0:
        return np.zeros(len(count)), np.zeros(len(count))
    return (shape + count) / (rate + exposure), gamma_sf(times * mean * (rate + exposure), shape + count)
