"""What is asked from outside, by people or by the store: stop, suspend, resume, restart, settings; lost reports, a new era; running plain.

Changes the draft it is given.
"""

from __future__ import annotations

from aegis_proto.ids import pod_name
from aegis_proto.phases import FailedReason, LedgerState, LostReason, Mode, OrderPhase, Phase
from aegis_proto.state import Inject, JobState
from msgspec.structs import replace

from aegis_master import counting, ledger, orders, rounds
from aegis_master.draft import Draft
from aegis_master.events import (
    EraChanged,
    InjectAsked,
    PlainExit,
    PlainFact,
    RestartAsked,
    ResumeAsked,
    SettingChanged,
    StopAsked,
    SuspectChanged,
    SuspendAsked,
)
from aegis_master.reports import where_to
from aegis_master.transitions import Trigger

DO_NOT_REQUEUE = 76
"""Exit code of a job that would only fail again (docs/decisions/0002-phase-machine.md, 12)."""
TERMINATED = 143
"""Exit code of a job that was stopped: 128 + SIGTERM."""


def by(event: InjectAsked | StopAsked | SuspendAsked | ResumeAsked | RestartAsked | SettingChanged) -> str:
    """`by ann: the rack is moved`: who asked and why, as far as it was said."""
    return ": ".join(text for text in (f"by {event.who}" if event.who else "", event.reason) if text)


def stop(draft: Draft, event: StopAsked) -> None:
    if event.no_progress:
        rounds.fail(draft, Trigger.STOPPED, FailedReason.PROGRESS, code=DO_NOT_REQUEUE, cause=FailedReason.PROGRESS.value, message=event.reason)
    else:
        rounds.fail(draft, Trigger.STOPPED, FailedReason.STOPPED, code=TERMINATED, message=by(event))
    if event.grace >= 0 and draft.head.order.phase is OrderPhase.QUIT:
        draft.set(order=replace(draft.head.order, grace=event.grace))


def fruitless(state: JobState) -> StopAsked | None:
    """Run after run failed and no checkpoint came: it would go on so until the budget is spent. Said by level, so that no takeover forgets it."""
    head, most = state.head, state.spec.noProgressRuns
    recovering = head.phase in (Phase.RESTARTING, Phase.TROUBLESHOOTING) and head.mode is Mode.MANAGED and not head.adopting
    if not (recovering and 0 < most <= head.fruitless and head.checkpointStep >= 0):
        return None
    return StopAsked(reason=f"no checkpoint after step {head.checkpointStep} in {head.fruitless} runs", no_progress=True)


def suspend(draft: Draft, event: SuspendAsked) -> None:
    """Children stop, nobody is awaited, nothing is counted until resume."""
    head = draft.head
    if head.suspended or head.mode is Mode.PLAIN:
        draft.drop("suspended" if head.suspended else "plain")
        return
    draft.set(suspended=True, adopting=False)
    if head.phase is Phase.PENDING:
        orders.give(draft, OrderPhase.STOP)
        draft.set(deadline=None, ledger=ledger.book(head.ledger, LedgerState.DRAINED, "operator", draft.now))
        draft.note("suspend", f"suspended {by(event)}".rstrip())
    else:
        rounds.go(draft, Phase.PENDING, Trigger.SUSPEND, message=by(event))


def resume(draft: Draft, event: ResumeAsked) -> None:
    head = draft.head
    if not head.suspended:
        draft.drop("running")
        return
    draft.set(suspended=False, ledger=ledger.book(head.ledger, LedgerState.QUEUED, "operator", draft.now))
    orders.give(draft, OrderPhase.WAIT)
    rounds.await_places(draft)
    draft.note("resume", f"resumed {by(event)}".rstrip())


def restart(draft: Draft, event: RestartAsked) -> None:
    """All workers restart in place, not counted."""
    head = draft.head
    if head.phase is not Phase.RUN_COMMAND or head.mode is Mode.PLAIN:
        draft.drop("plain" if head.mode is Mode.PLAIN else "phase")
        return
    rounds.leave_marked(draft, paid=False)
    rounds.go(draft, where_to(draft), Trigger.RESTART, message=by(event))


def setting(draft: Draft, event: SettingChanged) -> None:
    """A new maxRetry, never below what is used: a setting does not end a running job."""
    if event.max_retry is None or event.max_retry < 0:
        draft.drop("setting")
        return
    value = max(event.max_retry, draft.head.failures)
    if value == draft.head.maxRetry:
        draft.drop("repeat")
        return
    draft.set(maxRetry=value)
    draft.note("set", f"max-retry {value} {by(event)}".rstrip())


def inject(draft: Draft, event: InjectAsked) -> None:
    """Only of a job that allows it, only while it runs, only of a worker that is there."""
    head, pod = draft.head, draft.pod(event.index)
    if not draft.spec.allowInject or head.phase is not Phase.RUN_COMMAND or not pod.present or pod.finished:
        draft.drop("inject")
    elif head.inject is not None and head.inject.id == event.id:
        draft.drop("repeat")
    else:
        name = pod_name(event.index)
        draft.set(inject=Inject(event.id, name, pod.attempt, head.incarnation, event.fault))
        draft.note("inject", f"fault {event.fault} injected into {name} {by(event)}".rstrip(), event.index, node=pod.node)


