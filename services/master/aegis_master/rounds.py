"""Taking an edge: count, enter the phase, give the order, set the deadline, write the line of the story. And what the end of a round decides.

Owns `go`, the only place where `head.phase` changes, and it changes only along the table (`transitions.EDGES`). Changes the draft it is given.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import Enum

from aegis_proto.ids import pod_name
from aegis_proto.messages import CheckResult
from aegis_proto.phases import FailedReason, LedgerState, LostReason, Mode, OrderPhase, Phase
from aegis_proto.state import RECENT, Deadline, Pod, Transition
from msgspec.structs import replace

from aegis_master import counting, ledger, orders, pairs, story, transitions
from aegis_master.draft import Draft
from aegis_master.exclusion import blame
from aegis_master.transitions import Counting, Trigger

MAX_LEAVING = 64
"""Pods ordered to leave at once; who is left over fails its next round again. Keeps the head <= 16 KB."""
MAX_MESSAGE = 100
"""Characters of a worker's own words in a line of the story."""
OWN = frozenset({LostReason.ERROR, LostReason.SIGNAL, LostReason.PORT})
"""Reasons that lie in one worker's process."""
AT_ONCE_MS = 30_000
"""A run that tells no steps and fails within this failed at once."""
REQUEUE = 75
"""Exit code for "infrastructure or budget, a requeue may help" (docs/decisions/0002-phase-machine.md, 12)."""


class Finding(Enum):
    """What a failed check says about where the fault is."""

    HARDWARE = "hardware"  # L3: the pod leaves, its node is not used again
    CONTAINER = "container"  # L2: the pod leaves; the same node is wished for the next attempt. Failed again there, it is the node
    NOTED = "noted"  # says nothing about one place: written down, nobody leaves


FINDINGS: dict[str, Finding] = {
    "gpu": Finding.HARDWARE,
    "rdma": Finding.HARDWARE,
    "tree": Finding.HARDWARE,
    "collective": Finding.HARDWARE,
    "persistent": Finding.HARDWARE,
    "again": Finding.CONTAINER,
    "runtime": Finding.CONTAINER,
    "io": Finding.CONTAINER,
    "allreduce": Finding.NOTED,
    "performance": Finding.NOTED,
    "hang": Finding.NOTED,
}
"""Check -> finding; a check that is not here is Finding.CONTAINER. `tree`: the child's processes would not die. `collective`: tests
with others, two at a time, name this place (`pairs`); a failed `allreduce` by itself says only that somebody is bad."""


def check_name(result: CheckResult) -> str:
    """Which check a result belongs to: the first word of its code, else of its type, when the table knows it."""
    for text in (result.code, result.CheckType):
        word = re.split(r"[^a-z]", text.lower(), maxsplit=1)[0]
        if word in FINDINGS:
            return word
    return (result.CheckType or result.code or "check")[: counting.MAX_REASON]


def worst(results: tuple[CheckResult, ...], tree_gone: bool) -> str:
    """The failed check that decides, "" when all passed: hardware before container before noted."""
    failed = [check_name(r) for r in results if not r.Pass] + ([] if tree_gone else ["tree"])
    rank = list(Finding)
    return min(failed, key=lambda name: rank.index(FINDINGS.get(name, Finding.CONTAINER)), default="")


def go(
    draft: Draft,
    target: Phase,
    trigger: Trigger,
    *,
    index: int | None = None,
    reason: LostReason = LostReason.ERROR,
    cause: str = "",
    node: str = "",
    message: str = "",
) -> None:
    """Take one edge of the table. `index`, `reason`: who is counted when the row counts; `cause`: short code of the line in the story."""
    head = draft.head
    source = head.phase
    edge = transitions.find(source, target, trigger)
    if edge is None:
        raise AssertionError(f"no edge {source} -> {target} by {trigger}\n{story.tell(draft.state())}")
    cause = cause or trigger.value
    counted = False
    if edge.counting is Counting.COUNT:
        assert index is not None, f"{trigger} counts nobody\n{story.tell(draft.state())}"
        counted = counting.count(draft, index, reason)
    elif edge.counting is Counting.SPENT:
        counting.spend(draft)
    if source is Phase.RUN_COMMAND and target is not Phase.SUCCEED:
        draft.set(stopOrderAt=draft.now, stopSeqNum=head.seqNum + 1)
    if source is Phase.BOOT_CHECKING and target is Phase.RUN_COMMAND:
        draft.set(booted=True)
    meets = _meets(draft, target, trigger, reason)
    _book(draft, source, target, cause)
    _enter(draft, target, trigger, edge.counting, meets=meets)
    _deadline(draft)
    pod = "" if index is None else pod_name(index)
    english, chinese = story.sentence(trigger, pod, cause, counted, message[:MAX_MESSAGE])
    head = draft.head
    line = Transition(
        draft.now,
        source,
        target,
        head.seqNum,
        head.incarnation,
        head.recoverCount,
        story.retries(draft.shards),
        cause,
        pod,
        node,
        english,
        counted,
        chinese,
    )
    draft.set(recent=(*head.recent, line)[-RECENT:])


