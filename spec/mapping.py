"""Which variable of `AegisPhase` is which field of the code, and which process is which event. The one table that ties model and machine.

`model_state` maps a state of the code to the model's variables, every variable by one rule (which fields are in none: `left_out`); `events_of`
lists, for a state of the code, every event that the model knows, under the name of its process. Reads `aegis_proto` and `aegis_master`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from itertools import combinations, permutations
from types import MappingProxyType
from typing import Any

import msgspec
from aegis_master import events, trace, transitions
from aegis_master.draft import counts_of, tally_of
from aegis_master.pairs import PREFIX
from aegis_master.rounds import FINDINGS, Finding
from aegis_proto.messages import CheckResult
from aegis_proto.phases import FailedReason, LostReason, Mode, OrderPhase, Phase
from aegis_proto.state import Deadline, Head, JobSpec, JobState, Order, Pod
from msgspec.structs import replace
from stale import stale

Value = str | int | bool | tuple[str | int | bool, ...]
State = tuple[tuple[str, Value], ...]
"""(variable, value) sorted by variable; functions of workers are tuples in worker order w1, w2 ..."""
NOW = 1_000
"""Milliseconds, when the job is created."""


def later(state: JobState) -> int:
    """Time of the next step: after the last start and stop of a run, so that only an event dated on purpose is dated before it."""
    return max(NOW, state.head.stopOrderAt, state.head.runStartedAt) + 1


def times(state: JobState, event: events.Event, features: frozenset[str]) -> tuple[int, ...]:
    """When an event is tried: later than all before; what is dated by its arrival also in the millisecond of the stop order."""
    if "move" in features and isinstance(event, events.PodReady) and state.head.stopOrderAt:
        return (later(state), state.head.stopOrderAt)
    return (later(state),)


def counted(state: JobState) -> bool:
    return state.head.countedIncarnation == state.head.incarnation


def runs(state: JobState) -> str:
    """What all that are here so far say they run, relative to the state's incarnation."""
    head = state.head
    if not head.adopting:
        return "none"
    if head.adoptIncarnation == -2:
        return "none"
    return "mixed" if head.adoptIncarnation < head.incarnation else "cur" if head.adoptIncarnation == head.incarnation else "next"


def heard(state: JobState) -> str:
    head = state.head
    if not head.adopting or head.adoptMax < 0:
        return "none"
    return "next" if head.adoptMax > head.incarnation else "cur"


def failed(pod: Pod) -> str:
    """A check that makes the pod leave by what it makes leave, node or container; one that is only noted by its name."""
    finding = FINDINGS.get(pod.failed, Finding.CONTAINER)
    return pod.failed if not pod.failed or finding is Finding.NOTED else "node" if finding is Finding.HARDWARE else "container"


def to_quit(pod: Pod) -> str:
    return "no" if not pod.toQuit else "preempted" if pod.reason == LostReason.PREEMPTED else "ordered"


def holder(state: JobState) -> str:
    """Who holds the count of this incarnation; `nobody` when it was taken back."""
    if not counted(state):
        return "none"
    return f"w{int(state.head.countedPod[1:]) + 1}" if state.head.countedPod else "nobody"


def failed_reason(state: JobState) -> str:
    """A stop that a rule asks for is a stop that is asked for."""
    reason = state.head.failedReason
    return "none" if reason is None else FailedReason.STOPPED.value if reason is FailedReason.PROGRESS else reason.value