def suspect(draft: Draft, event: SuspectChanged) -> None:
    """Silence alone: a flag, no count, no stop."""
    pod = draft.pod(event.index)
    if event.attempt != pod.attempt or not pod.present:
        draft.drop("attempt")
    elif pod.suspect is event.suspect:
        draft.drop("repeat")
    else:
        draft.change(event.index, suspect=event.suspect)
        draft.note("suspect", f"{pod_name(event.index)} is {'silent' if event.suspect else 'heard again'}", event.index, node=pod.node)


def healthy(draft: Draft) -> None:
    """The budget is given back after retryResetAfter seconds of healthy run."""
    head, after = draft.head, draft.spec.retryResetAfter
    if head.phase is not Phase.RUN_COMMAND or after <= 0 or not head.failures or draft.now - head.runStartedAt < after * 1000:
        draft.drop("phase")
        return
    counting.give_back(draft)
    draft.note("budget", f"healthy for {after:g} s: the budget is whole again")


def gap(draft: Draft) -> None:
    """Reports were lost: the same order under a new number, all report again."""
    if draft.head.mode is Mode.PLAIN:
        draft.drop("plain")
        return
    orders.repeat(draft)
    draft.note("gap", "reports were lost: all report again")


def era(draft: Draft, event: EraChanged) -> None:
    """The store is another one: ask everybody what runs. Nothing is stopped, nothing counted."""
    head = draft.head
    if not event.era or event.era == head.era:
        draft.drop("era")
        return
    draft.set(era=event.era)
    if head.mode is Mode.PLAIN:
        return
    if head.suspended:
        orders.repeat(draft)
        return
    draft.set(adopting=True, adoptIncarnation=-2, adoptMax=-1)
    draft.each(lambda pod: replace(pod, boot="", oldBoot="", toQuit=False, mark="", suspect=False, gone=pod.gone and not pod.boot))
    rounds.go(draft, Phase.RESTARTING, Trigger.ERA, cause="era", message=event.message)


def adopt(draft: Draft) -> None:
    """All have said what runs: one incarnation, not older than the state's and not counted as failed, is taken over; else a normal restart."""
    head = draft.head
    runs = head.adoptIncarnation
    if runs >= head.incarnation and runs != head.countedIncarnation:
        rounds.go(draft, Phase.RUN_COMMAND, Trigger.ADOPTED)
    else:
        give_up_adopting(draft)


def give_up_adopting(draft: Draft) -> None:
    """A normal restart, above every incarnation anybody has heard of."""
    head = draft.head
    draft.set(adopting=False, incarnation=max(head.incarnation, head.adoptMax), started=head.started or head.adoptMax >= 0)


def _may_go_plain(draft: Draft) -> bool:
    head = draft.head
    return head.mode is Mode.MANAGED and not head.started and not head.suspended and head.phase is not Phase.RUN_COMMAND


def plain(draft: Draft, event: PlainFact) -> None:
    """Somebody of attempt 1 runs without Aegis: all do, from now on. Once managed, never plain."""
    pod = draft.pod(event.index)
    if event.attempt != pod.attempt or pod.present:
        draft.drop("attempt" if event.attempt != pod.attempt else "managed")
    elif not _may_go_plain(draft):
        draft.drop("plain" if draft.head.mode is Mode.PLAIN else "managed")
    else:
        go_plain(draft, event.index)


def go_plain(draft: Draft, index: int) -> None:
    """One counted failure, then a plain job: watched, never ordered."""
    rounds.go(draft, Phase.RUN_COMMAND, Trigger.PLAIN, index=index, reason=LostReason.NO_ANSWER, cause="plain")


def plain_exit(draft: Draft, event: PlainExit) -> None:
    """A worker of a plain job ended: all 0 = Succeed, another code ends the job with it."""
    if draft.head.mode is Mode.MANAGED:
        plain(draft, PlainFact(event.index, event.attempt))
    pod = draft.pod(event.index)
    if draft.head.mode is Mode.MANAGED:
        return
    if event.attempt != pod.attempt or pod.finished:
        draft.drop("attempt" if event.attempt != pod.attempt else "answered")
        return
    draft.change(event.index, finished=event.exit_code == 0, exitCode=event.exit_code)
    if event.exit_code != 0:
        rounds.fail(draft, Trigger.EXITED, FailedReason.EXITED, index=event.index, code=event.exit_code, cause=f"exit {event.exit_code}")


def unreached(draft: Draft) -> None:
    """The pending deadline passed: everybody is placed, somebody cannot be reached."""
    absent = draft.where(lambda pod: not pod.present)
    if not _may_go_plain(draft) or not absent:
        draft.drop("managed")
        return
    go_plain(draft, absent[0])
