"""What the epilog of a job says against its prolog: the same node, the same tests, before and after. Pure.

A number that carries "per_s", "tflops" or "bandwidth" in its name is a speed; more is better. One whose name says errors only ever rises. The rest is
not compared. A check that passed before and fails now is a finding of the job's time on this node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from aegis_parsers.schema import Draft, Finding, Severity
from aegis_proto.messages import CheckResult

SPEEDS = ("per_s", "tflops", "net.", "local.")
RISING = ("errors", "remapped", "retired", "uncorrected")
KEEPS = 0.8
"""Share of the speed before that is left at least: the same as between peers (`collective.hub.SLOW`)."""


def speeds(result: CheckResult) -> Iterator[tuple[str, float]]:
    """The values of a result that are speeds, by name."""
    return ((name, value) for name, value in sorted(result.values.items()) if any(word in name for word in SPEEDS))


def slower(result: CheckResult, name: str) -> Severity:
    """How grave it is that this is slow. The host of a busy machine is shared: its speed is told and accuses nobody."""
    return "warning" if "host" in result.values or name.startswith("net.") else "critical"


def compare(before: Iterable[CheckResult], after: Iterable[CheckResult]) -> tuple[Finding, ...]:
    """Findings of the epilog; none when nothing got worse."""
    draft = Draft("epilog")
    earlier: Mapping[str, CheckResult] = {result.CheckType: result for result in before}
    for result in after:
        old = earlier.get(result.CheckType)
        if old is None:
            continue
        if old.Pass and not result.Pass:
            draft.finding("failed_since_prolog", "critical", result.CheckType, result.Result)
        for name, value in sorted(result.values.items()):
            was = old.values.get(name)
            if was is None:
                continue
            if any(word in name for word in SPEEDS) and was > 0 and value < KEEPS * was:
                text = f"{name} {value:.3g}, {was:.3g} before the job ({100 * value / was:.0f} %)"
                draft.finding("slower_than_prolog", slower(result, name), f"{result.CheckType} {name}", text)
            elif any(word in name for word in RISING) and value > was:
                draft.finding("errors_since_prolog", "critical", f"{result.CheckType} {name}", f"{name} {value:g}, {was:g} before the job")
    return draft.done().findings if draft.has_any() else ()
