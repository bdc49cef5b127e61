"""Node by day: when each of the worst nodes failed, as counts and as text. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from aegis_lemon.history.observe import DAY, Observed

from .rank import Ranking


def failure_days(observed: Observed, ranking: Ranking, most: int) -> tuple[list[str], np.ndarray[Any, Any]]:
    """(names, failures per node and day of the window) of the nodes ranked first that have a failure."""
    days = max(1, round(observed.window / DAY))
    begin = observed.now - days * DAY
    number = {name: index for index, name in enumerate(observed.names)}
    per_node = Counter(failure.node for failure in observed.episodes)
    names = [node.node for node in ranking.nodes if node.flagged or per_node[number[node.node]]][:most]
    row = {number[name]: index for index, name in enumerate(names)}
    counts = np.zeros((len(names), days))
    for failure in observed.episodes:
        if failure.node in row:
            counts[row[failure.node], min(days - 1, max(0, int((failure.time - begin) // DAY)))] += 1
    return names, counts


def text_map(observed: Observed, ranking: Ranking, most: int = 20) -> str:
    """The map for a terminal: a line per node, a sign per day: `.` none, 1 to 9, `+` more."""
    names, counts = failure_days(observed, ranking, most)
    flagged = {node.node for node in ranking.flagged}
    width = max((len(name) for name in names), default=0)
    signs = ["".join("." if not value else str(int(value)) if value < 10 else "+" for value in row) for row in counts]
    return "\n".join(f"{name:<{width}} {'*' if name in flagged else ' '} {row}" for name, row in zip(names, signs, strict=True))
