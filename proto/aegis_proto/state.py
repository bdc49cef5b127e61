"""The state of a job: a head and shards of pods.

Frozen structs: the phase machine makes new ones and leaves the old; a shard is dirty when it is another object than before.
Sizes measured by `bench/commit_scale.py`: the head stays <= 16 KB, a shard of 256 pods <= 16 KB as stored (`aegis_proto.shards`).
"""

from __future__ import annotations

import msgspec

from aegis_proto import WIRE_VERSION
from aegis_proto.phases import FailedReason, LedgerState, Mode, OrderPhase, Phase

SHARD = 256
"""Pods per shard."""
RECENT = 16
"""Transitions kept in the head, so that a reader of STORY can heal a gap."""


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Which replica may write the head, and for the how-many-th time ownership changed."""

    replica: str = ""
    term: int = 0


class Deadline(msgspec.Struct, frozen=True):
    """A duration, measured from the server's timestamp of the commit that set it (`since` = seqNum and incarnation it belongs to)."""

    kind: str  # placing | round | hang | pending
    seconds: float
    seqNum: int
    incarnation: int
    setAt: int
    """Server time (ms since 1970) of the commit that set it; 0 in the commit itself, filled by the owner when it reads it back."""


class ErrorNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node this job does not use until `until`, or of which a monitor noticed something. The four of the seed: pod, node, reason code, time."""

    name: str
    reason: str
    timeStamp: int  # ms
    podName: str = ""
    until: int = 0  # ms; 0 = until the job ends
    noted: bool = False  # noticed by a worker's monitor: told, and the node is used as before

    def avoided(self, now: int) -> bool:
        """Whether the job keeps off the node at `now` (ms)."""
        return not self.noted and (self.until == 0 or self.until > now)


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """What everybody is asked to do. Part of the head: decided = ordered, in one message.

    `attempts` names the attempt of every place as runs `[attempt, count]` in pod order; an agent acts only on an order that names its own.
    `exceptions` maps a pod name to another order phase (hangWithQuit for a pod that leaves).
    """

    phase: OrderPhase
    seqNum: int
    incarnation: int
    attempts: tuple[tuple[int, int], ...] = ()
    exceptions: dict[str, OrderPhase] = {}
    masterAddr: str = ""
    """Where rank 0 listens: its store in a run, in a round of checks where all workers meet."""
    masterPort: int = 0
    exitCode: int = 0
    """With `quit`: the code the agents leave with."""
    grace: float = -1.0
    """With `quit` and `stop`: seconds between SIGTERM and SIGKILL, when who asked for the stop named them, or a pod is preempted (then all have the
    grace of preemption to save); below 0 = the specification's."""


class Transition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the story of a job."""

    timeStamp: int  # ms
    phaseFrom: Phase
    phaseTo: Phase
    seqNum: int
    incarnation: int
    recoverCount: int
    retries: str
    """`1:0:0`, at most 16 places, then `...` (the odd ones first)."""
    cause: str
    """Short code: LostReason, or ready, pass, finish, deadline, stop ..."""
    podName: str = ""
    nodeName: str = ""
    message: str = ""
    counted: bool = False
    messageZh: str = ""


class Ledger(msgspec.Struct, frozen=True):
    """Milliseconds spent in each state so far, and the state that runs now. Closed by the next transition."""

    state: LedgerState = LedgerState.QUEUED
    since: int = 0  # ms
    totals: dict[str, int] = {}
    charged: dict[str, int] = {}
    """The same milliseconds, but productive ones, by who caused them: start, hardware, user, platform, operator, aegis."""
    who: str = "start"
    """Who is charged for the state that runs now."""
    safe: int = 0
    """Productive milliseconds that need not be done again: as of the start of the run, and of each complete checkpoint."""


class Tally(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many places are ... : kept with every change of a pod, so that no report costs a walk over all pods."""

    filled: int = 0  # boot known
    placed: int = 0  # platform confirms, or filled
    finished: int = 0  # Finish of the present round is in
    answered: int = 0  # Finish or Error of the present round is in
    failing: int = 0  # answered with Error or a failed check
    quitting: int = 0  # ordered to leave
    marked: int = 0  # hang or slow
    hung: int = 0  # hang


