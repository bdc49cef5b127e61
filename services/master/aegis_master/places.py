"""Places and their pods: filled, lost, gone, confirmed by the platform.

Changes the draft it is given. A loss names the attempt; anything about another attempt than the present one changes nothing, but for two things:
readiness of a higher attempt is itself the loss of the lower, and news that the attempt before is gone lets the present one be placed.
"""

from __future__ import annotations

import dataclasses

from aegis_proto.ids import pod_name
from aegis_proto.phases import FailedReason, LostReason, Phase
from msgspec.structs import replace

from aegis_master import counting, exclusion, rounds, transitions
from aegis_master.draft import Draft
from aegis_master.events import PodGone, PodLost, PodReady, PodRunning
from aegis_master.transitions import Counting, Trigger

AHEAD = 1000
"""An attempt or incarnation further ahead of the state than this is not believed."""
MAX_BOOT, MAX_IP, MAX_NODE, MAX_UID = 32, 39, 40, 36
"""Characters: what an agent says of itself cannot make a shard of 256 pods grow beyond the payload of a message."""


def ready(draft: Draft, event: PodReady) -> None:
    """ "I am here". News only if the boot is new and the attempt not an older one."""
    pod = draft.pod(event.index)
    if event.attempt < pod.attempt or event.attempt > pod.attempt + AHEAD:
        draft.drop("attempt")
    elif not 0 < len(event.boot) <= MAX_BOOT:
        draft.drop("boot")
    elif event.attempt > pod.attempt:
        if pod.present:
            _lose(draft, PodLost(event.index, event.attempt - 1, LostReason.KILLED, gone=True), event)
        else:
            _fill(draft, event)
    elif event.boot in (pod.boot, pod.oldBoot):
        draft.drop("repeat")
    elif pod.present:
        _lose(draft, PodLost(event.index, event.attempt - 1, LostReason.RESTARTED, at=draft.now), event)
    else:
        _fill(draft, event)


def _fill(draft: Draft, event: PodReady) -> None:
    head, wished = draft.head, draft.pod(event.index).pin
    if event.index == 0:
        draft.set(checkAddr=event.ip[:MAX_IP], checkPort=event.check_port if 0 < event.check_port < 65536 else 0)
    draft.change(
        event.index,
        attempt=event.attempt,
        boot=event.boot,
        ip=event.ip[:MAX_IP],
        node=event.node[:MAX_NODE],
        uid=event.uid[:MAX_UID],
        stopped=event.stopped,
        gone=False,
        placed=True,
        pin=wished if wished == event.node[:MAX_NODE] else "",
        suspect=False,
    )
    if head.adopting:
        known = event.incarnation if 0 <= event.incarnation <= head.incarnation + AHEAD else -1
        runs = known if event.running else -1
        same = runs if head.adoptIncarnation in (-2, runs) else -1
        draft.set(adoptIncarnation=same, adoptMax=max(head.adoptMax, known))
    draft.note("podReady", f"{pod_name(event.index)} is here, attempt {event.attempt}", event.index, node=event.node)


def lost(draft: Draft, event: PodLost) -> None:
    """The present attempt is lost; of the attempt before only "gone" and evidence against its node are news."""
    pod = draft.pod(event.index)
    if event.attempt == pod.attempt:
        _lose(draft, event)
    elif event.attempt == pod.attempt - 1 and event.gone and not pod.present and not pod.gone:
        if event.blame and rounds.may_evict(draft):
            exclusion.blame(draft, event.index, event.node, event.blame)
        draft.change(event.index, gone=True)
    else:
        draft.drop("attempt")


def gone(draft: Draft, event: PodGone) -> None:
    """Verified gone. Of the present attempt it is the loss itself."""
    pod = draft.pod(event.index)
    if event.attempt == pod.attempt:
        reason = LostReason.PREEMPTED if event.preempted else LostReason.ORDERED if pod.toQuit else LostReason.KILLED
        _lose(draft, PodLost(event.index, event.attempt, reason, at=draft.now, gone=True))
    elif event.attempt == pod.attempt - 1 and not pod.present and not pod.gone:
        draft.change(event.index, gone=True)
    else:
        draft.drop("attempt")


