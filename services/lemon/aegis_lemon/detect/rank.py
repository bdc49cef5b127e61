"""Nodes in order of suspicion, by one of several detectors, with what decided. Pure.

blame     failures without a name split over their jobs' nodes, then healthy nodes and lemons as two rates (default)
mixture   the two rates on failures that name their node
shrinkage P(rate > times x the fleet's mean) under a Gamma prior fitted to the fleet
count     failures that name the node
cusum     who turned bad and has not recovered: the onset detector over the window, with its days
rules     the specification's rules A and B
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aegis_lemon.history.observe import DAY, Observed

from .cusum import Cusum, changes, level
from .guards import Guards, group_rates, strata, withheld_by_cap, withheld_by_users
from .rates import ALIKE, RAISED, WIDE, lemon_posterior, shrunk, split_blame, two_rates
from .rules import Rules, apply_rules

if TYPE_CHECKING:
    from aegis_bus.settings import LemonSettings

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class DetectError(ValueError):
    """A detector or threshold that is not there."""

    code = "E140"


@dataclass(frozen=True)
class Thresholds:
    """At which a score flags; costs decide the posterior's: flag when P cost(miss) > (1 - P) cost(false alarm).

    0.5: a lemon that is kept costs as much as a good node that is tested. What recall costs in precision: docs/decisions/0014.
    """

    posterior: float = 0.5
    least: float = 1.8
    """Failures, split ones included, below which no posterior flags: one failure accuses nobody, however quiet the rest of the fleet is."""
    count: float = 3.0
    certain: float = 0.9
    times: float = 5.0
    probation_odds: float = 10.0
    """Prior odds of a node on probation (repaired within the window, or holding a part that left one), against a new one."""
    ratio: float = 50.0
    """Times the healthy rate: the lemon that the onset detector is tuned for."""
    limit: float = 9.0
    """Its alarm: about 4 false ones a year in 2,000 nodes, 13 days late in the median."""
    rules: Rules = field(default_factory=Rules)

    @classmethod
    def of(cls, settings: LemonSettings) -> Thresholds:
        """Those of the configuration, section [lemon]."""
        rules = Rules(settings.rule_multi, settings.rule_xid, settings.rule_rate, settings.rule_weight)
        return cls(settings.posterior, settings.least, settings.count, settings.certain, settings.times, rules=rules)


@dataclass(frozen=True)
class Scored:
    """Per node: the score, whether it flags, the failures that it rests on (blame included), and what else to say."""

    score: Floats
    flagged: Bools
    failures: Floats
    because: Callable[[int], str] | None = None


@dataclass(frozen=True)
class Ranked:
    """One node."""

    node: str
    score: float
    flagged: bool
    signals: dict[str, float]
    failures: float
    exposure: float
    times_fleet: float
    reason: str = ""
    withheld: str = ""
    probation: bool = False


@dataclass(frozen=True)
class Ranking:
    """All nodes, worst first."""

    nodes: list[Ranked]
    detector: str
    fleet_rate: float
    """Failures per 1000 node-days."""

    @property
    def flagged(self) -> list[Ranked]:
        return [node for node in self.nodes if node.flagged]


def _posterior(observed: Observed, count: Floats, set_: NDArray[np.int64], guards: Guards, thresholds: Thresholds) -> tuple[Floats, dict[int, str]]:
    """The higher of the posteriors of both views of a class, and who does not stand out of the rack or switch in either."""
    c, e = count[set_], observed.exposure[set_]
    views = [(two_rates(c, e, shape), raised) for shape, raised in ((ALIKE, 1.0), (WIDE, RAISED))]
    if min(mixture.healthy for mixture, _ in views) <= 0:
        return np.zeros(len(set_)), {}

    def highest(common: Floats) -> Floats:
        found = np.zeros(len(set_))
        for mixture, raised in views:
            share = np.full(len(set_), mixture.share)
            odds = thresholds.probation_odds * mixture.share / (1 - mixture.share)
            share[observed.probation[set_]] = odds / (1 + odds)
            healthy = np.maximum(mixture.healthy, common)
            lemon = np.where(common > 0, np.maximum(mixture.lemon, 4 * healthy), mixture.lemon)
            found = np.maximum(found, lemon_posterior(c, e, healthy, lemon, share, shape=mixture.shape, raised=raised))
        return found

    posterior, usual = highest(np.zeros(len(set_))), views[0][0].healthy
    reasons: dict[int, str] = {}
    if guards.groups:
        for what, groups in (("rack", observed.rack), ("switch", observed.switch)):
            common = group_rates(count, observed.exposure, groups, guards)[set_]
            alone = highest(common)
            for index in np.flatnonzero((posterior > thresholds.posterior) & (alone <= thresholds.posterior) & (common > usual)):
                times = common[index] / usual
                reasons.setdefault(int(set_[index]), f"its {what} {groups[int(set_[index])]} fails {times:.0f} times as often as a healthy node")
    return posterior, reasons


def _by_posterior(observed: Observed, count: Floats, guards: Guards, thresholds: Thresholds) -> tuple[Scored, dict[int, str]]:
    score = np.zeros(len(observed.names))
    withheld: dict[int, str] = {}
    for set_ in strata(observed, guards):
        score[set_], reasons = _posterior(observed, count, set_, guards, thresholds)
        withheld |= reasons
    return Scored(score, (score > thresholds.posterior) & (count >= thresholds.least), count), withheld


def _blame(observed: Observed, guards: Guards, thresholds: Thresholds) -> tuple[Scored, dict[int, str]]:
    count = split_blame(observed.hard, observed.exposure, observed.blame)
    return _by_posterior(observed, count, guards, thresholds)


def _mixture(observed: Observed, guards: Guards, thresholds: Thresholds) -> tuple[Scored, dict[int, str]]:
    return _by_posterior(observed, observed.hard, guards, thresholds)


def _shrinkage(observed: Observed, guards: Guards, thresholds: Thresholds) -> tuple[Scored, dict[int, str]]:
    score = np.zeros(len(observed.names))
    for set_ in strata(observed, guards):
        score[set_] = shrunk(observed.hard[set_], observed.exposure[set_], thresholds.times)[1]
    return Scored(score, score > thresholds.certain, observed.hard), {}


def _count(observed: Observed, guards: Guards, thresholds: Thresholds) -> tuple[Scored, dict[int, str]]:
    return Scored(observed.hard, observed.hard >= thresholds.count, observed.hard), {}


def _cusum(observed: Observed, guards: Guards, thresholds: Thresholds) -> tuple[Scored, dict[int, str]]:
    """Score: the sum over its limit, 1 and more for who is bad now."""
    days, begin = observed.window / DAY, observed.now - observed.window
    failures: dict[int, list[float]] = defaultdict(list)
    for failure in observed.episodes:
        if failure.weight == 1.0:  # what a rack shares is no node's onset
            failures[failure.node].append((failure.time - begin) / DAY)
    score, onset = np.zeros(len(observed.names)), np.full(len(observed.names), -1.0)
    for set_ in strata(observed, guards):
        healthy = two_rates(observed.hard[set_], observed.exposure[set_]).healthy
        for node in (int(node) for node in set_ if failures[int(node)]):
            used = observed.exposure[node] / days
            if healthy > 0 and used > 0:
                cusum = Cusum(healthy * used, thresholds.ratio, thresholds.limit)
                found = changes(failures[node], days, cusum)
                score[node] = level(failures[node], days, cusum) / cusum.limit
                if found and found[-1].recovered is None:
                    score[node], onset[node] = max(1.0, score[node]), found[-1].onset

    def because(node: int) -> str:
        return f"turned bad {days - onset[node]:.0f} days ago" if onset[node] >= 0 else "it did not turn bad"

    return Scored(score, onset >= 0, observed.hard, because), {}


def _rules(observed: Observed, guards: Guards, thresholds: Thresholds) -> tuple[Scored, dict[int, str]]:
    rule_a, rule_b = apply_rules(observed, thresholds.rules)

    def because(node: int) -> str:
        return " and ".join(name for name, rule in (("rule A", rule_a), ("rule B", rule_b)) if rule[node])

    return Scored(rule_a.astype(float) + rule_b.astype(float), rule_a | rule_b, observed.hard, because), {}


DETECTORS: dict[str, Callable[[Observed, Guards, Thresholds], tuple[Scored, dict[int, str]]]] = {
    "blame": _blame,
    "mixture": _mixture,
    "shrinkage": _shrinkage,
    "count": _count,
    "cusum": _cusum,
    "rules": _rules,
}


def rank(observed: Observed, detector: str = "blame", guards: Guards | None = None, thresholds: Thresholds | None = None) -> Ranking:
    """Every node, worst first; `flagged` after the guards."""
    if detector not in DETECTORS:
        raise DetectError(f'detector "{detector}": expected one of {", ".join(DETECTORS)}')
    guards, thresholds = guards or Guards(), thresholds or Thresholds()
    scored, withheld = DETECTORS[detector](observed, guards, thresholds)
    withheld |= withheld_by_users(observed, scored.flagged, guards)
    flagged = scored.flagged.copy()
    flagged[[node for node in withheld if flagged[node]]] = False
    capped = withheld_by_cap(scored.score, flagged, guards, len(flagged))
    flagged[list(capped)] = False
    withheld |= capped
    total = max(float(observed.exposure.sum()), 1e-9)
    fleet = float(scored.failures.sum()) / total
    rate = scored.failures / np.maximum(observed.exposure, 1e-9)
    nodes = []
    for node, name in enumerate(observed.names):
        times = float(rate[node]) / fleet if fleet > 0 and observed.exposure[node] > 0 else 0.0
        why = scored.because(node) if scored.because else ""
        failures, days = scored.failures[node], observed.exposure[node]
        text = f"{failures:.3g} failures in {days:.3g} days {'in service' if observed.by_calendar else 'in jobs'}, {times:.0f} times the fleet"
        nodes.append(
            Ranked(
                name, float(scored.score[node]), bool(flagged[node]), {key: float(values[node]) for key, values in observed.signals.items()},
                float(scored.failures[node]), float(observed.exposure[node]), times, (f"{why}: {text}" if why else text) if failures else "",
                withheld.get(node, "") if scored.flagged[node] else "", bool(observed.probation[node]),
            )
        )  # fmt: skip
    nodes.sort(key=lambda node: (not node.flagged, -node.score, -node.failures, node.node))
    return Ranking(nodes, detector, fleet * 1000)
