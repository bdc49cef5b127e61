"""What a verdict is made of: who said what about one failure of one job. Data only.

Two kinds of witness. A node daemon's event, a check that the daemon ran, and the platform's word are trusted. Lines of logs, flight records and
what an agent reports can all be written by a tenant: they explain, and never exclude a node by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aegis_parsers.causes import Cause, Line
from aegis_proto.looks import RasLooks, Stacks
from aegis_proto.messages import CheckResult

from aegis_lognexus.flight.report import Report


@dataclass(frozen=True, slots=True)
class Worker:
    """A place of the job at the time of the failure: `ranks` are global ranks."""

    pod: str
    node: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Log:
    """The classified lines of one rank (or of a worker as a whole, rank -1) and how many lines there were. Times in the lines are the tenant's."""

    pod: str
    rank: int
    found: tuple[Line, ...] = ()
    read: int = 0

    @property
    def name(self) -> str:
        return f"{self.pod}/r{self.rank}" if self.rank >= 0 else self.pod


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """What a daemon noticed on its machine around the failure. `at` in ms; `label` as in the pattern table (xid_79, ib_link_down, ...)."""

    node: str
    label: str
    cause: Cause
    text: str = ""
    at: int = 0
    trusted: bool = True
    """A daemon's word. False: the agent in the pod tells it, on the server's clock (`firstlayer`)."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the diagnosis after the failure. `by_daemon`: run by the node's daemon, not by the agent in the pod."""

    pod: str
    node: str
    result: CheckResult
    by_daemon: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """How a pod ended. `reason`: `phases.LostReason`. `platform`: told by the platform, not by the agent."""

    pod: str
    node: str
    reason: str
    message: str = ""
    at: int = 0
    platform: bool = False


@dataclass(frozen=True, slots=True)
class BadLink:
    """A bad link of the job, by netmon. `certain`: the job uses it, or it may (adaptive routing); `nodes`: hosts at links that are theirs alone."""

    text: str
    certain: bool = True
    nodes: tuple[str, ...] = ()
    at: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """All evidence about the end of one incarnation."""

    job: str
    incarnation: int
    at: int = 0
    workers: tuple[Worker, ...] = ()
    logs: tuple[Log, ...] = ()
    events: tuple[NodeEvent, ...] = ()
    checks: tuple[Check, ...] = ()
    losses: tuple[Loss, ...] = ()
    flight: Report | None = None
    not_asked: tuple[str, ...] = ()
    """Sources that could not be read at all, a sentence each."""
    links: tuple[BadLink, ...] = ()
    stacks: Mapping[str, Stacks] = field(default_factory=dict)
    """By worker: what its agent saw of a run that stood still."""
    ras: tuple[RasLooks, ...] = ()
    hang: bool = False
    """No failure yet: the run is marked as hung, and nothing is stopped."""

    def node_of(self, pod: str) -> str:
        return next((worker.node for worker in self.workers if worker.pod == pod), "")

    def pod_of(self, rank: int) -> str:
        return next((worker.pod for worker in self.workers if rank in worker.ranks), "")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one kind of evidence says: a cause, whom it suspects, how it knows. `accused`: nodes that trusted evidence names.

    `suspected`: a cause that it speaks for and cannot prove by itself; `cause` is then unknown.
    """

    cause: Cause
    source: str
    text: str
    pods: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    accused: tuple[str, ...] = ()
    confidence: float = 0.5
    more: tuple[str, ...] = ()
    suspected: Cause | None = None
