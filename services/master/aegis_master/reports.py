"""What workers report in a round: ACK, stopped, Finish, Error, hang and slow; and complete checkpoints.

Changes the draft it is given. A report of another attempt, boot, incarnation or round changes nothing, with one exception: an Error of the run that
was counted last may still be the better evidence to which the count moves, or a notice of preemption that takes it back. In a round the first answer
of a place counts.
"""

from __future__ import annotations

from aegis_proto.ids import pod_name
from aegis_proto.phases import FailedReason, LedgerState, LostReason, OrderPhase, Phase
from aegis_proto.state import Pod
from msgspec.structs import replace

from aegis_master import counting, ledger, orders, pairs, rounds, transitions
from aegis_master.draft import Draft
from aegis_master.events import Acked, Checkpointed, Errored, Finished, Marked, Progressed, Stopped
from aegis_master.transitions import Trigger

MAX_ADDR, MAX_NOTES = 253, 16
"""Characters of a host name; failed checks of one report that are told to people."""
DIFFER = "multipleVersions"
"""Code of a result that says what differs between the workers; that of w0 names them all."""


def _stale(draft: Draft, pod: Pod, event: Finished | Errored) -> str:
    """Why a report is not an answer to the present round, "" when it is."""
    head = draft.head
    if event.attempt != pod.attempt:
        return "attempt"
    if not pod.present or event.boot != pod.boot:
        return "boot"
    if event.incarnation != head.incarnation:
        return "incarnation"
    if not head.phase.is_round:
        return "phase"
    if not head.roundSeqNum <= event.seq_num <= head.seqNum:
        return "round"
    return "answered" if pod.finished or pod.errored else ""


def acked(draft: Draft, event: Acked) -> None:
    """The order of a round arrived. A Finish or Error of the round says the same: an agent that answers at once sends nothing else."""
    pod = draft.pod(event.index)
    if event.attempt != pod.attempt or not pod.present or event.boot != pod.boot:
        draft.drop("attempt")
    elif not pod.acked < event.seq_num <= draft.head.seqNum:
        draft.drop("repeat")
    else:
        draft.change(event.index, acked=event.seq_num)


def stopped(draft: Draft, event: Stopped) -> None:
    """The child's tree of an incarnation is gone. Of the attempt before: its place may be filled."""
    pod, head = draft.pod(event.index), draft.head
    if event.attempt == pod.attempt - 1 and not pod.present and not pod.gone and event.clean and event.incarnation == head.incarnation:
        draft.change(event.index, gone=True)
    elif event.attempt != pod.attempt or not pod.present or event.boot != pod.boot:
        draft.drop("attempt")
    elif not event.clean:
        draft.change(event.index, suspect=True)
        draft.note("notGone", f"{pod_name(event.index)}: processes of incarnation {event.incarnation} would not die", event.index, node=pod.node)
    elif not pod.stopped < event.incarnation <= head.incarnation:
        draft.drop("repeat")
    else:
        draft.change(event.index, stopped=event.incarnation)


def finished(draft: Draft, event: Finished) -> None:
    """Finish of the present round: done, or diagnosed (with results)."""
    pod, head = draft.pod(event.index), draft.head
    acknowledged = max(pod.acked, event.seq_num)
    why = _stale(draft, pod, event) or ("leaving" if pod.toQuit else "")
    if why:
        draft.drop(why)
    elif head.phase is Phase.RUN_COMMAND:
        hung = head.tally.hung
        draft.change(event.index, finished=True, mark="", exitCode=event.exit_code, acked=acknowledged)
        if event.step > head.step:
            draft.set(step=event.step)
        if hung and not draft.head.tally.hung:
            rounds.unhung(draft)
    else:
        failed = rounds.worst(event.results, event.tree_gone)
        stopped = head.incarnation if event.tree_gone and head.started else pod.stopped
        tested = pairs.told(event.results, event.index, head.workerNum)
        draft.change(event.index, finished=True, failed=failed, stopped=stopped, acked=acknowledged, pairs=tested)
        if event.index == 0 and 0 < len(event.addr) <= MAX_ADDR and 0 <= event.port < 65536:
            check_port = event.check_port if 0 < event.check_port < 65536 else 0
            draft.set(masterAddr=event.addr, masterPort=event.port, checkAddr=event.addr, checkPort=check_port)
        for result in [result for result in event.results if not result.Pass][:MAX_NOTES]:
            check, words = result.CheckType[:64], result.Result[:500]
            draft.note("check", f"{pod_name(event.index)} failed {check}: {words}", event.index, check=check)
        for result in [result for result in event.results if result.code == DIFFER and event.index == 0][:1]:
            draft.note("versions", result.Result[:500], check=result.CheckType[:64])


