"""What a node can do by its own measurements, link class by link class: the speeds of its first good deep tests, which later ones are held against.

Owns one file (`baseline.json`). A speed is named by its test and what it is over: `deep-copy-cuda h2d.gb_per_s.3`, `p2p1.gb_per_s.0`,
`performance local.268435456.0`, `net.`. The first KEPT good values stay for good, so that a node which gets a little slower every week does not
take its own measure along; remove the file when the hardware has changed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

import msgspec
from aegis_parsers.schema import Draft, Finding
from aegis_proto.messages import CheckResult

from aegis_agent.deep.compare import KEEPS, slower, speeds
from aegis_agent.handover import now_ms, write_whole

KEPT = 8
FEWEST = 3
"""Good values that say what is usual: fewer accuse nobody."""
MOST = 4096
"""Speeds that are kept: sizes, devices and pairs of devices of one node."""
FILE = "baseline.json"


class Baseline(msgspec.Struct, frozen=True, omit_defaults=True):
    """Speed -> its first good values."""

    speeds: dict[str, list[float]] = {}


def load(path: Path) -> Baseline:
    """What is kept; nothing when there is no file, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Baseline)
    except (OSError, msgspec.MsgspecError):
        return Baseline()


def learned(baseline: Baseline, results: Iterable[CheckResult]) -> Baseline:
    """With what passed tests measured."""
    kept = dict(baseline.speeds)
    for result in results:
        for name, value in speeds(result) if result.Pass else ():
            values = kept.get(f"{result.CheckType} {name}", [])
            if value > 0 and len(values) < KEPT and (values or len(kept) < MOST):
                kept[f"{result.CheckType} {name}"] = [*values, value]
    return Baseline(kept)


def compare(baseline: Baseline, results: Iterable[CheckResult]) -> tuple[Finding, ...]:
    """What is slower than KEEPS of the median of this node's own good values."""
    draft = Draft("baseline")
    for result in results:
        for name, value in speeds(result):
            before = baseline.speeds.get(f"{result.CheckType} {name}", [])
            if len(before) >= FEWEST and value < KEEPS * (usual := statistics.median(before)):
                text = f"{name} {value:.3g}, {usual:.3g} when it was well ({100 * value / usual:.0f} %)"
                draft.finding("slower_than_baseline", slower(result, name), f"{result.CheckType} {name}", text)
    return draft.done().findings if draft.has_any() else ()


def in_round(path: Path, results: list[CheckResult]) -> list[CheckResult]:
    """The results of a round of checks; bandwidth with others below what this node had says so (it fails nothing: the other end may be why).

    Only where bandwidth counts (accelerators): the cores of a CPU worker are shared. By link class and size, the best of all its pairings.
    """
    measured = next((result for result in results if result.CheckType == "performance"), None)
    if measured is None or not measured.Pass or not measured.values.get("counts"):
        return results
    best: dict[str, float] = {}
    for name, value in speeds(measured):
        link = name.rpartition(".")[0]
        best[link] = max(best.get(link, 0.0), value)
    told = CheckResult("round", True, values=best)
    kept = load(path)
    findings = compare(kept, [told])
    if not findings:
        keep(path, learned(kept, [told]))
        return results
    said = f"{measured.Result}; slower than this node was: {'; '.join(finding.evidence for finding in findings[:8])}"
    worse = msgspec.structs.replace(measured, Result=said[:2000], code=measured.code or findings[0].code)
    return [worse if result is measured else result for result in results]


def keep(path: Path, kept: Baseline) -> str:
    """Why it could not be written, or ""."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(kept))
    except OSError as error:
        return str(error.strerror)
    return ""


def judge(path: Path, results: list[CheckResult]) -> CheckResult:
    """The result `baseline`, and the file brought up to date when everything passed."""
    kept = load(path)
    findings = compare(kept, results)
    failed = any(finding.severity == "critical" for finding in findings)
    if not findings and all(result.Pass for result in results):
        kept = learned(kept, results)
        if why := keep(path, kept):
            return CheckResult("baseline", True, f"{path}: {why}; what this node can do is not kept", now_ms(), code="not_kept")
    known = sum(len(values) >= FEWEST for values in kept.speeds.values())
    said = "; ".join(f"{finding.severity} {finding.code} {finding.item}: {finding.evidence}" for finding in findings[:16])
    well = f"as fast as this node was ({known} speeds)" if known else f"nothing to compare with yet: {FEWEST} good tests are needed"
    return CheckResult("baseline", not failed, said or well, now_ms(), code=findings[0].code if findings else "")
