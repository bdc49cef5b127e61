"""What is known of one node: its place in the fleet, its failures one by one, and when it turned bad. Reads a `History`; otherwise pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aegis_lemon.history import History, observe
from aegis_lemon.history.coalesce import Failure
from aegis_lemon.history.observe import DAY, Observed

from .cusum import Change, Cusum, changes
from .rank import DetectError, Ranked, Ranking
from .rates import split_blame, two_rates


@dataclass(frozen=True)
class NodeStory:
    """`below` is the share of nodes with a lower value, by signal. `failures` are all episodes that name the node; times in seconds since 1970,
    in `changes` too."""

    node: Ranked
    below: dict[str, float]
    failures: list[Failure]
    changes: list[Change]


def story(history: History, observed: Observed, ranking: Ranking, name: str, *, ratio: float = 50.0, limit: float = 9.0) -> NodeStory:
    """`ratio` and `limit` tune the onset detector; it runs over the whole history, up to the end of the window."""
    if name not in history.names:
        raise DetectError(f'node "{name}": not in the history of {len(history.names)} nodes')
    index = history.names.index(name)
    whole = observe(history, max(DAY, observed.now - history.first), observed.now)
    mine = [failure for failure in whole.episodes if failure.node == index]
    rates = two_rates(split_blame(whole.hard, whole.exposure, whole.blame), whole.exposure)
    days = max(1e-9, (observed.now - history.first) / DAY)
    used = whole.exposure[index] / days  # the detector counts calendar days
    found: list[Change] = []
    if rates.healthy > 0 and used > 0:
        cusum = Cusum(rates.healthy * used, ratio, limit)
        first = history.first
        for change in changes([(failure.time - first) / DAY for failure in mine], days, cusum):
            recovered = None if change.recovered is None else first + change.recovered * DAY
            found.append(Change(first + change.alarm * DAY, first + change.onset * DAY, recovered))
    below = {key: float(np.mean(values < values[index])) for key, values in observed.signals.items()}
    return NodeStory(next(node for node in ranking.nodes if node.node == name), below, mine, found)