def errored(draft: Draft, event: Errored) -> None:
    """In RunCommand the child failed; in a check round the worker could not diagnose; in any round, the platform takes the pod away."""
    pod, head = draft.pod(event.index), draft.head
    late = _late(draft, pod, event)
    if late and event.reason is LostReason.PREEMPTED and counting.may_take_back(head, event.incarnation, event.at):
        counting.take_back(draft)
        draft.set(ledger=ledger.book(head.ledger, head.ledger.state, ledger.who_pays(event.reason.value, head.ledger.who), draft.now))
        draft.note("takenBack", f"{pod_name(event.index)} was being preempted: incarnation {head.incarnation} is not counted", event.index)
        return
    if late and counting.may_move(head, event.incarnation, event.index, event.reason, event.at):
        counting.move(draft, event.index, event.reason)
        draft.note("moved", f"the count of incarnation {head.incarnation} goes to {pod_name(event.index)}: {event.reason.value}", event.index)
        return
    why = _stale(draft, pod, event) or ("leaving" if pod.toQuit else "")
    if why:
        draft.drop(why)
    elif event.reason is LostReason.PREEMPTED:
        _notice(draft, pod, event)
    elif head.phase is Phase.RUN_COMMAND:
        _run_failed(draft, pod, event)
    else:
        failed = "gpu" if event.reason is LostReason.GPU_LOST else ""
        draft.change(event.index, errored=True, failed=failed, reason=event.reason.value, acked=max(pod.acked, event.seq_num))
        draft.note("undiagnosed", f"{pod_name(event.index)} could not diagnose: {event.message or event.reason.value}", event.index, node=pod.node)


def _notice(draft: Draft, pod: Pod, event: Errored) -> None:
    """The pod leaves, the others wait for its successor; their commands have as long to save what they did as its own. It leaves for this reason
    alone: its mark is void, and who else is marked is weighed without it."""
    running = draft.head.phase is Phase.RUN_COMMAND
    draft.change(event.index, toQuit=True, reason=event.reason.value, mark="")
    rounds.leave_marked(draft, paid=False)
    rounds.go(draft, Phase.RESTARTING, Trigger.PREEMPTED, index=event.index, cause=event.reason.value, node=pod.node, message=event.message)
    if running and draft.head.order.phase is OrderPhase.STOP:
        draft.set(order=replace(draft.head.order, grace=draft.spec.preemptGrace))


def _late(draft: Draft, pod: Pod, event: Errored) -> bool:
    """Of the run that was stopped last, by who ran it: said before, or beside, the order to stop."""
    head = draft.head
    return (
        head.phase in (Phase.RESTARTING, Phase.TROUBLESHOOTING)
        and event.attempt == pod.attempt
        and event.boot == pod.boot != ""
        and head.runSeqNum <= event.seq_num < head.stopSeqNum
    )


def _run_failed(draft: Draft, pod: Pod, event: Errored) -> None:
    """Error in RunCommand: the command cannot be started; the port was taken; else counted, and everybody diagnoses."""
    head, index = draft.head, event.index
    draft.change(index, exitCode=event.exit_code)
    if event.exit_code in transitions.NOT_STARTED and event.reason is LostReason.ERROR:
        draft.change(index, reason=f"exit {event.exit_code}")
        rounds.fail(
            draft, Trigger.COMMAND, FailedReason.COMMAND, index=index, code=event.exit_code, cause=f"exit {event.exit_code}", message=event.message
        )
        return
    rounds.leave_marked(draft, paid=False)
    trigger = Trigger.ERROR
    soon = event.reason is LostReason.PORT and event.ran_for <= transitions.PORT_SECONDS
    if soon and head.portRetries < transitions.PORT_RETRIES:
        trigger = Trigger.PORT
        draft.change(index, reason=event.reason.value)
        draft.set(portRetries=head.portRetries + 1)
    else:
        draft.set(portRetries=0)
    rounds.go(draft, where_to(draft), trigger, index=index, reason=event.reason, cause=event.reason.value, node=pod.node, message=event.message)


