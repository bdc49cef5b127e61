"""What failed: causes of failures in the specification's four groups. Pure; the words that decide are a table.

A cause is in the words of whoever told it: a verdict's (`gpu_hw`), an importer's (LANL's `Hardware`, Slurm's `Not responding`), or `xid 79`. What
nobody told, or what no row of the table knows, is a fifth row of its own: a share of a part is never given as a share of the whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from aegis_parsers.kernel import rules

from .observe import Observed

GROUPS: dict[str, tuple[str, str]] = {
    "node_hardware": ("hardware of a node", "节点级硬件故障"),
    "network": ("network", "网络基础设施故障"),
    "software": ("software and configuration", "软件与配置问题"),
    "contention": ("contention and interference", "资源竞争与干扰"),
    "unknown": ("not known", "未知"),
}
"""For people: English, Chinese. The first four are the specification's."""

WORDS: tuple[tuple[str, str, str], ...] = (
    (r"gpu_hw|node_hw|gpuLost|gpuSilent", "node_hardware", "verdicts and findings of this system"),
    (r"network", "network", "verdicts; LANL"),
    (r"storage|software", "software", "verdicts; LANL. A mount of the file system is system software (Kokolis et al., table I)"),
    (r"contention|host_oom|slow", "contention", "verdicts"),
    (r"hardware", "node_hardware", "LANL"),
    (r"human error", "software", "LANL: what a person configured"),
    (r"\b(?:ib|infiniband|nic|hca|mlx5|roce|ethernet|switch|cable|optics?|link)\b", "network", "reasons of Slurm"),
    (r"\b(?:gpu|nvidia-smi|ecc|hbm|nvlink|pcie?|dimm|memory error|mce|cpu|psu|power supply|fan|disk|nvme|raid|bmc|ipmi|overheat\w*|thermal)\b",
     "node_hardware", "reasons of Slurm"),
    (r"\b(?:oom|out of memory|low memory|load)\b", "contention", "reasons of Slurm"),
    (r"\b(?:kernel|panic|driver|firmware|bios|nfs|lustre|gpfs|mount|prolog|epilog|container|config\w*|version|kill task failed)\b",
     "software", "reasons of Slurm"),
)  # fmt: skip
"""(words, group, whose they are); the first that is found decides. An XID goes by the table of `aegis_parsers`."""
_XID = re.compile(r"\bxid[ :=#]*(\d{1,3})\b", re.IGNORECASE)
_WORDS = tuple((re.compile(words, re.IGNORECASE), group) for words, group, _ in WORDS)


def group_of(cause: str) -> str:
    """The key in GROUPS."""
    xid = _XID.search(cause)
    if xid:
        rule = rules().get(int(xid[1]))
        cause = rule.cause if rule is not None else cause
    return next((group for words, group in _WORDS if words.search(cause)), "unknown")


@dataclass(frozen=True)
class CauseGroup:
    """`failures`: episodes, and failed jobs that no node is named for; what several nodes of a rack show together counts once. `share`: of all."""

    group: str
    failures: float
    share: float
    causes: tuple[tuple[str, float], ...]
    """The commonest of its causes, in the words of those who told them."""


def by_group(told: Iterable[tuple[str, float]], most: int = 5) -> list[CauseGroup]:
    """All five groups, from (cause, weight)."""
    found: dict[str, Counter[str]] = {group: Counter() for group in GROUPS}
    for cause, weight in told:
        found[group_of(cause)][cause or "nobody told"] += weight  # type: ignore[assignment]
    total = sum(sum(causes.values()) for causes in found.values())
    rows = []
    for group, causes in found.items():
        count = float(sum(causes.values()))
        rows.append(CauseGroup(group, count, count / total if total else 0.0, tuple(causes.most_common(most))))
    return rows


def causes(observed: Observed) -> list[CauseGroup]:
    """Of all failures of the window."""
    named = [(failure.cause, failure.weight) for failure in observed.episodes]
    return by_group([*named, *((cause, 1.0) for cause in observed.blame.causes)])
