"""Requests and answers about nodes and placement (`aegis.rpc.jobcontroller.>`), and the node heartbeat.

Reads and writes nothing. Every reply is the named struct or `{"error": {code, message, hint, details}}` (`api.read_reply`).

| subject | who | request | reply |
|---|---|---|---|
| aegis.rpc.jobcontroller.query.nodes[.<ns>] | reader | NodesQuery | NodesAnswer |
| aegis.rpc.jobcontroller.query.pending[.<ns>] | reader | PendingQuery | PendingAnswer |
| aegis.rpc.jobcontroller.query.record[.<ns>] | reader | RecordQuery | RecordAnswer |
| aegis.rpc.jobcontroller.do.{taint,untaint}.<ns> | operator | TaintRequest | TaintAnswer |
| aegis.rpc.jobcontroller.do.test.<ns> | operator | NodeTestRequest | NodeTestAnswer |
| aegis.rpc.jobcontroller.do.node-lost.<node> | operator | NodeLostRequest | NodeLostAnswer |
"""

from __future__ import annotations

import msgspec

from aegis_proto import WIRE_VERSION

SERVICE = "jobcontroller"
EXIT: dict[str, int] = {
    "E109": 3,  # no such node
    "E113": 1,  # more workers asked than nodes usable
    "E118": 7,  # the node is kept by another daemon
}
"""Error code -> exit code of the command line, beside those of `api.EXIT`."""


class NodeBeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Core NATS `aegis.node.<n>.hb`, every 5 s (every second in the first 15 s of a connection). Judged by arrival only."""

    boot: str
    n: int
    v: int = WIRE_VERSION


# --- queries -------------------------------------------------------------------------------------------------------------------


class NodesQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """`query.nodes`: all nodes, or the named ones; pages of at most `limit` by name after `after`."""

    nodes: tuple[str, ...] = ()
    after: str = ""
    limit: int = 200
    v: int = WIRE_VERSION


class SlotInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One slot as people see it: what it should hold and what it holds."""

    slot: str
    job: str = ""
    pod: str = ""
    attempt: int = 0
    state: str = "empty"  # empty | running | gone by the daemon's last word; starting: not yet said
    pid: int = 0
    exitCode: int | None = None
    clean: bool = True
    message: str = ""


class NodeInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node as `aegis node ls` shows it. `health`: ok | silent | unclean | excluded; `seenAgo`: seconds of silence."""

    node: str
    host: str = ""
    addr: str = ""
    health: str = "ok"
    seenAgo: float = 0.0
    slots: tuple[SlotInfo, ...] = ()
    free: int = 0
    jobs: tuple[str, ...] = ()
    gpus: int = 0
    gpuType: str = ""
    virtual: bool = False
    version: str = ""
    excluded: bool = False
    reason: str = ""
    by: str = ""
    until: int = 0  # ms; 0 = until lifted
    labels: dict[str, str] = {}
    risk: float = 0.0
    doubt: str = ""  # why there is a risk


class NodesAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`seq`: last sequence of stream NODES in this answer, for readers that go on with `aegis.view.node.>`; `more`: there is a next page."""

    nodes: tuple[NodeInfo, ...] = ()
    total: int = 0
    more: bool = False
    seq: int = 0
    v: int = WIRE_VERSION


class PendingQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """`query.pending`: why jobs still wait. One job, or all."""

    job: str = ""
    v: int = WIRE_VERSION


class NodeRefusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why this node cannot take a worker of this job."""

    node: str
    why: str  # excluded | silent | errorNode | notAsked | busy | sameJob | gpuType | unclean
    detail: str = ""


class JobPending(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job with places that cannot be filled now. `message` is the sentence of E113."""

    job: str
    namespace: str = "default"
    workers: int = 0
    waiting: tuple[str, ...] = ()  # pods without a place, at most 16
    waitingTotal: int = 0
    stopping: tuple[str, ...] = ()  # pods whose previous attempt is not yet known to be gone, at most 16
    usable: int = 0
    refusals: tuple[NodeRefusal, ...] = ()  # at most 64
    code: str = ""  # E113, or "" while the job controller is about to place
    message: str = ""


class PendingAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    jobs: tuple[JobPending, ...] = ()
    v: int = WIRE_VERSION


class RecordQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """`query.record`: what the platform says of the workers of a job."""

    job: str
    v: int = WIRE_VERSION


class WorkerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker as the platform has it. `at`: when it was placed, ms; `state` and `message` in the platform's own words."""

    pod: str
    attempt: int = 0
    node: str = ""
    place: str = ""  # slot, pod or step on that node
    at: int = 0
    state: str = ""
    message: str = ""


class RecordAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """In the order of workers, at most 1024."""

    platform: str = ""
    workers: tuple[WorkerRecord, ...] = ()
    v: int = WIRE_VERSION


# --- acts ----------------------------------------------------------------------------------------------------------------------


class TaintRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """`do.taint.<ns>` and `do.untaint.<ns>`: exclude a node for all jobs (running workers stay), or lift it. `seconds` 0 = until lifted."""

    node: str
    by: str
    reason: str = ""
    seconds: float = 86400.0
    verdict: str = ""
    dryRun: bool = False
    v: int = WIRE_VERSION


class TaintAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    node: str = ""
    before: str = ""  # ok | excluded (reason)
    after: str = ""
    until: int = 0  # ms
    running: tuple[str, ...] = ()  # job/pod that stay on the node
    v: int = WIRE_VERSION


class NodeLostRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """`do.node-lost.<node>`: a person says that the machine is off, so that none of its processes can live (power cut, machine taken away)."""

    by: str
    reason: str = ""
    dryRun: bool = False
    v: int = WIRE_VERSION


class NodeLostAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    node: str = ""
    told: tuple[str, ...] = ()  # job/pod/attempt
    v: int = WIRE_VERSION


class NodeTestRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """`do.test.<ns>`: have the daemon of a node run the deep tests (`deeptest.DeepTest`), each for `seconds`. `waits`: how many seconds it may
    wait for workers to go."""

    node: str
    by: str
    reason: str = ""
    seconds: float = 10.0
    waits: float = 0.0
    dryRun: bool = False
    v: int = WIRE_VERSION


class NodeTestAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The order's id, under which `aegis.node.<n>.event.test` tells what came out."""

    node: str = ""
    id: str = ""
    running: tuple[str, ...] = ()  # job/pod on the node now
    v: int = WIRE_VERSION
