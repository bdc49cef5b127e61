"""The table of the phase machine: every edge, what starts it, what it does to the counts.

Owns the edges as data; reads and writes nothing else. Everything that affects which phase may follow which lives here.

`machine.step` is driven by this table: it never sets a phase itself but asks for `find(source, target, trigger)`, applies the counting rule of the
row, and enters the target. An edge that is not here is an AssertionError with the story of the job. `docs/phase-machine.md` is generated from it.

Priority, when several could fire: terminal; stop asked; budget spent; pod lost; Error; deadline; all done. Events are taken one at a time, and after
each the machine goes on until no edge is enabled, so one step may take several edges (RunCommand -> Restarting -> Troubleshooting).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from aegis_proto.phases import Phase

PORT_SECONDS = 30.0
"""EADDRINUSE later than this after the start is an error like another."""
PORT_RETRIES = 3
"""New ports in a row that are not counted; a counted failure gives them back."""
NOT_STARTED = (126, 127)
"""Exit codes of a command that cannot be started: the shell's for "may not be executed" and "not found"."""


class Trigger(StrEnum):
    """What starts an edge."""

    CREATED = "created"
    LOST = "lost"  # a pod was killed, restarted, or left by order
    PREEMPTED = "preempted"
    ERROR = "error"  # Error of a worker while the command ran
    PORT = "port"  # the port was taken within PORT_SECONDS of the start
    MARK_PAID = "markPaid"  # a hang or slow mark is paid: complete checkpoint, or hang deadline
    READY = "ready"  # every place filled, nobody on the way out
    PASSED = "passed"  # all answered, nobody has to leave
    LEAVE = "leave"  # a check or an Error orders pods to leave
    COMMON = "common"  # most fail alike: the round is repeated once
    FINISHED = "finished"  # all reported Finish
    BUDGET = "budget"
    BOOT = "boot"  # a place cannot start, or the checks fail everywhere twice
    PLACING = "placing"  # awaited pods did not come in time
    STOPPED = "stopped"
    COMMAND = "command"  # exit NOT_STARTED
    PLAIN = "plain"
    EXITED = "exited"  # a worker of a plain job ended with another code than 0
    SUSPEND = "suspend"
    RESTART = "restart"  # asked from outside
    ERA = "era"
    ADOPTED = "adopted"


class Counting(StrEnum):
    """What an edge does to retries, recoverCount and uncounted."""

    NONE = "–"
    COUNT = "retries of the place +1; recoverCount := min(recoverCount + 1, maxRetry); once per incarnation"
    ALIGN = "retries of all := recoverCount; uncounted := 0"
    UNCOUNTED = "uncounted of the place +1"
    SPENT = "recoverCount := maxRetry + 1"


@dataclass(frozen=True, slots=True)
class Edge:
    """One row. `source` None = the job does not exist yet."""

    source: Phase | None
    target: Phase
    trigger: Trigger
    counting: Counting
    text: str


P, B, R, X, T, S, F = (
    Phase.PENDING,
    Phase.BOOT_CHECKING,
    Phase.RUN_COMMAND,
    Phase.RESTARTING,
    Phase.TROUBLESHOOTING,
    Phase.SUCCEED,
    Phase.FAILED,
)
LIVE = (P, B, R, X, T)

