"""The phase machine: `step(state, event, now) -> state, effects`. Pure, total, deterministic; no clock, no network, no randomness.

Theory of operation
  A job is a head and its pods (`aegis_proto.state`). An event is something that happened, validated and dated (`events.py`). A step takes one event:
    1. a terminal job takes nothing any more; a stop is obeyed at once;
    2. the event changes its pod, or takes an edge (`places`, `reports`, `asked`);
    3. `_settle` takes every edge that the state alone now demands: budget spent, every place filled, all answered, all finished.
  Phases change only in `rounds.go`, along the rows of `transitions.EDGES`, which also says what is counted. The order to the workers is part of the
  head, so that decided = ordered, in one commit. A report that changes nothing gives the effect `Dropped(why)` and the very same state object.

What is where: `transitions` the table; `rounds` taking an edge, end of a round; `counting` the counts; `orders` the order; `places` pods come and go;
`reports` what workers say; `asked` what is asked from outside, era, plain; `exclusion` nodes that the job does not use again; `pairs` what tests of
two workers at a time say; `ledger` time; `story` words; `draft` bookkeeping; `invariants` what always holds. Beside the machine, and fed to it as
events: `levels` (a level of recovery that did not hold is not tried again), `stall` (does the run advance), `judge` (who is dead).
"""

from __future__ import annotations

from collections.abc import Mapping

from aegis_proto.ids import pod_index, pod_name
from aegis_proto.phases import FailedReason, LedgerState, Mode, Phase
from aegis_proto.state import SHARD, Deadline, Head, JobSpec, JobState, Ledger, Pod, Transition

from aegis_master import asked, counting, events, exclusion, ledger, orders, places, reports, rounds, story, transitions
from aegis_master.draft import Draft, counts_of, tally_of
from aegis_master.events import Effect, Event
from aegis_master.transitions import Trigger

NO_ATTEMPTS: Mapping[str, int] = {}
MAX_EDGES = 8
"""Edges one step may take; more would be a loop in the table."""


def create(job: str, spec: JobSpec, uid: str, era: str, now: int, *, attempts: Mapping[str, int] = NO_ATTEMPTS) -> JobState:
    """A new job in Pending, all places empty and free to be filled. `now` in ms since 1970; `attempts`: pod -> attempt, where not 1."""
    pods = [Pod(gone=True, ts=now)] * spec.workers
    for pod, attempt in attempts.items():
        pods[pod_index(pod)] = Pod(gone=True, ts=now, attempt=attempt)
    shards = tuple(tuple(pods[start : start + SHARD]) for start in range(0, spec.workers, SHARD))
    assert transitions.find(None, Phase.PENDING, Trigger.CREATED) is not None
    english, chinese = story.sentence(Trigger.CREATED)
    retries = story.retries(shards)
    head = Head(
        job=job,
        name=spec.name,
        namespace=spec.namespace,
        uid=uid,
        workerNum=spec.workers,
        maxRetry=spec.maxRetry,
        era=era,
        createdAt=now,
        deadline=Deadline("placing", spec.placingTimeout, 1, 0, 0),
        counts=counts_of(shards),
        tally=tally_of(shards),
        ledger=Ledger(since=now),
        gpuType=spec.gpuType,
        user=spec.user,
        recent=(Transition(now, Phase.PENDING, Phase.PENDING, 1, 0, 0, retries, Trigger.CREATED.value, message=english, messageZh=chinese),),
    )
    draft = Draft(JobState(head, shards, spec), now)
    orders.give(draft, orders.ORDER_OF[Phase.PENDING])
    return draft.state()


LOST = "its store was lost; what its workers say is taken over, its counts begin anew"


def found(job: str, spec: JobSpec, uid: str, era: str, now: int, *, attempts: Mapping[str, int]) -> JobState:
    """A job that runs and that the store of `era` does not know: everybody is asked what runs. `attempts`: pod -> attempt, as far as known."""
    state, _ = step(create(job, spec, uid, "", now, attempts=attempts), events.EraChanged(era, LOST), now)
    return state


def step(state: JobState, event: Event, now: int) -> tuple[JobState, tuple[Effect, ...]]:
    """One event. Returns the new state (the same object when nothing changed) and what to tell people. `now` in ms since 1970.

    Never raises on an event whose `index` is a place of the job; an index that is not gives Dropped("index").
    An AssertionError means the machine itself is wrong, and carries the story of the job.
    """
    draft = Draft(state, now)
    if state.head.phase.terminal:
        draft.drop("terminal")
    elif not 0 <= getattr(event, "index", 0) < state.head.workerNum:
        draft.drop("index")
    else:
        _take(draft, event)
        _settle(draft)
    if draft.head is state.head and draft.shards is state.shards:
        return state, tuple(draft.effects)
    return draft.state(), tuple(draft.effects)


