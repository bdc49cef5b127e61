"""Escalation: a level of recovery that did not hold is not tried again. Pure; fed to the machine as a failed check.

L1 restarts the command in place. When the same worker ends the next run at once, by its own error or a signal, its container is taken for the
cause (L2: a fresh one on the same node); when that does not hold either, the node is (L3). Read from the story in the head: no takeover forgets it.
It gives way to evidence: a round that is made again since most would leave is judged by its checks alone, and a run for whose end another worker
left is no failure of this one. Nothing that a worker says excludes its node for others: `persistent` is of this job alone.
Why: docs/decisions/0015-hang-slow-and-levels.md.
"""

from __future__ import annotations

from itertools import pairwise

from aegis_proto.ids import pod_name
from aegis_proto.messages import CheckResult
from aegis_proto.phases import LostReason, Phase
from aegis_proto.state import JobState, Transition

AT_ONCE = 60.0
"""Seconds from the start of a run; what fails later has worked."""
OWN = frozenset({LostReason.ERROR.value, LostReason.SIGNAL.value})
"""Causes that a worker's container may be the reason of."""


def repeats(recent: tuple[Transition, ...], incarnation: int) -> tuple[str, int]:
    """(pod, n): the pod that ended the last `n` runs in a row up to this incarnation, each of them but the first at once; ("", 0) when none did."""
    started = {t.incarnation: t.timeStamp for t in recent if t.phaseTo is Phase.RUN_COMMAND}
    left = {t.incarnation: t.podName for t in recent if (t.phaseFrom, t.phaseTo) == (Phase.TROUBLESHOOTING, Phase.RESTARTING)}
    failed = [t for t in recent if t.counted and t.incarnation <= incarnation]
    if not failed or failed[-1].incarnation != incarnation or failed[-1].cause not in OWN:
        return "", 0
    count = 1
    for after, before in pairwise(reversed(failed)):
        quick = 0 <= after.timeStamp - started.get(after.incarnation, -1 << 60) <= AT_ONCE * 1000
        if not quick or before.podName != after.podName or before.incarnation != after.incarnation - 1 or before.cause not in OWN:
            break
        if left.get(before.incarnation, before.podName) != before.podName:
            break
        count += 1
    return failed[-1].podName, count


def escalated(state: JobState, index: int) -> CheckResult | None:
    """The finding that this worker's diagnosis gets beside its checks; None when its level held. Once per run: who leaves for it has that reason."""
    head = state.head
    if head.phase is not Phase.TROUBLESHOOTING or head.massQuitRounds or state.pod(index).reason not in OWN:
        return None
    pod, count = repeats(head.recent, head.incarnation)
    if pod != pod_name(index) or count < 2 or head.workerNum == 1:
        return None
    if count == 2:
        return CheckResult("again", False, "it ended two runs in a row, the second at once: a fresh container on the same node", code="again")
    return CheckResult("persistent", False, f"it ended {count} runs in a row, also from a fresh container: another node", code="persistent")
