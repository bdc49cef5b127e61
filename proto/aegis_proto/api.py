"""Requests and replies of the master (`aegis.rpc.master.do.*`, `aegis.rpc.master.query.*`), and the codes of their errors.

Owns the structs; the service is `aegis_master.api`. Every reply is either the named struct or `{"error": {code, message, hint, details}}`.

| subject | request | reply |
|---|---|---|
| aegis.rpc.master.do.submit.<ns> | Submit | SubmitReply |
| aegis.rpc.master.do.{stop,suspend,resume,restart,set}.<ns> | ActionRequest | ActionReply |
| aegis.rpc.master.adopt | AdoptRequest | AdoptReply |
| aegis.rpc.master.query.jobs[.<ns>] | JobsRequest | Jobs |
| aegis.rpc.master.query.job[.<ns>] | JobRequest | JobDetail |
| aegis.rpc.master.query.events[.<ns>] | EventsRequest | Events |
| aegis.rpc.master.query.status | – | Status |
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from aegis_proto import WIRE_VERSION
from aegis_proto.credapi import Claim
from aegis_proto.messages import BadMessage, JobEvent, decode
from aegis_proto.state import ErrorNode, JobSpec, Transition

SERVICE = "master"
ACTIONS = ("stop", "suspend", "resume", "restart", "set", "inject")
FAULTS = ("kill", "raise", "hang", "oom", "stop")
"""What `inject` may ask of one worker of a job that allows it (`aegis_agent.inject` does it)."""

EXIT: dict[str, int] = {
    "E101": 5,  # bus or service unreachable
    "E102": 4,  # credentials expired or revoked
    "E103": 4,  # right missing
    "E104": 3,  # no such job
    "E105": 7,  # conflict: the job has ended, or another job has this id
    "E106": 7,  # the store is filling: no new jobs
    "E107": 2,  # request not understood
    "E108": 5,  # the service failed to answer; try again
    "E110": 2,  # bad name
    "E112": 2,  # nested launcher with restarts of its own
    "E116": 2,  # value out of range
    "E117": 2,  # unknown field, or not a job file
}
"""Error code -> exit code of the command line (`aegis explain CODE`)."""


class ErrorBody(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    hint: str = ""
    details: tuple[str, ...] = ()


class ErrorReply(msgspec.Struct, frozen=True):
    error: ErrorBody


class RequestRefused(Exception):
    """An error reply of the master; `code`, `message`, `hint` and `details` as sent."""

    def __init__(self, code: str, message: str, hint: str = "", details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.details = code, message, hint, details

    @property
    def exit_code(self) -> int:
        return EXIT.get(self.code, 1)

    def reply(self) -> ErrorReply:
        return ErrorReply(ErrorBody(self.code, self.message, self.hint, self.details))


class Submit(msgspec.Struct, frozen=True, omit_defaults=True):
    """`uid` is the client's, unguessable (uuid4): a repeat with the same uid is the same job."""

    spec: JobSpec
    uid: str
    suspended: bool = False
    v: int = WIRE_VERSION


class SubmitReply(msgspec.Struct, frozen=True, omit_defaults=True):
    job: str
    namespace: str
    uid: str
    seq: int
    """CTL sequence of the first head: skip views <= it."""
    existed: bool = False


class AdoptRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the job controller: daemons hold running workers of a job that the store of `present` does not know (`messages.Held`). A repeat is safe."""

    job: str
    uid: str
    namespace: str
    workers: int
    era: str
    """Of the store that was lost."""
    present: str
    """Era of the store as the asker knows it."""
    claims: tuple[Claim, ...]
    spec: msgspec.Raw
    v: int = WIRE_VERSION


class AdoptReply(msgspec.Struct, frozen=True, omit_defaults=True):
    job: str
    seq: int
    existed: bool = False


class ActionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """`requestId` (uuid4) makes a repeated request one action. `settings`: of `set` (max-retry) and of `inject` (worker, fault)."""

    job: str
    requestId: str
    who: str = ""
    reason: str = ""
    grace: float | None = None
    settings: dict[str, str] = {}
    v: int = WIRE_VERSION


class ActionReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The wish is recorded at `seq` of REPORTS; it has happened when the head's cursor is >= it. `headSeq`: skip views <= it."""

    job: str
    seq: int
    before: str
    """Phase at the time of asking."""
    headSeq: int
    duplicate: bool = False


class JobsRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    all: bool = False
    """Also jobs that have ended."""
    phase: str = ""
    user: str = ""
    limit: int = 200
    after: str = ""
    """Job id of the last item of the page before."""
    v: int = WIRE_VERSION


class JobRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    job: str
    workers: bool = True
    firstWorker: int = 0
    v: int = WIRE_VERSION


class EventsRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    job: str
    afterSeq: int = 0
    """0: the newest page; -1: from the beginning; else what came after."""
    limit: int = 200
    v: int = WIRE_VERSION


class JobSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    job: str
    name: str
    namespace: str
    phase: str
    workers: int
    present: int
    """Workers that are there (-1: not known from the head alone)."""
    recoverCount: int
    maxRetry: int
    incarnation: int
    step: int = -1
    lastReason: str = ""
    mode: str = "managed"
    failedReason: str = ""
    suspended: bool = False
    owner: str = ""
    user: str = ""
    gpuType: str = ""
    createdAt: int = 0  # ms
    phaseSince: int = 0  # ms
    exitCode: int | None = None
    errorNodes: int = 0
    uid: str = ""
    ettr: float = -1.0
    """Productive share of all its time so far, the queue included (0..1); -1 before the command ran first."""
    checkpointAt: int = 0  # ms, newest complete checkpoint of the present run


class Jobs(msgspec.Struct, frozen=True, omit_defaults=True):
    items: tuple[JobSummary, ...]
    seq: int
    """Highest CTL sequence this answer knows: a watcher skips views <= it."""
    more: bool = False
    v: int = WIRE_VERSION


class WorkerView(msgspec.Struct, frozen=True, omit_defaults=True):
    pod: str
    node: str = ""
    ip: str = ""
    state: str = ""
    """innerPhase, or `empty`, `suspect`, `leaving`."""
    finished: bool = False
    retries: int = 0
    attempt: int = 1
    reason: str = ""
    mark: str = ""
    exitCode: int | None = None
    ts: int = 0  # ms


class JobDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    summary: JobSummary
    command: tuple[str, ...]
    workers: tuple[WorkerView, ...]
    transitions: tuple[Transition, ...]
    errorNodes: tuple[ErrorNode, ...]
    retries: str
    """`1:0:0`"""
    seqNum: int
    cursor: int
    seq: int
    ledger: dict[str, int] = {}  # ms per state, up to now
    waiting: str = ""
    """Why it is not running, in one sentence; empty when it is."""
    moreWorkers: bool = False
    v: int = WIRE_VERSION


class StoredEvent(msgspec.Struct, frozen=True):
    seq: int
    event: JobEvent


class Events(msgspec.Struct, frozen=True, omit_defaults=True):
    items: tuple[StoredEvent, ...]
    seq: int
    """EVENTS sequence: ask again with `afterSeq`, or skip views <= it."""
    more: bool = False
    v: int = WIRE_VERSION


class Replica(msgspec.Struct, frozen=True, omit_defaults=True):
    replica: str
    service: str
    host: str = ""
    pid: int = 0
    jobs: int = 0


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    version: str
    era: str
    answeredBy: str
    replicas: tuple[Replica, ...]
    jobs: dict[str, int]
    """Jobs per phase."""
    unowned: int
    storeUsed: float
    """Share of CTL's max_bytes in use; 0.5 is an alarm, at 0.7 no job is accepted."""
    seq: int
    v: int = WIRE_VERSION


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """EVENTS `aegis.job.<j>.progress`: at most every 5 s, when it changed. Not part of the state."""

    job: str
    namespace: str
    incarnation: int
    step: int
    """Lowest step of the workers that said one."""
    stepMax: int
    rate: float  # steps per second since the message before; 0 = not known
    at: int  # ms
    reporting: int
    """Workers heard in the last 15 s."""
    v: int = WIRE_VERSION


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """DLQ `aegis.dlq.<service>.<stream>`: what did not decode, and why."""

    stream: str
    seq: int
    subject: str
    reason: str
    data: bytes
    at: int  # ms
    v: int = WIRE_VERSION


T = TypeVar("T", bound=msgspec.Struct)


def read_request(kind: type[T], data: bytes) -> T:
    """Decode a request; RequestRefused E107 names what did not fit. An empty body is a request with defaults."""
    try:
        return decode(kind, data or b"{}")
    except BadMessage as error:
        raise RequestRefused("E107", f"E107 request not understood: {error}", "update the command line, or see docs/messages.md") from None


def read_reply(kind: type[T], data: bytes) -> T:
    """Decode a reply of the master; RequestRefused when it is an error, BadMessage when it is neither."""
    if data.startswith(b'{"error"'):
        body = decode(ErrorReply, data).error
        raise RequestRefused(body.code, body.message, body.hint, body.details)
    return decode(kind, data)