HEAD: dict[str, Any] = {
    "phase": lambda s: s.head.phase.value,
    "mode": lambda s: s.head.mode.value,
    "recoverCount": lambda s: s.head.recoverCount,
    "failures": lambda s: s.head.failures,
    "shouldQuit": lambda s: s.head.shouldQuit,
    "failedReason": failed_reason,
    "started": lambda s: s.head.started,
    "booted": lambda s: s.head.booted,
    "counted": counted,
    "holder": holder,
    "evidence": lambda s: s.head.countedEvidence if counted(s) else 0,
    "moved": lambda s: s.head.countMoved and counted(s),
    "massQuit": lambda s: s.head.massQuitRounds,
    "portRetries": lambda s: s.head.portRetries,
    "suspended": lambda s: s.head.suspended,
    "adopting": lambda s: s.head.adopting,
    "runs": runs,
    "heard": heard,
    "ended": lambda s: s.head.failures,  # the ghost; equal by the invariant CountExact
    "noise": lambda s: True,  # people and platform may always disturb
}
"""Variable of the model -> value from the head."""

POD: dict[str, Any] = {
    "innerPhase": lambda p: p.innerPhase.value,
    "present": lambda p: p.present,
    "placed": lambda p: p.placed,
    "finished": lambda p: p.finished,
    "errored": lambda p: p.errored,
    "failed": failed,
    "retries": lambda p: p.retries,
    "uncounted": lambda p: p.uncounted,
    "toQuit": to_quit,
    "mark": lambda p: p.mark,
    "suspect": lambda p: p.suspect,
    "told": lambda p: p.pairs != (),
}
"""Variable of the model -> value from the pod of each worker."""


IN_ORDER = sorted((*HEAD, *POD))
"""Variables as a state has them."""


@functools.lru_cache(maxsize=1 << 16)
def pod_values(pod: Pod) -> tuple[Value, ...]:
    """In the order of POD. A graph has thousands of states, of few different pods."""
    return tuple(rule(pod) for rule in POD.values())


def model_state(state: JobState, hidden: Mapping[str, Value] = MappingProxyType({})) -> State:
    """A state of the code as the model sees it; `hidden`: what variables have of which it does not see more."""
    values: dict[str, Value] = dict(zip(POD, zip(*map(pod_values, state.pods()), strict=True), strict=True))
    for name, rule in HEAD.items():
        values[name] = rule(state)
    values |= hidden
    return tuple([(name, values[name]) for name in IN_ORDER])


def state_of(told: dict[str, Any]) -> JobState:
    """A state of the code from what a trace tells of it (`aegis_master.trace.variables`); what a trace leaves out is at rest."""
    heads = {name: told[name] for name in trace.HEAD} | {"job": "traced", "name": "traced", "namespace": "", "uid": "u"}
    head = msgspec.convert(heads, Head)
    shapes = [dict(zip(trace.POD, fields, strict=True)) for fields in zip(*(told[name] for name in trace.POD), strict=True)]
    pods = tuple(Pod(**(shape | {"innerPhase": Phase(shape["innerPhase"]), "pairs": tuple(map(tuple, shape["pairs"]))})) for shape in shapes)
    order = Order(OrderPhase(told["order"]), head.seqNum, head.incarnation)
    stands = Deadline(told["deadline"], 0.0, head.seqNum, head.incarnation, 0) if told["deadline"] != "none" else None
    head = replace(head, order=order, deadline=stands, tally=tally_of((pods,)), counts=counts_of((pods,)))
    return JobState(head, (pods,), spec_of(head.workerNum, head.maxRetry, told["maxUncounted"], told["actions"]))


def order_of(state: JobState) -> str:
    """The model's operator `Order`, from the variables alone: what must stand in head.order."""
    head = state.head
    if head.phase.terminal:
        return "quit"
    hung = any(pod.mark == "hang" for pod in state.pods())
    return {
        Phase.PENDING: "stop" if head.suspended else "wait",
        Phase.BOOT_CHECKING: "bootcheck",
        Phase.TROUBLESHOOTING: "troubleshoot",
        Phase.RESTARTING: "wait" if head.adopting else "stop",
        Phase.RUN_COMMAND: "plain" if head.mode is Mode.PLAIN else "hang" if hung else "command",
    }[head.phase]


