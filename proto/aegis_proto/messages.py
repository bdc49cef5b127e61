"""The wire messages (names of the seed, JSON by msgspec) and the type of `data` for each (type, phase).

Reads and writes nothing. `decode` refuses what is not a message of this or a lower version with `BadMessage`, never with anything else.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, TypeVar

import msgspec

from aegis_proto import WIRE_VERSION
from aegis_proto.phases import FactKind, MessageType
from aegis_proto.runs import RunInfo

MAX_REPORT = 8192
"""Bytes of one report; larger things travel by BLOBS."""


Number = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
"""An integer that every JSON reader takes as it is, and that fits into a float: what a tenant tells is computed with."""


class BadMessage(ValueError):
    """Not a message of ours: goes to the dead-letter stream."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One report of a worker (or, rendered for tools, one order). First seven fields: the seed's; the rest ours."""

    AegisName: str
    AegisNamespace: str
    podName: str  # "master" = an order to all
    type: MessageType
    phase: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")
    timeStamp: Number = 0  # ms
    v: Number = WIRE_VERSION
    uid: str = ""
    era: str = ""
    attempt: Number = 0
    boot: str = ""
    incarnation: Number = 0
    seqNum: Number = 0


class PendingData(msgspec.Struct, frozen=True, omit_defaults=True):
    """ACK without a round: "I am here". `running`/`incarnation` let a new era adopt a training that never stopped; one that has ended well by itself
    counts as running."""

    podIP: str = ""
    nodeName: str = ""
    running: bool = False
    incarnation: Number = -1
    exitCode: Number | None = None
    podUid: str = ""
    stopped: Number = -1
    checkPort: Number = 0
    """Of w0: a port where the workers could meet for the checks of a round; 0 = none."""


class AckData(msgspec.Struct, frozen=True, omit_defaults=True):
    """ACK of an order round, about a second after the order; none when the round was answered (Finish, Error) before: the answer says the same."""

    pid: Number = 0


class CheckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One check of one worker. First four fields: the seed's."""

    CheckType: str
    Pass: bool
    Result: str = ""
    TimeStamp: Number = 0  # ms
    duration: float = 0.0  # seconds
    node: str = ""
    code: str = ""  # machine-readable finding
    values: dict[str, float] = {}


class CheckResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """Finish of bootcheck or troubleshoot. Also says that the child's tree is gone, and where a run could listen."""

    results: tuple[CheckResult, ...] = ()
    addr: str = ""
    port: Number = 0
    treeGone: bool = True
    checkPort: Number = 0
    """Of w0: where the workers could meet in the next round of checks."""


class FinishData(msgspec.Struct, frozen=True, omit_defaults=True):
    """Finish of the command: all processes of this worker ended with 0."""

    exitCode: Number = 0
    step: Number = -1


class ErrorData(msgspec.Struct, frozen=True, omit_defaults=True):
    """Error: in `command`, the child failed; elsewhere, the worker could not diagnose."""

    reason: str = "error"  # phases.LostReason
    exitCode: Number | None = None
    signal: Number = 0
    rank: Number = -1
    message: str = ""  # one line, <= 500 characters
    diedAt: Number = 0  # ms
    ranFor: float = 0.0  # seconds
    pids: Number = 0


class StoppedData(msgspec.Struct, frozen=True, omit_defaults=True):
    """The child of `incarnation` and its whole tree are gone (or `clean` is false: something would not die)."""

    incarnation: Number = -1
    clean: bool = True
    leaving: bool = False
    exitCode: Number | None = None
    reason: str = ""
    """With `leaving`: `preempted` when the platform takes the pod away."""


