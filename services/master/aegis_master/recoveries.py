"""How long recoveries take, by the level that brought the run back: measured by the owner, beside the machine. Writes a metric."""

from __future__ import annotations

from aegis_proto.phases import Phase
from aegis_proto.state import JobState, Transition

from aegis_master import metrics

Places = tuple[tuple[int, str], ...]
"""(attempt, node) of every place of a run."""


def places(state: JobState) -> Places:
    return tuple((pod.attempt, pod.node) for pod in state.pods())


def level(before: Places, after: Places) -> str:
    """L1: all in place; L2: whoever is new came back to its node; L3: somebody runs elsewhere. `before` empty: not known, taken as L3."""
    if not before:
        return "L3"
    new = [(was, now) for was, now in zip(before, after, strict=True) if was[0] != now[0]]
    if not new:
        return "L1"
    return "L2" if all(was[1] == now[1] for was, now in new) else "L3"


class Recoveries:
    """Of one job, by its owner; one that takes the job over in a recovery measures none of that."""

    def __init__(self, state: JobState) -> None:
        self._left_at = 0
        self._places: Places = places(state) if state.head.phase is Phase.RUN_COMMAND else ()

    def see(self, state: JobState, transition: Transition) -> None:
        """`transition` was committed; `state` is what was."""
        if transition.phaseFrom is Phase.RUN_COMMAND and transition.phaseTo in (Phase.RESTARTING, Phase.TROUBLESHOOTING):
            self._left_at = transition.timeStamp
        elif transition.phaseTo is Phase.RUN_COMMAND:
            now = places(state)
            if self._left_at:
                metrics.RECOVERY.labels(level(self._places, now)).observe(max(0.0, (transition.timeStamp - self._left_at) / 1000))
            self._left_at, self._places = 0, now