EDGES: tuple[Edge, ...] = (
    Edge(None, P, Trigger.CREATED, Counting.NONE, "job created"),
    Edge(P, P, Trigger.LOST, Counting.UNCOUNTED, "a pod is lost (not while suspended, not by preemption)"),
    Edge(P, P, Trigger.PREEMPTED, Counting.NONE, "the platform takes a pod away"),
    Edge(P, B, Trigger.READY, Counting.NONE, "every place filled, all subscribed"),
    Edge(B, R, Trigger.PASSED, Counting.ALIGN, "all PASS"),
    Edge(R, S, Trigger.FINISHED, Counting.NONE, "all Finish (losing a pod whose Finish is in is no failure)"),
    Edge(R, X, Trigger.LOST, Counting.COUNT, "a pod was killed or restarted"),
    Edge(R, X, Trigger.ERROR, Counting.COUNT, "a worker reports Error while a place is empty"),
    Edge(R, T, Trigger.ERROR, Counting.COUNT, "a worker reports Error"),
    Edge(R, T, Trigger.MARK_PAID, Counting.COUNT, "a hang or slow mark is paid: next complete checkpoint, or hang deadline without progress"),
    Edge(R, X, Trigger.MARK_PAID, Counting.COUNT, "the same while a place is empty"),
    Edge(R, X, Trigger.PREEMPTED, Counting.NONE, "the platform takes a pod away"),
    Edge(R, T, Trigger.PORT, Counting.NONE, f"the port was taken within {PORT_SECONDS:g} s of the start: a new one, at most {PORT_RETRIES} times"),
    Edge(R, X, Trigger.PORT, Counting.NONE, "the same while a place is empty"),
    Edge(R, T, Trigger.RESTART, Counting.NONE, "restart asked from outside"),
    Edge(R, X, Trigger.RESTART, Counting.NONE, "the same while a place is empty"),
    Edge(B, X, Trigger.LOST, Counting.UNCOUNTED, "a pod is lost"),
    Edge(T, X, Trigger.LOST, Counting.UNCOUNTED, "a pod is lost"),
    Edge(X, X, Trigger.LOST, Counting.UNCOUNTED, "a pod is lost, or one that was ordered to leave has left"),
    Edge(B, X, Trigger.PREEMPTED, Counting.NONE, "the platform takes a pod away"),
    Edge(T, X, Trigger.PREEMPTED, Counting.NONE, "the platform takes a pod away"),
    Edge(X, X, Trigger.PREEMPTED, Counting.NONE, "the platform takes a pod away"),
    Edge(
        B,
        X,
        Trigger.LEAVE,
        Counting.NONE,
        "a pod fails a check of its node or container, or could not diagnose: it leaves (uncounted when it has left)",
    ),
    Edge(
        T,
        X,
        Trigger.LEAVE,
        Counting.NONE,
        "a pod fails a check of its node or container, or could not diagnose: it leaves (uncounted when it has left)",
    ),
    Edge(B, B, Trigger.COMMON, Counting.NONE, "more than half (two or more) fail alike: nobody leaves, the round is repeated once"),
    Edge(T, T, Trigger.COMMON, Counting.NONE, "more than half (two or more) fail alike: nobody leaves, the round is repeated once"),
    Edge(X, B, Trigger.READY, Counting.NONE, "every place filled, bootcheck never passed in this job"),
    Edge(X, T, Trigger.READY, Counting.NONE, "every place filled, bootcheck passed before (a new pod runs its bootcheck in it)"),
    Edge(T, R, Trigger.PASSED, Counting.ALIGN, "diagnosis done, child trees gone, all restart"),
    Edge(T, F, Trigger.BUDGET, Counting.SPENT, "some retries > maxRetry; waits for no pod and no report"),
    Edge(X, F, Trigger.BUDGET, Counting.SPENT, "some retries > maxRetry; waits for no pod and no report"),
    *(Edge(p, F, Trigger.BOOT, Counting.NONE, "a place's uncounted reaches its bound, or a round fails everywhere twice") for p in (P, B, X, T)),
    *(Edge(p, F, Trigger.PLACING, Counting.NONE, "awaited pods did not come in time") for p in (P, X)),
    *(Edge(p, F, Trigger.STOPPED, Counting.NONE, "stop asked from outside") for p in LIVE),
    Edge(R, F, Trigger.COMMAND, Counting.NONE, f"exit {'/'.join(map(str, NOT_STARTED))}: the command itself cannot be started"),
    *(
        Edge(p, R, Trigger.PLAIN, Counting.COUNT, "somebody runs without Aegis, or cannot be reached until the pending deadline: all run plain")
        for p in (P, X)
    ),
    Edge(R, F, Trigger.EXITED, Counting.NONE, "plain job: a worker ended with another code than 0"),
    *(Edge(p, P, Trigger.SUSPEND, Counting.NONE, "suspend; resume starts anew") for p in (B, R, X, T)),
    *(Edge(p, X, Trigger.ERA, Counting.NONE, "new era of the store: ask what runs, children keep running") for p in LIVE),
    Edge(X, R, Trigger.ADOPTED, Counting.ALIGN, "new era: all run the same incarnation, it is taken over untouched"),
)

_INDEX: dict[tuple[Phase | None, Phase, Trigger], Edge] = {(e.source, e.target, e.trigger): e for e in EDGES}


def find(source: Phase | None, target: Phase, trigger: Trigger) -> Edge | None:
    """The row for this edge, or None when the table does not have it."""
    return _INDEX.get((source, target, trigger))
