"""From a stored message to events of the phase machine: decode, check who says it, check when it was true. Pure; reads and writes nothing.

The subject is what the server proved (an agent can publish only under its own pod); the body is what somebody says. Three outcomes:
  events   the machine is to step them
  dropped  well formed, but of another uid, attempt, boot, era, incarnation or round: counted in a metric, changes nothing
  bad      not a message of ours, or it contradicts its subject: dead letter
PENDING is the exception: a start is news, so a new boot of the present attempt passes (docs/decisions/0002-phase-machine.md, D17).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec
from aegis_proto.api import FAULTS
from aegis_proto.ids import pod_index
from aegis_proto.job import RANGES
from aegis_proto.messages import (
    AckData,
    BadMessage,
    CheckResponse,
    CheckResult,
    ErrorData,
    Fact,
    FinishData,
    HangData,
    Message,
    PendingData,
    StoppedData,
    decode,
    decode_data,
)
from aegis_proto.metrics import ANOMALIES
from aegis_proto.phases import FactKind, LostReason, MessageType, Mode, Phase, ReportKind
from aegis_proto.state import JobState, Pod

from aegis_master import events as ev
from aegis_master import levels

ROUNDS = frozenset({"bootcheck", "command", "troubleshoot"})
MAX_GRACE = RANGES["stopGrace"][1]
"""Seconds that a stop may give a command."""
BOOT, NAME = 64, 128
"""Characters of a boot id; of an address, a node and a platform's id of a pod in the words of an agent."""
UNCLEAN, NOT_STARTED = "unclean", "notStarted"
"""A daemon killed a worker and could not verify it gone: what is left may hold GPUs and ports of the node (errorNodes)."""
KINDS: dict[ReportKind, tuple[MessageType, frozenset[str]]] = {
    ReportKind.PENDING: (MessageType.ACK, frozenset({""})),
    ReportKind.ACK: (MessageType.ACK, ROUNDS),
    ReportKind.CHECK: (MessageType.ACK, frozenset({"check"})),
    ReportKind.STOPPED: (MessageType.ACK, frozenset({"stop"})),
    ReportKind.FINISH: (MessageType.FINISH, ROUNDS),
    ReportKind.ERROR: (MessageType.ERROR, ROUNDS),
    ReportKind.HANG: (MessageType.ERROR, frozenset({"hang"})),
}
"""Last token of the subject -> the type and the phases its body may have."""

_ASKED = (FactKind.STOP, FactKind.SUSPEND, FactKind.RESUME, FactKind.RESTART, FactKind.SET, FactKind.INJECT)
JOB_FACTS = frozenset({*_ASKED, FactKind.CHECKPOINT, FactKind.VERDICT})
AGENT_REASONS = frozenset(
    {
        LostReason.ERROR,
        LostReason.SIGNAL,
        LostReason.COLLATERAL,
        LostReason.GPU_LOST,
        LostReason.PREEMPTED,
        LostReason.PORT,
        LostReason.HUNG,
    }
)
"""What an agent may say about the end of its child; loss of the pod or the node is the platform's word."""


@dataclass(frozen=True, slots=True)
class PlatformWord:
    """For the judge of death: the platform confirms "running", or cannot."""

    index: int
    attempt: int
    running: bool


@dataclass(frozen=True, slots=True)
class Look:
    """For the judge of hangs: what a worker's stacks say while its run is marked."""

    index: int
    sign: str
    where: str


@dataclass(frozen=True, slots=True)
class Beside:
    """For people: what a check of a worker says beside a run that stands still; `at` when it was heard (ms since 1970)."""

    index: int
    result: CheckResult
    at: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What one stored message means."""

    events: tuple[ev.Event, ...] = ()
    dropped: str = ""
    """Metric label: why it changed nothing (with events: it was no report, and was not dropped)."""
    bad: str = ""
    """Why it goes to the dead letters."""
    heard: int = -1
    """Place whose agent is alive by this (present attempt and boot)."""
    peer_error: int = -1
    """Place that reports Error or hang."""
    word: PlatformWord | None = None
    notes: tuple[ev.Note, ...] = ()
    """What is told to people of it; the state stays."""
    look: Look | None = None
    beside: Beside | None = None
    marks: int = -1
    """Place that its own worker marks, or whose mark it withdraws: not ours to take away."""


def take(state: JobState, subject: str, data: bytes, time_ms: int) -> Taken:
    """`state` as it is after everything before this message; `time_ms` is the server's timestamp of the message."""
    parts = subject.split(".")
    if len(parts) == 6 and parts[3] == "worker":
        return _report(state, parts[4], parts[5], data, time_ms)
    if len(parts) == 5 and parts[3] == "fact":
        return _fact(state, parts[4], data, time_ms)
    return Taken(bad=f"unknown subject {subject}")