class Pod(msgspec.Struct, frozen=True, array_like=True):
    """One place of the job. Array-encoded: the order of the fields is the wire format; only append."""

    ip: str = ""
    node: str = ""
    innerPhase: Phase = Phase.PENDING
    finished: bool = False
    retries: int = 0
    reason: str = ""  # lastFailedReason, <= 64 characters
    ts: int = 0  # ms, updatedTimestamp
    attempt: int = 1
    boot: str = ""  # "" = place not filled
    uid: str = ""  # platform's id of the pod, where it has one
    stopped: int = -1  # incarnation whose tree is verified gone
    acked: int = 0  # seqNum last acknowledged
    suspect: bool = False
    toQuit: bool = False
    mark: str = ""  # "" | hang | slow
    uncounted: int = 0
    exitCode: int | None = None  # of the last run of the command
    gone: bool = False
    """The present attempt is known to be gone (process, tree): a higher attempt may be placed. False while it may still live."""
    errored: bool = False
    """Reported Error in the present round (could not diagnose)."""
    failed: str = ""
    """Code of the check that failed in the present round; decided on when the round ends."""
    pin: str = ""
    """Node wished for the next attempt (fresh container on the same machine); a wish, no more."""
    oldBoot: str = ""
    """The boot before this one: its late "I am here" is no news."""
    placed: bool = False
    """The platform confirms that the present attempt's agent runs (or the agent said so itself)."""
    pairs: tuple[tuple[int, float], ...] = ()
    """(place, speed as a share of the peers' median; 0 = failed) of each test with one other worker in the present round; at most 8."""

    @property
    def present(self) -> bool:
        return self.boot != ""


class JobSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a user submits. `validate` (in `job.py`) gives the errors, with codes that `aegis explain` knows."""

    name: str
    command: tuple[str, ...] = ()
    """The user's command line as argv; `("sh", "-c", text)` for `-c text`."""
    namespace: str = "default"
    env: dict[str, str] = {}
    cwd: str = ""
    workers: int = 1
    nprocPerNode: int = 1
    maxRetry: int = 3
    retryResetAfter: float = 0.0  # seconds of healthy time that give the budget back; 0 = never (the seed's rule)
    spares: int = 0
    gpuType: str = ""
    priority: int = 0
    cluster: str = ""
    user: str = ""
    family: str = ""
    riskTolerance: str = "normal"  # low | normal | high
    allowInject: bool = False
    actions: str = "act"  # observe | advise | act: what may be done to nodes; the fleet's mode or stricter
    slowNodeWait: float = 7200.0  # seconds that a slow worker is waited for to save; then the run keeps going with it
    stopGrace: float = 15.0  # seconds
    preemptGrace: float = 300.0
    hangTimeout: float = 600.0
    hangSilence: float = 0.0  # seconds without progress until a run is marked as hung; 0 = learned from its steps, at most hangTimeout
    firstStepTimeout: float = 3600.0
    noProgressRuns: int = 3
    """Failed runs in a row without a new checkpoint after which the job stops; 0 = never. Not before a checkpoint was seen in this job."""
    placingTimeout: float = 1800.0
    pendingTimeout: float = 600.0
    roundTimeout: float = 600.0
    maxUncounted: int = 3
    checkpointDir: str = ""
    nodes: tuple[str, ...] = ()  # only these nodes, when given
    exclude: tuple[str, ...] = ()
    masterPortRange: tuple[int, int] = (20000, 29999)
    labels: dict[str, str] = {}
    warm: bool = False
    """Each worker keeps an interpreter with the packages of the previous run imported: restarts do not import them again."""