class HangData(msgspec.Struct, frozen=True, omit_defaults=True):
    """`kind` hang | slow marks the pod; `cleared` withdraws the mark. `look` marks nobody: what the run looked like when the order was `hang`."""

    kind: str = "hang"
    cleared: bool = False
    silence: float = 0.0  # seconds
    rank: Number = -1
    message: str = ""
    sign: str = ""  # with `look`: waiting (in a collective) | elsewhere | "" where no stack could be taken


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Core NATS, every 5 s. Judged by arrival and by a rising (boot, n); never by comparing two clocks."""

    boot: str
    n: Number
    attempt: Number = 0
    incarnation: Number = 0
    seqNum: Number = 0
    running: bool = False
    step: Number = -1
    queued: Number = 0  # reports not yet acknowledged by the bus
    checkpoint: Number = -1  # step of the last complete checkpoint, where the training told it
    stall: float = -1.0  # seconds for which a save stopped the steps, of the last of which that is known; -1 = of none
    silence: float = -1.0  # seconds since the last sign of progress of this run, -1 = none yet
    quiet: float = -1.0  # seconds since anything was printed, -1 = nothing yet
    patience: float = 0.0  # seconds that the run may still be quiet: it said that it saves, evaluates, loads
    gap: float = 0.0  # longest of: 5 usual pauses between steps, 2 longest ones; 0 = not learned yet
    sign: str = ""  # how its processes look: stopped | blocked | busy | idle
    cpu: float = -1.0  # cores used since the last heartbeat
    gpu: float = -1.0  # percent of the GPU of its machine that is used least, -1 = not known


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the platform, a verdict or an authorised person says about a pod or a job. Never written by an agent."""

    kind: FactKind
    uid: str
    attempt: int = 0
    node: str = ""
    exitCode: int | None = None
    signal: int = 0
    at: int = 0  # ms, when it happened, by the teller's clock
    message: str = ""
    who: str = ""
    lastWord: str = ""  # termination message of the agent, JSON
    grace: float | None = None
    settings: dict[str, str] = {}
    step: int = -1
    clean: bool = True
    """With `gone`: false = killed, but something would not die (D state): it never runs again, yet may hold GPUs and ports of its node."""
    verified: bool = True
    """With `gone`: false = the platform has lost it from sight (its object was removed by force), and it may still run for a while."""
    notStarted: bool = False
    """With `gone`: the node could not start the agent at all; the job goes on without this node."""
    v: int = WIRE_VERSION


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """CTL `aegis.place.<job>.<pod>`: the key (uid, pod, attempt) and where it went."""

    uid: str
    pod: str
    attempt: int
    node: str
    slot: str
    at: int = 0
    released: bool = False
    v: int = WIRE_VERSION


class Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    """NODES `aegis.node.<n>.slot.<i>`: desired content of a slot. `job == ""` = empty. Read only by its daemon and the job controller."""

    job: str = ""
    uid: str = ""
    namespace: str = ""
    pod: str = ""
    attempt: int = 0
    workers: int = 0
    spec: msgspec.Raw = msgspec.Raw(b"null")  # state.JobSpec
    token: str = ""  # join token for exactly this (uid, pod, attempt)
    credentials: str = ""  # host:port of the gRPC service
    plainAddr: str = ""
    plainPort: int = 0
    stop: bool = False  # keep the record, end the process
    era: str = ""  # of the store in which it was placed
    deed: str = ""  # that it was placed here: see `Held`
    v: int = WIRE_VERSION


class Held(msgspec.Struct, frozen=True, omit_defaults=True):
    """HELD `aegis.node.<n>.held.<i>`: what runs in a slot whose record the store has lost, said again while that lasts. Nothing secret but the spec.

    `deed` is a MAC of the credentials service over everything here (`credapi.spec_digest` of the spec): whoever holds it was really given this
    worker of this job, in that era, so that a daemon cannot invent a job.
    """

    job: str
    uid: str
    namespace: str
    pod: str
    attempt: int
    workers: int
    era: str
    deed: str
    spec: msgspec.Raw = msgspec.Raw(b"null")  # state.JobSpec, to the byte as it was placed
    v: int = WIRE_VERSION


class NodeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Registration of a node daemon."""

    node: str
    host: str = ""
    addr: str = ""
    slots: int = 1
    gpus: int = 0
    gpuType: str = ""
    boot: str = ""
    labels: dict[str, str] = {}
    virtual: bool = False
    version: str = ""
    at: int = 0
    v: int = WIRE_VERSION


class SlotStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one slot of a node really holds."""

    slot: str
    job: str = ""
    uid: str = ""
    pod: str = ""
    attempt: int = 0
    state: str = "empty"  # empty | running | gone
    pid: int = 0
    exitCode: int | None = None
    signal: int = 0
    at: int = 0
    plain: bool = False
    lastWord: str = ""
    clean: bool = True
    message: str = ""
    notStarted: bool = False
    """With `gone`: the node could not start the agent at all (no room on its disk, no such program)."""


class NodeStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """FLEET `aegis.node.<n>.status`: everything the daemon holds, sent whole on every change."""

    node: str
    boot: str
    n: int
    slots: tuple[SlotStatus, ...] = ()
    at: int = 0
    v: int = WIRE_VERSION