def fail(
    draft: Draft, trigger: Trigger, reason: FailedReason, *, index: int | None = None, code: int = REQUEUE, cause: str = "", message: str = ""
) -> None:
    """Close the job. `code` is what its agents, and `aegis run`, leave with."""
    draft.set(failedReason=reason, shouldQuit=True, exitCode=code)
    go(draft, Phase.FAILED, trigger, index=index, cause=cause, message=message)


def _book(draft: Draft, source: Phase, target: Phase, cause: str) -> None:
    head = draft.head
    who = ledger.who_pays(cause, head.ledger.who)
    state = LedgerState.DRAINED if target.terminal or head.suspended else ledger.STATE_OF[target]
    if target is Phase.RUN_COMMAND and cause != Trigger.ADOPTED.value:  # what is adopted was never stopped
        state = ledger.run_state(head.tellsSteps)
    book = ledger.book(head.ledger, state, who, draft.now)
    if source is Phase.RUN_COMMAND and target is not Phase.SUCCEED and head.mode is Mode.MANAGED:
        book = ledger.lose(book, who)
    if target is Phase.RUN_COMMAND:
        book = ledger.save(book, draft.now)
    draft.set(ledger=book)


def _meets(draft: Draft, target: Phase, trigger: Trigger, reason: LostReason) -> bool:
    """Whether the workers test each other in the round that is entered: not when nobody came new, and the failure is explained by the process of one
    worker. Then what is local decides, the cheapest first, and those tests would be most of the time of the recovery. Failing again
    before a step was made, it is not explained."""
    head = draft.head
    if target is not Phase.TROUBLESHOOTING or trigger not in (Trigger.ERROR, Trigger.PORT, Trigger.RESTART):
        return True
    if trigger is Trigger.ERROR and reason not in OWN:
        return True
    stuck = head.ledger.state is LedgerState.RESTORING if head.tellsSteps else draft.now - head.runStartedAt < AT_ONCE_MS
    return trigger is Trigger.ERROR and head.incarnation > 0 and stuck


def _enter(draft: Draft, target: Phase, trigger: Trigger, rule: Counting, *, meets: bool) -> None:
    """The target's state of every pod, then its order. Entering a round: finished := false for all, pending reports void."""
    order = orders.ORDER_OF[target]
    draft.set(phase=target)
    match target:
        case Phase.RUN_COMMAND:
            _enter_run(draft, trigger, rule)
            if trigger is Trigger.PLAIN:
                order = OrderPhase.PLAIN
        case Phase.BOOT_CHECKING | Phase.TROUBLESHOOTING:
            draft.each(lambda pod: replace(pod, innerPhase=target, finished=False, errored=False, failed="", mark="", pairs=()))
        case Phase.RESTARTING:
            draft.each(_waiting)
            if trigger is Trigger.ERA:
                order = OrderPhase.WAIT
        case Phase.PENDING:
            draft.each(lambda pod: replace(pod, innerPhase=target, finished=False, errored=False, failed="", mark="", pairs=()))
            order = OrderPhase.STOP
        case _:
            draft.each(lambda pod: replace(pod, innerPhase=target, toQuit=False, mark=""))
            draft.set(adopting=False, suspended=False)
            if target is Phase.SUCCEED:
                draft.set(exitCode=0)
    orders.give(draft, order, meets=meets)
    seq_num = draft.head.seqNum
    if target.is_round:
        draft.set(roundSeqNum=seq_num)
    if target is Phase.RUN_COMMAND:
        draft.set(runSeqNum=seq_num)