def _place(state: JobState, pod: str) -> int:
    """Index of a pod name that this job has; BadMessage otherwise."""
    try:
        index = pod_index(pod)
    except ValueError as error:
        raise BadMessage(str(error)) from None
    if index >= state.head.workerNum:
        raise BadMessage(f"{pod}: the job has {state.head.workerNum} workers")
    return index


T = TypeVar("T", bound=msgspec.Struct)


def _report(state: JobState, pod_name: str, kind_name: str, data: bytes, time_ms: int) -> Taken:
    head = state.head
    try:
        index = _place(state, pod_name)
        message = decode(Message, data)
        body = decode_data(message)
        kind = ReportKind(kind_name)
    except (BadMessage, ValueError) as error:
        return Taken(bad=str(error))
    allowed_type, allowed_phases = KINDS[kind]
    if message.type is not allowed_type or message.phase not in allowed_phases:
        return Taken(bad=f"({message.type.value}, {message.phase!r}) cannot come on .{kind.value}")
    if message.podName != pod_name:
        return Taken(bad=f"podName {message.podName!r} on the subject of {pod_name}")
    if not 0 < len(message.boot) <= BOOT:
        return Taken(bad=f"a boot id of {len(message.boot)} characters, expected 1 to {BOOT}")
    pod = state.pod(index)
    if message.uid != head.uid:
        return Taken(dropped="uid")
    if message.attempt < pod.attempt:
        before = message.attempt == pod.attempt - 1 and message.boot == pod.oldBoot and message.era == head.era
        if before and isinstance(body, StoppedData):  # the word of the one that was replaced: nothing of it runs any more
            return Taken((ev.Stopped(index, message.attempt, message.boot, incarnation=body.incarnation, clean=body.clean),))
        return Taken(dropped="attempt")
    if isinstance(body, PendingData):
        ready = ev.PodReady(
            index,
            message.attempt,
            message.boot,
            ip=name(body.podIP),
            node=name(body.nodeName),
            uid=name(body.podUid),
            running=body.running,
            incarnation=body.incarnation,
            stopped=body.stopped,
            check_port=body.checkPort,
        )
        return Taken((ready,), heard=index)
    if message.attempt != pod.attempt:
        return Taken(dropped="attempt")
    if message.boot != pod.boot:
        return Taken(dropped="boot")
    if message.era != head.era:
        return Taken(dropped="era")
    return _of_present(state, index, message, body, time_ms)


def _of_present(state: JobState, index: int, message: Message, body: msgspec.Struct, time_ms: int) -> Taken:
    """A report of the present attempt and boot, in the present era."""
    head = state.head
    who = (index, message.attempt, message.boot)
    if isinstance(body, StoppedData):
        stopped: list[ev.Event] = [ev.Stopped(*who, incarnation=body.incarnation, clean=body.clean)]
        if body.leaving and body.clean:
            stopped.append(ev.PodGone(index, message.attempt, preempted=body.reason == LostReason.PREEMPTED))
        return Taken(tuple(stopped), heard=index)
    if message.incarnation != head.incarnation:
        return Taken(dropped="incarnation", heard=index)
    if isinstance(body, CheckResult):
        if body.CheckType != "monitor":
            return Taken(dropped="check", heard=index, beside=Beside(index, _shown(body), time_ms) if head.tally.hung else None)
        if body.code not in ANOMALIES:
            return Taken(dropped="check", heard=index)
        return Taken((ev.Noticed(*who, incarnation=message.incarnation, code=body.code, message=words(body.Result)[:200]),), heard=index)
    if isinstance(body, HangData):
        if body.kind == "look":
            return Taken(dropped="look", heard=index, look=Look(index, body.sign, words(body.message)))
        if body.kind not in ("hang", "slow"):
            return Taken(bad=f"hang of kind {body.kind!r}")
        mark = ev.Marked(*who, incarnation=message.incarnation, kind=body.kind, cleared=body.cleared, message=words(body.message))
        return Taken((mark,), heard=index, peer_error=-1 if body.cleared else index, marks=index)
    if isinstance(body, ErrorData):
        # Of an older round of the same incarnation too: better evidence may still move the count. The machine looks at the round.
        errored = ev.Errored(
            *who,
            incarnation=message.incarnation,
            seq_num=message.seqNum,
            reason=_agent_reason(body.reason),
            exit_code=body.exitCode,
            signal=body.signal,
            at=min(body.diedAt, time_ms) if body.diedAt > 0 else time_ms,
            ran_for=body.ranFor,
            message=words(body.message),
        )
        missing = errored.reason is not LostReason.PREEMPTED  # then it does not speak about somebody who is silent
        return Taken((errored,), heard=index, peer_error=index if missing else -1)
    if not 0 < message.seqNum <= head.seqNum:  # which of them answer the present round, the machine knows
        return Taken(dropped="seqNum", heard=index)
    if isinstance(body, AckData):
        return Taken((ev.Acked(*who, seq_num=message.seqNum),), heard=index)
    round_ = (message.incarnation, message.seqNum)
    if isinstance(body, CheckResponse):
        results = [_shown(result) for result in body.results]
        if (finding := levels.escalated(state, index)) is not None:
            results.append(finding)
        finished = ev.Finished(
            *who,
            *round_,
            results=tuple(results),
            addr=body.addr,
            port=body.port,
            tree_gone=body.treeGone,
            check_port=body.checkPort,
        )
        return Taken((finished,), heard=index)
    if isinstance(body, FinishData):
        return Taken((ev.Finished(*who, *round_, exit_code=body.exitCode, step=body.step),), heard=index)
    return Taken(bad=f"unexpected {type(body).__name__}")