def where_to(draft: Draft) -> Phase:
    """After a stop of the run: diagnose at once, or wait first because a place is empty."""
    return Phase.TROUBLESHOOTING if draft.head.tally.filled == draft.head.workerNum else Phase.RESTARTING


def marked(draft: Draft, event: Marked) -> None:
    """Hang or slow only mark: phase, retries and child stay. Withdrawn at no cost."""
    pod, head = draft.pod(event.index), draft.head
    if event.attempt != pod.attempt or not pod.present or event.boot != pod.boot:
        draft.drop("attempt")
    elif head.phase is not Phase.RUN_COMMAND or event.incarnation != head.incarnation:
        draft.drop("incarnation" if head.phase is Phase.RUN_COMMAND else "phase")
    elif pod.finished:
        draft.drop("answered")
    elif pod.mark == ("" if event.cleared else event.kind):
        draft.drop("repeat")
    else:
        hung = head.tally.hung
        draft.change(event.index, mark="" if event.cleared else event.kind)
        what = "progress returned, mark withdrawn" if event.cleared else f"marked {event.kind}, nothing stopped"
        mark = draft.pod(event.index).mark
        words = f"{pod_name(event.index)}: {what} {event.message}".rstrip()
        draft.note("mark", words, event.index, node=pod.node, mark=mark, cause=mark or "withdrawn")
        if not hung and draft.head.tally.hung:
            orders.give(draft, OrderPhase.HANG)
            rounds.set_deadline(draft, "hang", draft.spec.hangTimeout)
            draft.set(ledger=ledger.book(head.ledger, LedgerState.HUNG, ledger.who_pays(LostReason.HUNG.value, head.ledger.who), draft.now))
        elif hung and not draft.head.tally.hung:
            rounds.unhung(draft)


def progressed(draft: Draft, event: Progressed) -> None:
    """The run makes steps: it has restored what it needed. Phase, counts and marks stay."""
    head = draft.head
    if event.incarnation != head.incarnation or head.phase is not Phase.RUN_COMMAND:
        draft.drop("incarnation")
    elif event.step < 0 or (head.tellsSteps and head.ledger.state is not LedgerState.RESTORING):
        draft.drop("repeat")
    else:
        draft.set(step=max(event.step, head.step), tellsSteps=True, ledger=ledger.advance(head.ledger, draft.now))


def checkpointed(draft: Draft, event: Checkpointed) -> None:
    """A complete checkpoint: the safe point at which marks are paid."""
    head = draft.head
    if event.incarnation != head.incarnation or head.phase is not Phase.RUN_COMMAND:
        draft.drop("incarnation")
        return
    if event.step > head.checkpointStep:
        draft.set(fruitless=0)
    draft.set(checkpointStep=max(event.step, head.checkpointStep), step=max(event.step, head.step), checkpointAt=draft.now)
    if event.stall >= 0:
        draft.set(saveStall=event.stall)
    draft.set(ledger=ledger.save(ledger.advance(head.ledger, draft.now), draft.now))
    if head.tally.marked:
        pay(draft, "checkpoint")


def pay(draft: Draft, when: str) -> None:
    """Marks are paid: one count, the marked pods leave, everybody diagnoses; all in one step, so that their leaving is not counted again."""
    index = draft.where(lambda pod: pod.mark != "")[0]
    pod = draft.pod(index)
    reason = LostReason.SLOW if pod.mark == "slow" else LostReason.HUNG
    rounds.leave_marked(draft, paid=True)
    rounds.go(draft, where_to(draft), Trigger.MARK_PAID, index=index, reason=reason, cause=reason.value, node=pod.node, message=f"paid at {when}")


def no_answer(draft: Draft) -> None:
    """The round deadline passed: who has not answered is taken as having reported Error."""
    silent = draft.where(lambda pod: not pod.finished and not pod.errored)
    if not silent:
        draft.drop("deadline")
        return
    for i in silent:
        pod = draft.pod(i)
        draft.change(i, errored=True, reason=pod.reason if pod.toQuit else LostReason.NO_ANSWER.value)
    draft.note("noAnswer", f"{len(silent)} of {draft.head.workerNum} gave no answer in time, first {pod_name(silent[0])}", silent[0])
