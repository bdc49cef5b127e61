"""Which nodes a job does not use, and what was noticed about nodes: `head.errorNodes`, its cap, its floor and its end. Pure.

Evidence of a node (a check that failed on it, what its daemon says, tests of its workers with others) always excludes: nothing can run there. What
only points at one (slow, hung, the same worker again) excludes a tenth of the job's nodes at a time, and at least one:
a rule that errs must not eat the job's machines. After a day the node may be tried again; whoever is placed there passes its checks first.
"""

from __future__ import annotations

from aegis_proto.ids import pod_name
from aegis_proto.state import ErrorNode, Head

from aegis_master.draft import Draft
from aegis_master.events import Noticed

ERROR_NODES = 64
NOTED = 16
"""Of them, what was only noticed, at most."""
LASTS = 24 * 3600
"""Seconds until an excluded node may be tried again."""
SHARE, FLOOR = 0.1, 1
"""Nodes that are excluded by what only points at them: of the job's workers, and at least."""
POINTERS = frozenset({"slow", "hung", "persistent"})
"""Reasons that point at a node and prove nothing about it."""


def most(head: Head) -> int:
    """How many nodes pointers may exclude at a time."""
    return max(FLOOR, int(head.workerNum * SHARE))


def _kept(excluded: list[ErrorNode], noted: list[ErrorNode]) -> tuple[ErrorNode, ...]:
    """The newest of both; what was only noticed has the room that exclusions leave, and no more than NOTED of it."""
    excluded = excluded[-ERROR_NODES:]
    room = min(NOTED, ERROR_NODES - len(excluded))
    return (*excluded, *(noted[-room:] if room else ()))


def blame(draft: Draft, index: int, node: str, reason: str) -> None:
    """This job does not use the node for a day (64 newest are kept). Beyond the cap it is only said."""
    if not node:
        return
    head = draft.head
    live = [entry for entry in head.errorNodes if entry.noted or entry.avoided(draft.now)]
    known = any(entry.name == node for entry in live if not entry.noted)
    pointed = sum(entry.reason in POINTERS for entry in live if not entry.noted and entry.name != node)
    if reason in POINTERS and not known and pointed >= most(head):
        text = f"{node} is not excluded ({reason}): {pointed} of {head.workerNum} nodes are, for what proves nothing; at most {most(head)}"
        draft.note("advice", text, index, node=node, cause=reason)
        return
    others = [entry for entry in live if not entry.noted and entry.name != node]
    entry = ErrorNode(node, reason, draft.now, pod_name(index), until=draft.now + LASTS * 1000)
    noted = [entry for entry in live if entry.noted]
    draft.set(errorNodes=_kept([*others, entry], noted), errorNodesTotal=head.errorNodesTotal + (not known))


def notice(draft: Draft, event: Noticed) -> None:
    """A worker's monitor saw something about itself: a record and a line for people, once per worker, code and incarnation, NOTED of them in one
    incarnation. Excludes nobody."""
    head, pod = draft.head, draft.pod(event.index)
    if (event.attempt, event.boot, event.incarnation) != (pod.attempt, pod.boot, head.incarnation) or not pod.present:
        draft.drop("incarnation")
        return
    name = pod_name(event.index)
    noted = [entry for entry in head.errorNodes if entry.noted]
    here = [entry for entry in noted if entry.timeStamp >= head.runStartedAt]
    full = len(here) >= NOTED or len(head.errorNodes) - len(noted) >= ERROR_NODES
    if full or any((entry.podName, entry.reason) == (name, event.code) for entry in here):
        draft.drop("repeat")
        return
    entry = ErrorNode(pod.node, event.code, draft.now, name, noted=True)
    others = [entry for entry in head.errorNodes if not entry.noted]
    draft.set(errorNodes=_kept(others, [*noted, entry]))
    draft.note("anomaly", f"{name} on {pod.node or 'an unknown node'}: {event.message}", event.index, node=pod.node, cause=event.code)