def words(text: str) -> str:
    """What a tenant says, for people: at most 500 characters, and none that a terminal would obey."""
    return "".join(char if char.isprintable() else " " for char in text[:500])


def name(text: str) -> str:
    """What a tenant calls itself: kept for every place of a job, so it is short (a full shard stays readable, whatever its workers say)."""
    return "".join(char if "!" <= char <= "~" else "?" for char in text[:NAME])


def _shown(result: CheckResult) -> CheckResult:
    return msgspec.structs.replace(result, CheckType=words(result.CheckType), Result=words(result.Result), code=words(result.code))


def _agent_reason(text: str) -> LostReason:
    try:
        reason = LostReason(text)
    except ValueError:
        return LostReason.ERROR
    return reason if reason in AGENT_REASONS else LostReason.ERROR


def _fact(state: JobState, about: str, data: bytes, time_ms: int) -> Taken:
    try:
        fact = decode(Fact, data)
        whole_job = about == "job"
        if whole_job and fact.kind not in JOB_FACTS:
            raise BadMessage(f"{fact.kind.value} is about a pod")
        index = -1 if whole_job else _place(state, about)
    except BadMessage as error:
        return Taken(bad=str(error))
    if fact.uid != state.head.uid:
        return Taken(dropped="uid")
    if whole_job or fact.kind in (FactKind.CHECKPOINT, FactKind.VERDICT):
        return _job_fact(state, fact, time_ms)
    return _pod_fact(state, index, fact, time_ms)


def _job_fact(state: JobState, fact: Fact, time_ms: int) -> Taken:
    match fact.kind:
        case FactKind.STOP:
            return Taken(
                (ev.StopAsked(words(fact.who), words(fact.message), fact.grace if fact.grace is not None and 0 <= fact.grace <= MAX_GRACE else -1.0),)
            )
        case FactKind.SUSPEND:
            return Taken((ev.SuspendAsked(words(fact.who), words(fact.message)),))
        case FactKind.RESUME:
            return Taken((ev.ResumeAsked(words(fact.who), words(fact.message)),))
        case FactKind.RESTART:
            return Taken((ev.RestartAsked(words(fact.who), words(fact.message)),))
        case FactKind.SET:
            text = fact.settings.get("max-retry", "")
            if set(fact.settings) != {"max-retry"} or not text.isdecimal():
                return Taken(bad=f"set {fact.settings}: only max-retry, a number")
            return Taken((ev.SettingChanged(int(text), words(fact.who), words(fact.message)),))
        case FactKind.INJECT:
            worker, fault = fact.settings.get("worker", ""), fact.settings.get("fault", "")
            try:
                index = _place(state, worker)
            except BadMessage as error:
                return Taken(bad=str(error))
            if fault not in FAULTS:
                return Taken(bad=f"inject {fault!r}: {', '.join(FAULTS)}")
            return Taken((ev.InjectAsked(index, words(fact.settings.get("id", ""))[:64], fault, words(fact.who), words(fact.message)),))
        case FactKind.CHECKPOINT:
            return Taken((ev.Checkpointed(state.head.incarnation, fact.step),))
        case _:
            return Taken(dropped="verdict", notes=(_verdict(state, fact, time_ms),))


def _verdict(state: JobState, fact: Fact, time_ms: int) -> ev.Note:
    """What was found about a failure, as a word to people. It excludes nobody: it is made of what tenants say, and of facts that came here before."""
    said = {"cause": words(fact.settings.get("cause", "")), "zh": words(fact.settings.get("zh", "")), "who": words(fact.who)}
    number = fact.settings.get("incarnation", "")
    incarnation = number if number.isdecimal() and int(number) <= state.head.incarnation else str(state.head.incarnation)
    return ev.Note("verdict", words(fact.message), details={**said, "incarnation": incarnation}, at=_at(fact, time_ms))