def running(draft: Draft, event: PodRunning) -> None:
    """The platform confirms the agent of this attempt."""
    pod = draft.pod(event.index)
    if event.attempt != pod.attempt:
        draft.drop("attempt")
    elif pod.placed:
        draft.drop("repeat")
    else:
        draft.change(event.index, placed=True)


def _lose(draft: Draft, event: PodLost, successor: PodReady | None = None) -> None:
    """One place loses its pod; `successor` (new boot, or higher attempt) takes it in the same step."""
    index, head, pod = event.index, draft.head, draft.pod(event.index)
    node = event.node or pod.node
    if pod.toQuit and event.reason is LostReason.KILLED:
        event = dataclasses.replace(event, reason=LostReason.ORDERED)
    if event.blame and rounds.may_evict(draft):
        exclusion.blame(draft, index, node, event.blame)
    if head.phase is Phase.RUN_COMMAND:
        finished = pod.finished or (event.exit_code == 0 and event.reason is LostReason.KILLED and pod.present)
        _reset(draft, event, pod.innerPhase if finished else Phase.RESTARTING, finished, successor)
        if finished:
            if head.tally.hung and not draft.head.tally.hung:
                rounds.unhung(draft)
            draft.note("left", f"{pod_name(index)} left after its Finish", index)
        elif event.reason is LostReason.PREEMPTED:
            draft.change(index, reason=event.reason.value)
            rounds.leave_marked(draft, paid=False)
            rounds.go(draft, Phase.RESTARTING, Trigger.PREEMPTED, index=index, cause=event.reason.value, node=node, message=event.message)
        else:
            rounds.leave_marked(draft, paid=False)
            rounds.go(
                draft, Phase.RESTARTING, Trigger.LOST, index=index, reason=event.reason, cause=event.reason.value, node=node, message=event.message
            )
        return

    preempted = event.reason is LostReason.PREEMPTED or (pod.toQuit and pod.reason == LostReason.PREEMPTED.value)
    trigger = Trigger.PREEMPTED if preempted else Trigger.LOST
    target = Phase.PENDING if head.phase is Phase.PENDING else Phase.RESTARTING
    edge = transitions.find(head.phase, target, trigger)
    assert edge is not None, f"{head.phase} -> {target} by {trigger}"
    recovering = head.phase in (Phase.RESTARTING, Phase.TROUBLESHOOTING)
    if recovering and counting.may_move(head, head.incarnation, index, event.reason, event.at):
        counting.move(draft, index, event.reason)
        draft.note("moved", f"the count of incarnation {head.incarnation} goes to {pod_name(index)}: {event.reason.value}", index)
    else:
        if not pod.toQuit:
            draft.change(index, reason=event.reason.value)
        if edge.counting is Counting.UNCOUNTED and not head.suspended and counting.feed(draft, index):
            cause = f"{pod_name(index)} was lost {draft.pod(index).uncounted} times ({draft.pod(index).reason})"
            rounds.fail(draft, Trigger.BOOT, FailedReason.BOOT, index=index, cause=cause)
            return
    if target is not head.phase:
        rounds.order_out(draft)
        _reset(draft, event, target, False, successor)
        rounds.go(draft, target, trigger, index=index, cause=event.reason.value, node=node, message=event.message)
        return
    _reset(draft, event, target, False, successor)
    rounds.await_places(draft)
    draft.note("podLost", f"{pod_name(index)} lost while {target}: {event.reason.value}, not counted", index, node=node, cause=event.reason.value)


def _reset(draft: Draft, event: PodLost, inner: Phase, finished: bool, successor: PodReady | None) -> None:
    """Clear the place for the next attempt; never retries, never lastFailedReason. Who restarts under the same attempt fills it at once."""
    pod = draft.pod(event.index)
    draft.put(
        event.index,
        replace(
            pod,
            ts=draft.now,
            ip="",
            node="",
            innerPhase=inner,
            finished=finished,
            attempt=event.attempt + 1,
            boot="",
            oldBoot=pod.boot or pod.oldBoot,
            uid="",
            stopped=-1,
            acked=0,
            suspect=False,
            toQuit=False,
            mark="",
            exitCode=event.exit_code,
            gone=event.gone,
            errored=False,
            failed="",
            placed=False,
            pairs=(),
        ),
    )
    if draft.head.adopting:
        draft.set(adoptIncarnation=-1)
    if successor is not None:
        _fill(draft, successor)