def deadline_of(state: JobState) -> str:
    """The model's operator `Deadline`."""
    head, pods = state.head, state.pods()
    if head.phase is Phase.PENDING and head.suspended:
        return "none"
    if head.phase is Phase.PENDING and not head.started and all(pod.placed and not pod.toQuit for pod in pods):
        return "pending"
    if head.phase in (Phase.PENDING, Phase.RESTARTING):
        return "placing"
    if head.phase in (Phase.BOOT_CHECKING, Phase.TROUBLESHOOTING):
        return "round"
    return "hang" if head.phase is Phase.RUN_COMMAND and any(pod.mark == "hang" for pod in pods) else "none"


def spec_of(workers: int, max_retry: int, max_uncounted: int, actions: str) -> JobSpec:
    counts = {"workers": workers, "maxRetry": max_retry, "maxUncounted": max_uncounted}
    return JobSpec(name="model", command=("true",), **counts, retryResetAfter=1e-9, actions=actions, allowInject=True)


PROCESSES: dict[str, tuple[str, ...]] = {
    "PodReady": ("Ready", "Lost"),
    "PodLost": ("Lost", "Left", "Preempted", "PlainExit"),
    "PodGone": ("Lost", "Preempted"),
    "PodRunning": ("Running",),
    "Acked": (),
    "Stopped": ("Suspect",),
    "Finished": ("Finish", "FinishHung", "Checked"),
    "Errored": ("Failing", "PortTaken", "NotStarted", "LateError", "LateNotice", "Undiagnosed", "Notice"),
    "Marked": ("Mark",),
    "Progressed": (),
    "Checkpointed": ("Checkpoint",),
    "DeadlinePassed": ("PlacingDeadline", "RoundDeadline", "HangDeadline", "PendingDeadline"),
    "PlainFact": ("Plain",),
    "PlainExit": ("PlainExit", "PlainOver"),
    "StopAsked": ("Stop",),
    "SuspendAsked": ("Suspend",),
    "ResumeAsked": ("Resume",),
    "RestartAsked": ("Restart",),
    "SettingChanged": (),
    "InjectAsked": (),
    "Noticed": (),
    "SuspectChanged": ("Suspect",),
    "GapFound": (),
    "EraChanged": ("Era",),
    "Healthy": ("Healthy",),
}
"""Event of the code -> processes of the model that it may be. An event may always change nothing; one with no process always does.
A new maxRetry is a constant of the model: the job goes on in the graph of the new constant, which a test holds."""
SILENT = "Silent"
"""No process: where a configuration names the feature `silent`, the events that have none are tried too; an edge of one is none of the model."""
PLAIN_END = (events.PodLost, events.PlainExit)
"""What the end of a worker is heard as."""


def _boot(pod: Pod) -> str:
    """A boot id the place has not had: the machine only compares it with the present and the last."""
    return "b" if "b" not in (pod.boot, pod.oldBoot) else "c" if "c" not in (pod.boot, pod.oldBoot) else "d"


def events_of(state: JobState, features: frozenset[str]) -> Iterator[tuple[str, events.Event]]:
    """Every event of the model that is worth trying here, enabled or not: what the code drops must be no edge of the model either."""
    for name, event in _tried(state, features):
        ends = name != SILENT and state.head.mode is Mode.PLAIN and isinstance(event, PLAIN_END)
        yield "PlainExit" if ends else name, event


