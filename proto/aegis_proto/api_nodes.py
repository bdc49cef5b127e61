"""Requests and answers about nodes and placement (`aegis.rpc.jobcontroller.>`), and the node heartbeat.

Reads and writes nothing. Every answer carries either its content or `error` (the codes of INTERFACE.md §6), never both.
"""

from __future__ import annotations

import msgspec

from aegis_proto import WIRE_VERSION


class NodeError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused: `E113 8 workers asked ...`, and what to do."""

    code: str
    message: str
    hint: str = ""


class NodeBeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Core NATS `aegis.node.<n>.hb`, every 5 s (every second in the first 15 s of a connection). Judged by arrival only."""

    boot: str
    n: int
    v: int = WIRE_VERSION


# --- queries -------------------------------------------------------------------------------------------------------------------


class NodesQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """`query.nodes`: all nodes, or the named ones."""

    nodes: tuple[str, ...] = ()
    v: int = WIRE_VERSION


class SlotInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One slot as people see it: what it should hold and what it holds."""

    slot: str
    job: str = ""
    pod: str = ""
    attempt: int = 0
    state: str = "empty"  # empty | running | gone, by the daemon's last word
    pid: int = 0
    exitCode: int | None = None
    clean: bool = True
    message: str = ""


class NodeInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node as `aegis node ls` shows it. `health`: ok | silent | unclean | excluded; `seenAgo` in seconds, -1 = never by this replica."""

    node: str
    host: str = ""
    addr: str = ""
    health: str = "ok"
    seenAgo: float = -1.0
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


class NodesAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`seq`: last sequence of stream NODES that this answer contains, for readers that go on with `aegis.view.node.>`."""

    nodes: tuple[NodeInfo, ...] = ()
    seq: int = 0
    error: NodeError | None = None
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
    error: NodeError | None = None
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
    error: NodeError | None = None
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
    error: NodeError | None = None
    v: int = WIRE_VERSION