def _waiting(pod: Pod) -> Pod:
    """A pod in Restarting: survivors keep their innerPhase, an empty place is Restarting."""
    inner = pod.innerPhase if pod.boot else Phase.RESTARTING
    if pod.finished or pod.errored or pod.failed or pod.mark or pod.pairs or inner is not pod.innerPhase:
        return replace(pod, innerPhase=inner, finished=False, errored=False, failed="", mark="", pairs=())
    return pod


def _enter_run(draft: Draft, trigger: Trigger, rule: Counting) -> None:
    head = draft.head
    count = head.recoverCount

    def started(pod: Pod) -> Pod:
        if rule is Counting.ALIGN:
            pod = counting.aligned(pod, count)
        return replace(
            pod, pin="", innerPhase=Phase.RUN_COMMAND, finished=False, errored=False, failed="", mark="", toQuit=False, exitCode=None, pairs=()
        )

    draft.each(started)
    if trigger is Trigger.PLAIN:
        draft.set(mode=Mode.PLAIN, adopting=False)
    elif trigger is Trigger.ADOPTED:
        draft.set(incarnation=head.adoptIncarnation, booted=True, adopting=False)
    else:
        draft.set(incarnation=head.incarnation + 1 if head.started else head.incarnation)
    draft.set(started=True, countMoved=False, massQuitRounds=0, inject=None, runStartedAt=draft.now, checkpointAt=0)


def _deadline(draft: Draft) -> None:
    """The deadline of the phase just entered."""
    match draft.head.phase:
        case Phase.PENDING | Phase.RESTARTING:
            await_places(draft)
        case Phase.BOOT_CHECKING | Phase.TROUBLESHOOTING:
            set_deadline(draft, "round", draft.spec.roundTimeout)
        case _:
            draft.set(deadline=None)


def set_deadline(draft: Draft, kind: str, seconds: float) -> None:
    """A deadline from now on; `setAt` is filled by the owner from the server's time of the commit."""
    draft.set(deadline=Deadline(kind, seconds, draft.head.seqNum, draft.head.incarnation, 0))


def await_places(draft: Draft) -> None:
    """Pending and Restarting: how long awaited pods may take. While suspended, nobody is awaited."""
    if draft.head.suspended:
        draft.set(deadline=None)
    else:
        set_deadline(draft, "placing", draft.spec.placingTimeout)


def unhung(draft: Draft) -> None:
    """The last hang mark went: the run goes on as if nothing had happened."""
    head = draft.head
    orders.give(draft, OrderPhase.COMMAND)
    draft.set(deadline=None, ledger=ledger.book(head.ledger, LedgerState.PRODUCTIVE, head.ledger.who, draft.now))


def may_evict(draft: Draft) -> bool:
    """Whether anything is done to nodes (`actions.mode` act); a restart in place always is."""
    return draft.spec.actions == "act"


def advise(draft: Draft, index: int, reason: str) -> None:
    """What would have been done to the node of this place, for a person to decide."""
    name, node = pod_name(index), draft.pod(index).node
    told = f"{name} would leave {node} ({reason}); actions.mode is {draft.spec.actions}"
    draft.note("advice", f"{told}: aegis node taint {node}" if draft.spec.actions == "advise" else told, index, node=node, cause=reason)


def leave_marked(draft: Draft, paid: bool) -> None:
    """The job stops: marked pods leave, for nothing extra. When more than half are marked nobody is named by it, and none leaves.

    A node is blamed for `slow`, and for `hang` only when the hang itself is paid: at another stop, that may be the reason of the hang.
    """
    tally = draft.head.tally
    if not tally.marked:
        return
    named, acts = 2 * tally.marked <= draft.head.workerNum, may_evict(draft)
    for n, i in enumerate(draft.where(lambda pod: pod.mark != "")):
        pod = draft.pod(i)
        reason = LostReason.SLOW if pod.mark == "slow" else LostReason.HUNG
        if named and not acts:
            advise(draft, i, reason.value)
        leaves = named and acts and n < MAX_LEAVING
        if leaves and (paid or reason is LostReason.SLOW):
            blame(draft, i, pod.node, reason.value)
        draft.change(i, toQuit=leaves, mark="", reason=reason.value if leaves else pod.reason)


def _wants_out(pod: Pod) -> bool:
    return pod.toQuit or pod.errored or (pod.failed != "" and FINDINGS.get(pod.failed, Finding.CONTAINER) is not Finding.NOTED)