class Inject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fault that the job's owner asked for, of one attempt in one run. Done once: `id` is the request's."""

    id: str
    pod: str
    attempt: int
    incarnation: int
    fault: str


class Head(msgspec.Struct, frozen=True):
    """Everything of a job but its pods. CAS on this message is the fence."""

    job: str
    name: str
    namespace: str
    uid: str
    workerNum: int
    maxRetry: int
    v: int = WIRE_VERSION
    era: str = ""
    owner: Owner = Owner()
    cursor: int = 0
    """Stream sequence of the last applied message of REPORTS."""
    phase: Phase = Phase.PENDING
    mode: Mode = Mode.MANAGED
    recoverCount: int = 0
    shouldQuit: bool = False
    failedReason: FailedReason | None = None
    seqNum: int = 0
    incarnation: int = 0
    """Number of the present run of the command: 0 until and during the first."""
    started: bool = False
    """RunCommand was entered at least once."""
    booted: bool = False
    """BootChecking was passed once in this job."""
    countedIncarnation: int = -1
    countedPod: str = ""
    """Who holds the count of `countedIncarnation`; may move once until alignment."""
    countedEvidence: int = 0
    """Strength of the evidence that placed the count (see `aegis_master.machine`)."""
    countMoved: bool = False
    failures: int = 0
    """Counted failures since the budget was last given back = max(retries). Decide on this, never on the capped recoverCount."""
    stopOrderAt: int = 0  # ms; a loss after it never moves a count
    runSeqNum: int = 0
    """seqNum with which the present (or last) run was ordered; reports of it carry a number in [runSeqNum, stopSeqNum)."""
    stopSeqNum: int = 0
    roundSeqNum: int = 0
    """seqNum with which the present round began; a repeat of the order (gap, hang) does not begin a round."""
    adopting: bool = False
    """New era: waiting for everybody to say what runs."""
    adoptIncarnation: int = -2  # what all said so far run; -2 nobody yet, -1 no common answer
    adoptMax: int = -1
    massQuitRounds: int = 0
    portRetries: int = 0
    suspended: bool = False
    masterAddr: str = ""
    masterPort: int = 0
    checkAddr: str = ""
    checkPort: int = 0
    """Where the workers meet for the next round of checks; 0 = nowhere."""
    deadline: Deadline | None = None
    counts: dict[str, int] = {}
    """Pods per innerPhase."""
    tally: Tally = Tally()
    errorNodes: tuple[ErrorNode, ...] = ()  # the 64 newest
    errorNodesTotal: int = 0
    order: Order = Order(OrderPhase.WAIT, 0, 0)
    recent: tuple[Transition, ...] = ()
    ledger: Ledger = Ledger()
    exitCode: int | None = None
    createdAt: int = 0  # ms
    runStartedAt: int = 0  # ms, entry of the present RunCommand
    step: int = -1
    tellsSteps: bool = False
    """A worker told a step at least once: each further run is restoring until its first step."""
    inject: Inject | None = None
    checkpointStep: int = -1
    fruitless: int = 0
    """Counted failures since the newest checkpoint came."""
    checkpointAt: int = 0  # ms, last complete checkpoint of the present run
    saveStall: int = -1  # ms for which a save stopped the steps, of the last of which a worker told it
    gpuType: str = ""
    user: str = ""


class HeadView(msgspec.Struct, frozen=True):
    """What an agent reads of a head: the same message, the rest is skipped unread. Most of a head is for people and owners."""

    uid: str
    order: Order
    era: str = ""
    v: int = WIRE_VERSION
    roundSeqNum: int = 0
    inject: Inject | None = None


class JobState(msgspec.Struct, frozen=True):
    """Head, shards and the (fixed) specification, as the phase machine sees them. Never sent as a whole."""

    head: Head
    shards: tuple[tuple[Pod, ...], ...]
    spec: JobSpec

    def pod(self, index: int) -> Pod:
        return self.shards[index // SHARD][index % SHARD]

    def pods(self) -> list[Pod]:
        return [pod for shard in self.shards for pod in shard]

    def with_pod(self, index: int, pod: Pod) -> JobState:
        k, i = divmod(index, SHARD)
        shard = self.shards[k]
        new = (*shard[:i], pod, *shard[i + 1 :])
        return JobState(self.head, (*self.shards[:k], new, *self.shards[k + 1 :]), self.spec)

    def with_head(self, **changes: object) -> JobState:
        return JobState(msgspec.structs.replace(self.head, **changes), self.shards, self.spec)


def empty_shards(worker_num: int) -> tuple[tuple[Pod, ...], ...]:
    """Shards of `worker_num` empty places."""
    return tuple((Pod(),) * min(SHARD, worker_num - start) for start in range(0, worker_num, SHARD))
