"""What Slurm is told of nodes by their scores: weight and feature. Pure.

Slurm gives nodes of a lower weight first: a node that fails jobs more often is used last, and only those that are flagged carry the feature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FEATURE = "aegis_suspect"
SPAN = 1000
"""Weight between the best and the worst node. Slurm's own default weight is 1."""


@dataclass(frozen=True, slots=True)
class Change:
    """`scontrol update NodeName=node Weight=... ActiveFeatures=...`"""

    node: str
    weight: int
    features: tuple[str, ...]
    why: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        features = ",".join(self.features)
        return ("scontrol", "update", f"NodeName={self.node}", f"Weight={self.weight}", f"AvailableFeatures={features}", f"ActiveFeatures={features}")


def changes(scores: Iterable[tuple[str, float, bool]], nodes: Mapping[str, Mapping[str, str]], base: int = 1) -> list[Change]:
    """`scores`: (node, score from 0 = good to 1, flagged). `nodes`: `scontrol show node` of each node that Slurm knows. Only what is to be changed; a
    node without a score goes back to `base`.

    Raises: ValueError for a score that is none.
    """
    found = {}
    for node, score, flagged in scores:
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"score {score:g} of {node}: expected 0 to 1")
        found[node] = (score, flagged)
    result = []
    for name, record in nodes.items():
        score, flagged = found.get(name, (0.0, False))
        weight = base + round(SPAN * score)
        # Slurm shows only the available ones where all are active.
        have = [feature for feature in re.split("[,&]", record.get("AvailableFeatures", "")) if feature]
        want = tuple([feature for feature in have if feature != FEATURE] + ([FEATURE] if flagged else []))
        if weight != int(record.get("Weight", "0") or 0) or tuple(have) != want:
            result.append(Change(name, weight, want, f"score {score:.3f}" + (", flagged" if flagged else "")))
    return result