def common_cause(draft: Draft) -> str:
    """Name of what more than half of the places (two or more) failed alike, or "quit" when as many would leave; "" when neither."""
    failing = draft.where(lambda pod: pod.failed != "" or pod.errored or pod.toQuit)
    half = max(2, draft.head.workerNum // 2 + 1)
    checks = Counter(draft.pod(i).failed or draft.pod(i).reason for i in failing)
    name, most = checks.most_common(1)[0] if checks else ("", 0)
    if most >= half:
        return name or "quit"
    return "quit" if sum(_wants_out(draft.pod(i)) for i in failing) >= half else ""


def order_out(draft: Draft) -> list[int]:
    """Everybody who failed this round and must leave is ordered to; places in pod order. None when the cause is common."""
    if common_cause(draft):
        return []
    leaving = []
    for i in draft.where(_wants_out)[:MAX_LEAVING]:
        pod = draft.pod(i)
        if pod.toQuit:
            leaving.append(i)
            continue
        finding = FINDINGS.get(pod.failed, Finding.CONTAINER) if pod.failed else None
        if finding is Finding.CONTAINER and may_evict(draft) and pod.pin == pod.node != "" and pod.reason == pod.failed:
            finding = Finding.HARDWARE  # it came for that, into a fresh container: a level that did not hold is not tried again
        if finding is Finding.HARDWARE:
            if not may_evict(draft):
                advise(draft, i, pod.failed)
                continue
            blame(draft, i, pod.node, pod.failed)
        draft.change(i, toQuit=True, reason=pod.failed or pod.reason, pin=pod.node if finding is Finding.CONTAINER else "")
        leaving.append(i)
    return leaving


def end_round(draft: Draft) -> None:
    """All places of BootChecking or Troubleshooting have answered."""
    slow = _weigh_pairs(draft)
    head = draft.head
    if not head.tally.failing and not head.tally.quitting:
        _pass(draft, slow)
        return
    common = common_cause(draft)
    if common and head.massQuitRounds:
        fail(draft, Trigger.BOOT, FailedReason.BOOT, cause=common)
    elif common:
        draft.set(massQuitRounds=1)
        go(draft, head.phase, Trigger.COMMON, cause=common)
    elif leaving := order_out(draft):
        pod = draft.pod(leaving[0])
        go(draft, Phase.RESTARTING, Trigger.LEAVE, index=leaving[0], cause=pod.reason, node=pod.node)
    else:
        _pass(draft, slow)


def _pass(draft: Draft, slow: list[int]) -> None:
    """Run. Who was slow in all its pairings is only marked: it is paid at the next complete checkpoint."""
    go(draft, Phase.RUN_COMMAND, Trigger.PASSED)
    for i in slow:
        draft.change(i, mark="slow")
        draft.note("mark", f"{pod_name(i)}: marked slow by its pairings, nothing stopped", i, node=draft.pod(i).node, mark="slow", cause="slow")


def _weigh_pairs(draft: Draft) -> list[int]:
    """What the tests of two at a time say: who is bad fails `collective`, who is cleared fails nothing. Gives who is slow.

    While a place is bad by itself, or could not answer, tests with it say nothing about the others. Where most fail and nobody is named, the round is
    made once more; then the command is run: what fails may be the test, and a training that cannot communicate says so itself.
    """
    tested = {i: draft.pod(i).pairs for i in draft.where(lambda pod: pod.pairs != ())}
    if not tested:
        return []
    if draft.where(_wants_out):
        for i in draft.where(lambda pod: pod.failed == "allreduce"):
            draft.change(i, failed="")
        return []
    named = pairs.judge(pairs.outcomes(tested, passes=0.0))
    for i in named.bad:
        draft.change(i, failed="collective")
        draft.note("check", f"{pod_name(i)} is named by its tests with others", i, check="collective", node=draft.pod(i).node)
    again = draft.head.massQuitRounds > 0 and not named.bad
    if named.bad or again:
        for i in draft.where(lambda pod: pod.failed == "allreduce"):
            if again or i not in named.suspected:
                draft.change(i, failed="")
    if again and named.suspected:
        draft.note("check", "tests with others failed again and name nobody: the command is run all the same", check="collective")
    elif named.suspected:
        some = [pod_name(i) for i in sorted(named.suspected)][:8]
        draft.note("check", f"one of {', '.join(some)} is bad, or more: tests of two at a time cannot say which", check="collective")
    if named.bad or named.suspected:
        return []
    return sorted(pairs.judge(pairs.outcomes(tested, passes=pairs.SLOW)).bad)