def _pod_fact(state: JobState, index: int, fact: Fact, time_ms: int) -> Taken:
    pod, head = state.pod(index), state.head
    if fact.attempt > pod.attempt or (fact.attempt < pod.attempt and fact.kind not in (FactKind.GONE, FactKind.NODE_LOST)):
        return Taken(dropped="attempt")
    match fact.kind:
        case FactKind.RUNNING:
            return Taken(_confirmed(index, pod), dropped="platform", word=PlatformWord(index, fact.attempt, True))
        case FactKind.NODE_SILENT:
            return Taken(dropped="platform", word=PlatformWord(index, fact.attempt, False))
        case FactKind.PLACED:
            return Taken(_confirmed(index, pod), dropped="platform")
        case FactKind.PLAIN:
            return Taken((ev.PlainFact(index, fact.attempt),))
        case FactKind.GONE if fact.attempt < pod.attempt and not fact.verified:
            return Taken(dropped="attempt")
        case FactKind.GONE if fact.attempt < pod.attempt and not _blame(fact):
            return Taken((ev.PodGone(index, fact.attempt),))
        case FactKind.GONE if fact.attempt < pod.attempt:
            return Taken((ev.PodLost(index, fact.attempt, at=_at(fact, time_ms), node=fact.node, gone=True, blame=_blame(fact)),))
        case FactKind.GONE if head.mode is Mode.PLAIN:
            return Taken((ev.PlainExit(index, fact.attempt, _exit_code(fact)),))
        case FactKind.GONE:
            return _gone(state, index, pod, fact, time_ms)
        case FactKind.NODE_LOST:
            lost = ev.PodLost(
                index, fact.attempt, LostReason.NODE_LOST, _at(fact, time_ms), node=fact.node or pod.node, gone=True, message=words(fact.message)
            )
            return Taken((lost,))
        case _:
            return Taken(bad=f"{fact.kind.value} is about a job")


def _blame(fact: Fact) -> str:
    """Why this job does not use the node again, "" when the node is not to blame."""
    return UNCLEAN if not fact.clean else NOT_STARTED if fact.notStarted else ""


def _confirmed(index: int, pod: Pod) -> tuple[ev.Event, ...]:
    return () if pod.placed or pod.present else (ev.PodRunning(index, pod.attempt),)


def _gone(state: JobState, index: int, pod: Pod, fact: Fact, time_ms: int) -> Taken:
    """The present attempt is verified gone. Exit 0 in RunCommand IS Finish (the last report may have been lost)."""
    head = state.head
    events: list[ev.Event] = []
    if head.phase is Phase.RUN_COMMAND and fact.exitCode == 0 and not fact.signal and pod.present and not pod.finished:
        events.append(ev.Finished(index, pod.attempt, pod.boot, incarnation=head.incarnation, seq_num=head.seqNum))
    word = last_word(fact.lastWord)
    reason = LostReason.PREEMPTED if word.reason == LostReason.PREEMPTED.value else LostReason.KILLED
    message = (word.message if fact.clean else "") or fact.message or _how(fact)
    events.append(
        ev.PodLost(
            index,
            fact.attempt,
            reason,
            _at(fact, time_ms),
            exit_code=_exit_code(fact),
            node=fact.node or pod.node,
            gone=fact.verified,
            blame=_blame(fact),
            message=words(message),
        )
    )
    return Taken(tuple(events))


class LastWord(msgspec.Struct, frozen=True):
    """What matters here of an agent's termination message. Written by a tenant: never excludes a node."""

    reason: str = ""
    message: str = ""


def last_word(text: str) -> LastWord:
    """The termination message, as far as it can be read."""
    try:
        return msgspec.json.decode(text.encode(), type=LastWord) if text.startswith("{") else LastWord(message=text)
    except (msgspec.MsgspecError, RecursionError):
        return LastWord(message=text)


def _exit_code(fact: Fact) -> int:
    if fact.signal:
        return 128 + fact.signal
    return fact.exitCode if fact.exitCode is not None else 1


def _how(fact: Fact) -> str:
    if fact.signal:
        return f"killed by signal {fact.signal}"
    return f"exit code {fact.exitCode}" if fact.exitCode is not None else "gone"


def _at(fact: Fact, time_ms: int) -> int:
    """When it happened: the teller's clock, never later than the server's timestamp."""
    return min(fact.at, time_ms) if fact.at > 0 else time_ms
