"""Slurm's records (`scontrol -o show`) as values, and what it is told of nodes by their scores: weight and feature. Pure.

Slurm gives nodes of a lower weight first: a node that fails jobs more often is used last, and only those that are flagged carry the feature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KEY = re.compile(r"(?:^|(?<=\s))([A-Z][\w:/]*)=")
NOTHING = ("", "(null)", "None", "N/A", "Unknown")
FEATURE, BASE = "aegis_suspect", re.compile(r"aegis_base_(\d{1,10})")
SPAN = 1000
"""Weight between the best and the worst node. Slurm's own default weight is 1."""


def record(text: str) -> dict[str, str]:
    """`Key=Value Key=Value` of `scontrol -o show job|node|config`; values may hold spaces. "" for what Slurm calls nothing."""
    found = list(KEY.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    values = {match[1]: text[match.end() : end].strip() for match, end in zip(found, ends, strict=True)}
    return {key: "" if value in NOTHING else value for key, value in values.items()}


def node_records(text: str) -> dict[str, dict[str, str]]:
    """`scontrol -o show node`, by name."""
    found = (record(line) for line in text.splitlines())
    return {one["NodeName"]: one for one in found if "NodeName" in one}


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


def changes(scores: Iterable[tuple[str, float, bool]], nodes: Mapping[str, Mapping[str, str]]) -> list[Change]:
    """`scores`: (node, score from 0 = good to 1, flagged). `nodes`: `node_records`. Only what is to be changed.

    What a node weighs by itself is kept on the node, as the feature `aegis_base_<n>`, while it weighs more: whoever looks next, and a node without a
    score, goes back to that.

    Raises: ValueError for a score that is none.
    """
    found = {}
    for node, score, flagged in scores:
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"score {score:g} of {node}: expected 0 to 1")
        found[node] = (score, flagged)
    result = []
    for name, node_record in nodes.items():
        score, flagged = found.get(name, (0.0, False))
        # Slurm shows only the available ones where all are active.
        have = [feature for feature in re.split("[,&]", node_record.get("AvailableFeatures", "")) if feature]
        present = int(node_record.get("Weight", "") or 1)
        base = next((int(match[1]) for feature in have if (match := BASE.fullmatch(feature))), present)
        weight = base + round(SPAN * score)
        others = [feature for feature in have if feature != FEATURE and not BASE.fullmatch(feature)]
        want = (*others, *((f"aegis_base_{base}",) if weight != base else ()), *((FEATURE,) if flagged else ()))
        if weight != present or tuple(have) != want:
            result.append(Change(name, weight, want, f"score {score:.3f}" + (", flagged" if flagged else "")))
    return result