def _take(draft: Draft, event: Event) -> None:
    """Step 2: what this event alone does."""
    if draft.head.mode is Mode.PLAIN:
        _take_plain(draft, event)
        return
    match event:
        case events.Finished():
            reports.finished(draft, event)
        case events.Acked():
            reports.acked(draft, event)
        case events.PodReady():
            places.ready(draft, event)
        case events.PodLost():
            places.lost(draft, event)
        case events.PodGone():
            places.gone(draft, event)
        case events.PodRunning():
            places.running(draft, event)
        case events.Stopped():
            reports.stopped(draft, event)
        case events.Errored():
            reports.errored(draft, event)
        case events.Marked():
            reports.marked(draft, event)
        case events.Noticed():
            exclusion.notice(draft, event)
        case events.Progressed():
            reports.progressed(draft, event)
        case events.Checkpointed():
            reports.checkpointed(draft, event)
        case events.SuspectChanged():
            asked.suspect(draft, event)
        case events.DeadlinePassed():
            _deadline_passed(draft, event)
        case events.PlainFact():
            asked.plain(draft, event)
        case events.PlainExit():
            asked.plain_exit(draft, event)
        case events.SuspendAsked():
            asked.suspend(draft, event)
        case events.ResumeAsked():
            asked.resume(draft, event)
        case events.RestartAsked():
            asked.restart(draft, event)
        case events.SettingChanged():
            asked.setting(draft, event)
        case events.InjectAsked():
            asked.inject(draft, event)
        case events.Healthy():
            asked.healthy(draft)
        case _:
            _take_any(draft, event)


def _take_any(draft: Draft, event: Event) -> None:
    """Events with the same meaning for managed and plain jobs."""
    match event:
        case events.StopAsked():
            asked.stop(draft, event)
        case events.GapFound():
            asked.gap(draft)
        case events.EraChanged():
            asked.era(draft, event)
        case _:
            draft.drop("plain")


def _take_plain(draft: Draft, event: Event) -> None:
    """A plain job is watched, never ordered: only its exits count."""
    match event:
        case events.PlainExit():
            asked.plain_exit(draft, event)
        case events.PodLost():
            code = event.exit_code if event.exit_code is not None else rounds.REQUEUE
            asked.plain_exit(draft, events.PlainExit(event.index, event.attempt, code))
        case _:
            _take_any(draft, event)


def _deadline_passed(draft: Draft, event: events.DeadlinePassed) -> None:
    """Only the deadline that stands in the head; anything else was overtaken."""
    head = draft.head
    deadline = head.deadline
    if deadline is None or (event.kind, event.seq_num, event.incarnation) != (deadline.kind, deadline.seqNum, deadline.incarnation):
        draft.drop("deadline")
        return
    match deadline.kind:
        case "placing" if head.adopting:
            asked.give_up_adopting(draft)
            orders.give(draft, orders.ORDER_OF[Phase.RESTARTING])
            rounds.await_places(draft)
        case "placing":
            absent = draft.where(lambda pod: not pod.present or pod.toQuit)
            rounds.fail(draft, Trigger.PLACING, FailedReason.PLACING, index=absent[0] if absent else None)
        case "pending":
            asked.unreached(draft)
        case "hang":
            reports.pay(draft, "the hang deadline")
        case _:
            reports.no_answer(draft)


def _settle(draft: Draft) -> None:
    """Step 3: edges that the state alone demands, until none is left. Budget spent comes before anything that waits."""
    for _ in range(MAX_EDGES):
        head = draft.head
        tally, places_num = head.tally, head.workerNum
        if head.phase.terminal:
            return
        if counting.spent(head) and head.mode is Mode.MANAGED:
            _budget_spent(draft)
        elif head.phase is Phase.RUN_COMMAND:
            if tally.finished < places_num:
                return
            rounds.go(draft, Phase.SUCCEED, Trigger.FINISHED)
        elif head.phase is Phase.PENDING:
            if head.suspended:
                return
            if tally.filled < places_num or tally.quitting:
                _pending_deadline(draft)
                return
            rounds.go(draft, Phase.BOOT_CHECKING, Trigger.READY)
        elif head.phase is Phase.RESTARTING:
            if tally.filled < places_num or tally.quitting:
                return
            if head.adopting:
                asked.adopt(draft)
            else:
                rounds.go(draft, Phase.TROUBLESHOOTING if head.booted else Phase.BOOT_CHECKING, Trigger.READY)
        elif tally.answered < places_num:
            return
        else:
            rounds.end_round(draft)
    raise AssertionError(f"more than {MAX_EDGES} edges in one step\n{story.tell(draft.state())}")


def _budget_spent(draft: Draft) -> None:
    """Failed at failure number maxRetry + 1; waits for no pod and no report. The training's own exit code when its own error was the last one."""
    head = draft.head
    index = int(head.countedPod[1:])
    code = rounds.REQUEUE
    if head.countedEvidence in (counting.EVIDENCE_ERROR, counting.EVIDENCE_SIGNAL):
        code = draft.pod(index).exitCode or code
    rounds.fail(draft, Trigger.BUDGET, FailedReason.BUDGET, index=index, code=code, cause=draft.pod(index).reason)


def _pending_deadline(draft: Draft) -> None:
    """Everybody is placed: who cannot be reached from now on makes the job plain (never a job that ran managed before)."""
    head = draft.head
    if head.tally.placed < head.workerNum:
        if head.ledger.state is LedgerState.BOOTING:
            draft.set(ledger=ledger.book(head.ledger, LedgerState.QUEUED, head.ledger.who, draft.now))
        return
    if head.tally.quitting or head.started or (head.deadline is not None and head.deadline.kind == "pending"):
        return
    rounds.set_deadline(draft, "pending", draft.spec.pendingTimeout)
    draft.set(ledger=ledger.book(head.ledger, LedgerState.BOOTING, head.ledger.who, draft.now))
    last = pod_name(head.workerNum - 1)
    placed = f"{last} is placed, waiting for it" if head.workerNum == 1 else f"all of {pod_name(0)}..{last} are placed, waiting for them"
    draft.note("placed", f"{placed} to be heard")
