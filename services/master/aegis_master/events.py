"""Events and effects of the phase machine: the only things that go in and come out of `machine.step`.

Every event is already validated, typed and dated (ms, an argument: the machine has no clock). `index` is the place of a pod.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aegis_proto.messages import CheckResult
from aegis_proto.phases import LostReason


@dataclass(frozen=True, slots=True)
class PodReady:
    """PENDING of a pod: it is there, subscribed, and waits (or runs `incarnation`, when a new era adopts)."""

    index: int
    attempt: int
    boot: str
    ip: str = ""
    node: str = ""
    uid: str = ""
    running: bool = False
    incarnation: int = -1
    stopped: int = -1
    check_port: int = 0


@dataclass(frozen=True, slots=True)
class PodLost:
    """The present attempt of a pod is lost: platform fact, own word, or the verdict of the death judge. `gone`: verified gone, not only lost."""

    index: int
    attempt: int
    reason: LostReason = LostReason.KILLED
    at: int = 0
    exit_code: int | None = None
    node: str = ""
    gone: bool = False
    blame: str = ""
    """Code of the evidence of a daemon or check against the node, "" when there is none (exit 1 alone is none): the job does not use it again."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod that was lost, or was told to leave, is verified gone: its place may be filled by the next attempt."""

    index: int
    attempt: int
    preempted: bool = False
    """It left because the platform takes it away, in its own words."""


@dataclass(frozen=True, slots=True)
class PodRunning:
    """The platform confirms that the agent of this attempt runs (facts `placed`, `running`): all of them = the pending deadline starts."""

    index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Acked:
    index: int
    attempt: int
    boot: str
    seq_num: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The child tree of `incarnation` is gone (`clean`), or something would not die."""

    index: int
    attempt: int
    boot: str
    incarnation: int
    clean: bool = True


@dataclass(frozen=True, slots=True)
class Finished:
    """Finish of the present round. For check rounds: the results and where a run could listen."""

    index: int
    attempt: int
    boot: str
    incarnation: int
    seq_num: int
    results: tuple[CheckResult, ...] = ()
    addr: str = ""
    port: int = 0
    exit_code: int = 0
    tree_gone: bool = True
    step: int = -1
    check_port: int = 0


@dataclass(frozen=True, slots=True)
class Errored:
    """Error of the present round: in RunCommand the child failed, elsewhere the worker could not diagnose."""

    index: int
    attempt: int
    boot: str
    incarnation: int
    seq_num: int
    reason: LostReason = LostReason.ERROR
    exit_code: int | None = None
    signal: int = 0
    at: int = 0  # when it died
    ran_for: float = 0.0  # seconds
    message: str = ""


@dataclass(frozen=True, slots=True)
class Marked:
    """Hang or slow: marks only. `cleared` withdraws the mark at no cost."""

    index: int
    attempt: int
    boot: str
    incarnation: int
    kind: str = "hang"  # hang | slow
    cleared: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class Noticed:
    """A monitor of this worker saw something in what its run uses: GPUs that do nothing, memory that only grows. Told; nobody is excluded by it."""

    index: int
    attempt: int
    boot: str
    incarnation: int
    code: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Progressed:
    """A worker told a step of this incarnation: asked for at the first one only, for the ledger."""

    incarnation: int
    step: int


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A complete checkpoint of this incarnation exists: the safe point at which marks are paid."""

    incarnation: int
    step: int
    stall: int = -1
    """ms for which a save stopped the steps, the newest that is known; -1: none."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The deadline that stands in the head passed; ignored unless (kind, seqNum, incarnation) are the present ones."""

    kind: str
    seq_num: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class PlainFact:
    """An agent runs the command without Aegis (attempt 1, never managed)."""

    index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class PlainExit:
    """A worker of a plain job ended."""

    index: int
    attempt: int
    exit_code: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    who: str = ""
    reason: str = ""
    grace: float = -1.0  # seconds; below 0 = the specification's
    no_progress: bool = False
    """Asked by a rule, not by a person: the runs fail one after the other and nothing comes of them."""


@dataclass(frozen=True, slots=True)
class SuspendAsked:
    who: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    who: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """All workers restart in place (not counted), or a Failed/plain job is not revived: ignored then."""

    who: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SettingChanged:
    """`aegis job set`: max-retry only, here."""

    max_retry: int | None = None
    who: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class InjectAsked:
    """A fault on one's own job: told to the one worker, by the head; phases and counts change by what comes of it."""

    index: int
    id: str
    fault: str
    who: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SuspectChanged:
    """Silence alone: a flag, no count, no stop."""

    index: int
    attempt: int
    suspect: bool


@dataclass(frozen=True, slots=True)
class GapFound:
    """Reports were lost (cursor + 1 < first sequence): a new seqNum, all report again."""


@dataclass(frozen=True, slots=True)
class EraChanged:
    """New era of the store: adopt a running training instead of restarting it."""

    era: str
    message: str = ""
    """For the story, when there is more to say."""


@dataclass(frozen=True, slots=True)
class Healthy:
    """The job has been in RunCommand without a failure for spec.retryResetAfter seconds."""


Event = (
    PodReady
    | PodLost
    | PodGone
    | PodRunning
    | Acked
    | Stopped
    | Finished
    | Errored
    | Marked
    | Noticed
    | Progressed
    | Checkpointed
    | DeadlinePassed
    | PlainFact
    | PlainExit
    | StopAsked
    | SuspendAsked
    | ResumeAsked
    | RestartAsked
    | SettingChanged
    | InjectAsked
    | SuspectChanged
    | GapFound
    | EraChanged
    | Healthy
)


# --- effects: what the shell does after the commit; all are derivable from the state, so a lost effect is repaired by level -----------


@dataclass(frozen=True, slots=True)
class Note:
    """A line for people that is no transition (those are in `head.recent`): becomes a JobEvent and an AegisLog. `kind` is a stable code,
    `at` when it was so (ms since 1970)."""

    kind: str
    message: str
    index: int | None = None
    counted: bool = False
    details: dict[str, str] = field(default_factory=dict)
    at: int = 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """An event that changed nothing, and why: a metric label (stale attempt, stale round, ...)."""

    why: str


Effect = Note | Dropped