def _tried(state: JobState, features: frozenset[str]) -> Iterator[tuple[str, events.Event]]:
    head, pods = state.head, state.pods()
    early = (0, *((1,) if "move" in features else ()))
    for i, pod in enumerate(pods):
        boot = _boot(pod)
        answer = (i, pod.attempt, pod.boot, head.incarnation, head.seqNum)
        run = (i, pod.attempt, pod.boot, head.incarnation, head.runSeqNum)
        checking = head.phase in (Phase.BOOT_CHECKING, Phase.TROUBLESHOOTING)
        if checking:
            yield "Checked", events.Finished(*answer)
            if "check" in features:
                yield "Checked", events.Finished(*answer, results=(CheckResult("gpu", False),))
                yield "Checked", events.Finished(*answer, tree_gone=False)
                yield "Checked", events.Finished(*answer, results=(CheckResult("performance", False),))
                yield "Undiagnosed", events.Errored(*answer, reason=LostReason.GPU_LOST)
            if "levels" in features:
                yield "Checked", events.Finished(*answer, results=(CheckResult("runtime", False),))
            if "checks" in features:
                for check in (name for name, finding in FINDINGS.items() if finding is Finding.NOTED):
                    yield "Checked", events.Finished(*answer, results=(CheckResult(check, False),))
            yield "Undiagnosed", events.Errored(*answer, reason=LostReason.ERROR)
        else:
            yield "FinishHung" if pod.mark == "hang" else "Finish", events.Finished(*answer)
            yield "Failing", events.Errored(*answer, reason=LostReason.ERROR)
            if "move" in features:
                yield "Failing", events.Errored(*answer, reason=LostReason.SIGNAL)
                yield "Failing", events.Errored(*answer, reason=LostReason.COLLATERAL)
                yield "Failing", events.Errored(*answer, reason=LostReason.GPU_LOST)
            if "port" in features:
                yield "PortTaken", events.Errored(*answer, reason=LostReason.PORT)
                yield "Failing", events.Errored(*answer, reason=LostReason.PORT, ran_for=transitions.PORT_SECONDS + 1)
            if "command" in features:
                yield "NotStarted", events.Errored(*answer, reason=LostReason.ERROR, exit_code=127)
        if "move" in features and head.phase in (Phase.RESTARTING, Phase.TROUBLESHOOTING) and head.runSeqNum:
            for reason in (LostReason.GPU_LOST, LostReason.SIGNAL, LostReason.ERROR, LostReason.COLLATERAL):
                yield "LateError", events.Errored(*run, reason=reason, at=1)
            if "preempt" in features:
                yield "LateNotice", events.Errored(*run, reason=LostReason.PREEMPTED, at=1)
        if "mark" in features:
            for kind in ("hang", "slow"):
                yield "Mark", events.Marked(i, pod.attempt, pod.boot, head.incarnation, kind)
            yield "Mark", events.Marked(i, pod.attempt, pod.boot, head.incarnation, cleared=True)
        if head.adopting:
            name = "Lost" if pod.present else "Ready"
            for says in range(-1, head.incarnation + 3):
                yield name, events.PodReady(i, pod.attempt, boot, running=True, incarnation=says)
                yield name, events.PodReady(i, pod.attempt + 1, boot, running=False, incarnation=says)
        elif not pod.present:
            yield "Ready", events.PodReady(i, pod.attempt, boot)
            yield "Ready", events.PodReady(i, pod.attempt + 1, boot)
        for at in early:
            yield "Lost", events.PodLost(i, pod.attempt, LostReason.KILLED, at=at, exit_code=9, node="n", gone=True, blame="notStarted")
        yield "Lost", events.PodGone(i, pod.attempt)
        if pod.present:
            for at in early:
                yield "Lost", events.PodLost(i, pod.attempt, LostReason.NODE_LOST, at=at)
            if not head.adopting:
                yield "Lost", events.PodReady(i, pod.attempt, boot)
                yield "Lost", events.PodReady(i, pod.attempt + 1, boot)
        if head.phase is Phase.RUN_COMMAND:
            yield "Lost" if pod.finished else "Left", events.PodLost(i, pod.attempt, LostReason.KILLED, exit_code=0)
        if "preempt" in features:
            yield "Preempted", events.PodLost(i, pod.attempt, LostReason.PREEMPTED)
            yield "Preempted", events.PodGone(i, pod.attempt, preempted=True)
            yield "Notice", events.Errored(*answer, reason=LostReason.PREEMPTED)
        if "plain" in features:
            yield "Running", events.PodRunning(i, pod.attempt)
            yield "Plain", events.PlainFact(i, pod.attempt)
            yield "PlainOver", events.PlainExit(i, pod.attempt, 0)
            yield "PlainOver", events.PlainExit(i, pod.attempt, 3)
        if "suspect" in features:
            yield "Suspect", events.SuspectChanged(i, pod.attempt, not pod.suspect)
            yield "Suspect", events.Stopped(i, pod.attempt, pod.boot, head.incarnation, clean=False)
        if "silent" in features:
            yield SILENT, events.Acked(i, pod.attempt, pod.boot, head.seqNum)
            yield SILENT, events.InjectAsked(i, "i1", "kill")
            yield SILENT, events.Noticed(i, pod.attempt, pod.boot, head.incarnation, "idle-gpu")
    if "silent" in features:
        yield SILENT, events.Progressed(head.incarnation, 5)
        yield SILENT, events.GapFound()
        yield SILENT, events.SettingChanged(9)
        for event in stale(state):
            yield SILENT, event
    yield "Checkpoint", events.Checkpointed(head.incarnation, 1)
    if head.deadline is not None:
        name = {"placing": "PlacingDeadline", "round": "RoundDeadline", "hang": "HangDeadline", "pending": "PendingDeadline"}[head.deadline.kind]
        yield name, events.DeadlinePassed(head.deadline.kind, head.deadline.seqNum, head.deadline.incarnation)
    asked: list[tuple[str, str, events.Event]] = [
        ("stop", "Stop", events.StopAsked()),
        ("stop", "Stop", events.StopAsked(no_progress=True)),
        ("suspend", "Suspend", events.SuspendAsked()),
        ("suspend", "Resume", events.ResumeAsked()),
        ("restart", "Restart", events.RestartAsked()),
        ("healthy", "Healthy", events.Healthy()),
        ("era", "Era", events.EraChanged("b" if head.era == "a" else "a")),
    ]
    for feature, name, event in asked:
        if feature in features:
            yield name, event


