"""Which nodes are bad: the risk of each (`aegis.node.<n>.risk`), and questions (`aegis.rpc.lemon.query.>`).

Reads and writes nothing.

| subject | who | message |
|---|---|---|
| aegis.node.<n>.risk | lemon | Risk |
| aegis.rpc.lemon.query.ranking[.<ns>] | reader | RankingQuery -> RankingAnswer |
| aegis.rpc.lemon.query.node[.<ns>] | reader | LemonQuery -> LemonAnswer |
| aegis.rpc.lemon.query.ledgers | reader | LedgersQuery -> LedgersAnswer |
"""

from __future__ import annotations

import msgspec

from aegis_proto import WIRE_VERSION
from aegis_proto.deeptest import DeepTest, DeepTestDone
from aegis_proto.messages import Taint, Verdict

SERVICE = "lemon"
DOUBTFUL = 0.3
"""A risk from which a node counts as doubtful: a job that minds goes elsewhere while it can."""


class Risk(msgspec.Struct, frozen=True, omit_defaults=True):
    """NODES `aegis.node.<n>.risk`: 0 (as good as any) to 1. `risk` = 1 - (1 - lemon)(1 - links)."""

    node: str
    risk: float
    lemon: float = 0.0  # probability of being a lemon
    links: float = 0.0  # how bad its own links are, by netmon
    probation: bool = False
    why: str = ""
    at: int = 0  # ms
    v: int = WIRE_VERSION


class RankingQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """`query.ranking`: worst first. `all`: also nodes without a failure."""

    all: bool = False
    limit: int = 500
    v: int = WIRE_VERSION


class LemonNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node. `state`: "" | suspect | drained | failed | relapsed | probation | lifted (docs/lemon.md); `since`: of the state."""

    node: str
    score: float = 0.0
    flagged: bool = False
    risk: float = 0.0
    state: str = ""
    since: int = 0  # ms
    failures: float = 0.0
    days: float = 0.0  # in jobs
    times: float = 0.0  # the fleet's rate
    reason: str = ""
    withheld: str = ""
    probation: bool = False
    signals: dict[str, float] = {}


class HistoryInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the ranking rests on."""

    replica: str = ""
    jobs: int = 0
    events: int = 0
    since: int = 0  # ms
    now: int = 0
    leftOut: int = 0
    problems: tuple[str, ...] = ()
    detector: str = ""
    window: float = 0.0  # seconds
    fleetRate: float = 0.0  # failures per 1000 node-days
    mode: str = ""
    note: str = ""
    """Why there is no ranking."""


class CauseShare(msgspec.Struct, frozen=True, omit_defaults=True):
    """Failures of the window in one group: node_hardware | network | software | contention | unknown."""

    group: str
    failures: float = 0.0
    share: float = 0.0  # of all failures
    causes: tuple[tuple[str, float], ...] = ()  # the commonest, in the words of those who told them


class RankingAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    nodes: tuple[LemonNode, ...] = ()
    total: int = 0
    flagged: int = 0
    history: HistoryInfo = HistoryInfo()
    causes: tuple[CauseShare, ...] = ()
    v: int = WIRE_VERSION


class LedgersQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """`query.ledgers`: of these jobs, or of all; pages by job id after `after`."""

    jobs: tuple[str, ...] = ()
    after: str = ""
    v: int = WIRE_VERSION


class LedgerSpan(msgspec.Struct, frozen=True, array_like=True):
    """Array-encoded: the order of the fields is the wire format; only append."""

    state: str  # phases.LedgerState
    start: int  # ms
    end: int
    stopped: bool = False  # a failure ended the run here


class JobLedger(msgspec.Struct, frozen=True, omit_defaults=True):
    """`gpus` 0: not known; `workers` are."""

    job: str
    workers: int = 0
    gpus: int = 0
    priority: int = 0
    cluster: str = ""
    spans: tuple[LedgerSpan, ...] = ()
    save: float = -1.0  # seconds for which a save stops training, as its workers told last; -1 = not known
    every: float = 0.0  # seconds between two complete checkpoints; 0 = not known


class LedgersAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    items: tuple[JobLedger, ...] = ()
    more: bool = False
    v: int = WIRE_VERSION


class LemonQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    node: str
    v: int = WIRE_VERSION


class LemonFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    at: int  # ms
    kind: str  # multi | single | node
    user: str = ""
    family: str = ""


class LemonChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a node turned bad, when that was noticed, when it recovered (0: not yet). ms."""

    onset: int
    alarm: int
    recovered: int = 0


class LemonAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node: its place in the fleet, its failures, what was decided (oldest first), done and found."""

    node: LemonNode
    below: dict[str, float] = {}  # share of nodes with a lower value, by signal
    failures: tuple[LemonFailure, ...] = ()
    changes: tuple[LemonChange, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    taint: Taint | None = None
    test: DeepTest | None = None
    result: DeepTestDone | None = None
    ticket: str = ""
    history: HistoryInfo = HistoryInfo()
    v: int = WIRE_VERSION
