"""One number per node for whoever places jobs: 0 as good as any, 1 certainly bad. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aegis_proto.lemon import Risk
from aegis_proto.messages import Verdict

from aegis_lemon.detect import Ranked, Ranking

LINKS: Mapping[str, float] = {"down": 0.9, "flapping": 0.7, "degraded": 0.6, "watch": 0.2}
"""State of a link of the node itself -> how much a job would mind."""
STEP = 0.05
"""A smaller change is not published."""
PROBABLE = frozenset({"blame", "mixture", "shrinkage"})
"""Detectors whose score is a probability."""
FLAGGED = 0.9
ON_PROBATION = 0.3
"""At least this much for a node that was given back lately."""


def of_links(verdicts: Iterable[Verdict]) -> dict[str, tuple[float, str]]:
    """Node -> (the worst of its own links, a sentence), by netmon's last words. A link that ends at a node is the only way of its adapter, so that a
    job there suffers whichever side is at fault; links between switches are nobody's."""
    found: dict[str, tuple[float, str]] = {}
    for verdict in verdicts:
        bad = LINKS.get(verdict.state, 0.0)
        for node in {*verdict.nodes, *verdict.accused} if bad else ():
            if bad > found.get(node, (0.0, ""))[0]:
                found[node] = (bad, verdict.sentence[:200])
    return found


def risks(ranking: Ranking | None, links: Mapping[str, tuple[float, str]], probation: Iterable[str], now: int) -> dict[str, Risk]:
    """Every node that has a risk. `probation`: nodes on probation by their case. `now` in ms."""
    lemons = {node.node: node for node in ranking.nodes} if ranking is not None else {}
    waiting = set(probation) | {name for name, node in lemons.items() if node.probation}
    found = {}
    for name in sorted({*lemons, *links, *waiting}):
        ranked, (bad, story) = lemons.get(name), links.get(name, (0.0, ""))
        lemon = _probability(ranking, ranked) if ranking is not None and ranked is not None else 0.0
        risk = 1 - (1 - lemon) * (1 - bad)
        if name in waiting:
            risk = max(risk, ON_PROBATION)
        why = "; ".join(
            part for part in (ranked.reason if ranked and lemon >= STEP else "", story, "on probation" if name in waiting else "") if part
        )
        found[name] = Risk(name, round(risk, 3), round(lemon, 3), bad, name in waiting, why[:300], now)
    return found


def _probability(ranking: Ranking, node: Ranked) -> float:
    """The score where it is one; a detector that only counts says yes or no."""
    if ranking.detector in PROBABLE:
        return min(1.0, max(0.0, node.score))
    return FLAGGED if node.flagged else 0.0


def news(now: Mapping[str, Risk], stored: Mapping[str, Risk], at: int) -> list[Risk]:
    """What is to be published: what changed by a step, and what has no risk any more."""
    found = []
    for name, risk in now.items():
        before = stored.get(name)
        old = before.risk if before is not None else 0.0
        if abs(old - risk.risk) >= STEP or (before is not None and (before.probation != risk.probation or (before.risk > 0) != (risk.risk > 0))):
            found.append(risk)
    gone = [risk for name, risk in stored.items() if name not in now and risk.risk > 0]
    return [*found, *(Risk(risk.node, 0.0, at=at) for risk in gone)]