def variants(state: JobState, event: events.Event, features: frozenset[str]) -> Iterator[tuple[JobState, events.Event]]:
    """The event, and what looks the same to the model: the last answer of a round, with all that tests may have said to those who told of some."""
    yield state, event
    head, pods = state.head, state.pods()
    if "pairs" not in features or not isinstance(event, events.Finished) or head.phase not in (Phase.BOOT_CHECKING, Phase.TROUBLESHOOTING):
        return
    told = {i for i, pod in enumerate(pods) if pod.pairs}
    last = head.tally.answered == head.workerNum - 1
    for tellers in ({*told, event.index}, told):
        for words in tellings(sorted(tellers), head.workerNum) if tellers else ():
            same = tuple(replace(pod, pairs=words[i]) if i in told else pod for i, pod in enumerate(pods))
            own = {f"{PREFIX}{other}": share for other, share in words[event.index]} if event.index in tellers else {}
            yield replace(state, shards=(same,)), replaced(event, results=(*event.results, CheckResult("allreduce", True, values=own)))
            if not last:
                break


def tellings(tellers: Sequence[int], workers: int) -> Iterator[dict[int, tuple[tuple[int, float], ...]]]:
    """What these may tell of tests of two, one for each verdict that such tests can come to: some are bad (share 0) or slow (0.5); and, one being bad
    for certain, one of two others is."""
    for share in (0.0, 0.5):
        for n in range(workers + 1):
            for some in combinations(range(workers), n):
                yield {i: ((i, share),) if i in some else ((i, 1.0), *((other, share) for other in some)) for i in tellers}
    for bad, teller in permutations(tellers, 2):
        for other in range(workers):
            if other not in (bad, teller):
                yield {i: ((i, 0.0),) if i == bad else ((other if i == teller else teller, 0.0),) for i in tellers}