class Taint(msgspec.Struct, frozen=True, omit_defaults=True):
    """NODES `aegis.node.<n>.taint`: exclusion of a node for all jobs, with reason and end."""

    node: str
    excluded: bool
    reason: str = ""
    by: str = ""
    verdict: str = ""
    at: int = 0
    until: int = 0  # ms; 0 = until lifted
    v: int = WIRE_VERSION


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finding with cause, suspect and evidence."""

    id: str
    service: str
    cause: str
    suspects: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    confidence: float = 0.0
    sentence: str = ""
    sentenceZh: str = ""
    job: str = ""
    incarnation: int = -1
    at: int = 0
    v: int = WIRE_VERSION
    nodes: tuple[str, ...] = ()  # suspect machines
    accused: tuple[str, ...] = ()  # those that a daemon, its check or the platform names: no other is ever excluded for this verdict
    firstLine: str = ""  # the first strong line, with whose it is
    read: tuple[str, ...] = ()
    state: str = ""  # of a link (`net.LinkInfo`), or of a job's network: bad | healthy; of a run that is only marked: hang
    codes: tuple[str, ...] = ()  # of the findings behind it; of a job's network its bad links
    history: tuple[str, ...] = ()  # what it shares with earlier failures of the job


class AegisLog(msgspec.Struct, frozen=True, omit_defaults=True):
    """Structured fault-tolerance log line (the seed's)."""

    PodName: str
    PodIP: str = ""
    NodeName: str = ""
    NodeIP: str = ""
    TimeStamp: int = 0
    Phase: str = ""
    Message: str = ""


class JobEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """EVENTS `aegis.job.<j>.event`: one decision, for people and tools. `eventId` lets a reader drop doubles."""

    eventId: str
    job: str
    namespace: str
    type: str
    time: str  # RFC 3339
    incarnation: int
    seqNum: int
    phase: str
    cause: str = ""
    pod: str = ""
    node: str = ""
    recoverCount: int = 0
    retries: str = ""
    message: str = ""
    messageZh: str = ""
    counted: bool = False
    run: RunInfo | None = None
    """With the event that begins a run; not with one that another owner published later."""
    v: int = WIRE_VERSION


class Era(msgspec.Struct, frozen=True, omit_defaults=True):
    """CTL `aegis.era`: id of this state store. A new one means: the store was created or restored, sequences and incarnations may have gone back."""

    era: str
    at: int = 0  # ms
    reason: str = ""  # created | restored
    salt: str = ""
    """Known to services only; part of the dedup ids of what several replicas may say: a foretold id can be taken by whoever publishes there."""
    v: int = WIRE_VERSION

    def dedup_id(self, content: str) -> str:
        """The same for every replica, and for nobody else."""
        return hashlib.sha256(f"{self.salt}|{content}".encode()).hexdigest()[:40]


class LeaseData(msgspec.Struct, frozen=True, omit_defaults=True):
    """LEASES `aegis.lease.<replica>`: this replica lives, and what it can read."""

    replica: str
    service: str = "master"
    reads: int = WIRE_VERSION
    host: str = ""
    pid: int = 0


DATA_TYPES: dict[tuple[str, str], type[msgspec.Struct]] = {
    ("ACK", ""): PendingData,
    ("ACK", "bootcheck"): AckData,
    ("ACK", "command"): AckData,
    ("ACK", "troubleshoot"): AckData,
    ("ACK", "stop"): StoppedData,
    ("ACK", "check"): CheckResult,
    ("Finish", "bootcheck"): CheckResponse,
    ("Finish", "troubleshoot"): CheckResponse,
    ("Finish", "command"): FinishData,
    ("Error", "bootcheck"): ErrorData,
    ("Error", "troubleshoot"): ErrorData,
    ("Error", "command"): ErrorData,
    ("Error", "hang"): HangData,
}
"""(type, phase) -> type of `data`. Anything else is a BadMessage."""

T = TypeVar("T", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def encode(obj: object) -> bytes:
    """JSON of any struct of this package."""
    return _encoder.encode(obj)


def decode(kind: type[T], data: bytes | bytearray | memoryview | msgspec.Raw) -> T:
    """Decode and check the version; BadMessage on anything that is not a `kind` we can read."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        obj = decoder.decode(bytes(data) if isinstance(data, msgspec.Raw) else data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"not a {kind.__name__}: {error}") from None
    if getattr(obj, "v", 0) > WIRE_VERSION:
        raise BadMessage(f"{kind.__name__} of version {obj.v}: this process reads up to {WIRE_VERSION}")
    return obj  # type: ignore[no-any-return]


def decode_data(message: Message) -> msgspec.Struct:
    """The typed `data` of a message; BadMessage when (type, phase) is unknown or the data does not fit."""
    kind = DATA_TYPES.get((message.type.value, message.phase))
    if kind is None:
        raise BadMessage(f"no data type for ({message.type.value}, {message.phase!r})")
    raw = bytes(message.data)
    return decode(kind, b"{}" if raw == b"null" else raw)


def raw(obj: object) -> msgspec.Raw:
    """A struct as the `data` of a Message."""
    return msgspec.Raw(_encoder.encode(obj))
