"""What must hold in every simulated world, whatever fails: invariants of the machine at each step and commit, and what only the whole knows.

Sees each step of each master (`Watch`), each accepted write of the store, and the ground truth of what ran (`training`). `problems` is the verdict.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from aegis_master import invariants
from aegis_master.events import Event
from aegis_master.trace import Trace
from aegis_proto.messages import decode
from aegis_proto.phases import FailedReason, Mode, Phase
from aegis_proto.shards import count, places
from aegis_proto.shards import decode as decode_shard
from aegis_proto.state import Head, JobSpec, JobState, Transition
from simulation.training import PLAIN, Child

if TYPE_CHECKING:
    from simulation.client import Client
    from simulation.server import Message, Stream
    from simulation.world import World

History = tuple[JobState | None, list[Transition], set[int], int, Counter[str], Counter[str]]
LATE = 15.0
"""Seconds by which the news of a loss may be late: it is counted for the run in which it is heard."""
ASKED = {"restart": "restart", "suspend": "suspend"}
"""Cause of a transition -> verb of a fact: asked once, done at most once."""
RULES: dict[str, tuple[str, ...]] = {
    "AegisPhase": ("CountExact", "CountOncePerIncarnation", "FailsExactly", "SucceedIsTrue", "TerminalStays", "Ends"),
    "AegisMessages": ("MasterSeqNumMonotonic", "CountOnlyRealFailures", "NobodyRunsAlone"),
    "AegisOwner": ("StaleNeverWrites", "CountOnce", "DecidedStays"),
    "AegisSpares": ("OnePodPerPlace",),
    "": ("IncarnationMonotonic", "AttemptsMonotonic", "OneStory", "OneIncarnationRuns"),
}
"""Model -> its rules that are held here, by what was stored and by what really ran; those of a step are `aegis_master.invariants`."""
OWN = {
    "OneStory": "each line of the story begins where the one before ended, and the last one where the head is",
    "OneIncarnationRuns": "no child of one run starts while one of another run lives",
}
"""Rules that only a whole world can break."""


class Watch(Trace):
    """The trace of one master: told of every step it takes, committed or not. Its lines are kept when the world keeps a story."""

    def __init__(self, check: Check, who: str) -> None:
        super().__init__()
        self._check = check
        self._who = who
        self._lines = check.traces.setdefault(who, []) if check.world.story is not None else None

    def __bool__(self) -> bool:
        return True

    def _line(self, **line: Any) -> None:
        if self._lines is not None:
            self._lines.append(line)

    def write(self, before: JobState, event: Event, after: JobState, at: int) -> None:
        self._check.steps += 1
        self._check.world.coverage.events[type(event).__name__] += 1
        if self._lines is not None:
            super().write(before, event, after, at)
        now = max(at, after.head.ledger.since, after.head.createdAt)
        for name in invariants.broken_step(before, event, after, now):
            self._check.problem(f"{name} broken by a step of {self._who}: {event}")


class Check:
    """Of one world and its one job."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.problems: list[str] = []
        self.traces: dict[str, list[dict[str, Any]]] = {}
        """Master -> the lines of its trace; only in a world that keeps its story."""
        self.steps = 0
        self.commits = 0
        self.state: JobState | None = None
        """As stored."""
        self.counted: list[Transition] = []
        self.taken_back: set[int] = set()
        """Incarnations whose count a notice of preemption took back: nothing of them counts again."""
        self.used = 0
        """Counted failures that the budget has to bear."""
        self.asked: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.ordered: set[int] = set()
        """Incarnations that the store ever ordered to run."""
        self.harmed_at = -1.0
        """Virtual time of the last thing that may cost budget: a child, an agent or a machine was hurt, not only masters or the server."""

    def problem(self, text: str) -> None:
        if len(self.problems) < 20 and text not in self.problems:
            self.problems.append(text)
            self.world.tell("check", f"PROBLEM {text}")

    def harmed(self, seconds: float) -> None:
        """Something that may cost budget happens, from now on for so long."""
        self.harmed_at = max(self.harmed_at, self.world.loop.now + seconds)

    # --- the store -------------------------------------------------------------------------------------------------------------------

    def backup(self) -> History:
        return (self.state, list(self.counted), set(self.taken_back), self.used, self.asked.copy(), self.done.copy())

    def restored(self, history: History) -> None:
        """The committed history is that of the backup again."""
        self.state, counted, taken_back, self.used, asked, done = history
        self.counted, self.taken_back, self.asked, self.done = list(counted), set(taken_back), asked.copy(), done.copy()

    def stored(self, stream: Stream, messages: list[Message], client: Client | None) -> None:
        if stream.name != "CTL" or not messages[0].subject.endswith(".state") or not messages[0].data:
            return
        head = decode(Head, messages[0].data)
        before = self.state
        shards = list(before.shards) if before is not None else [()] * count(head.workerNum)
        spec = before.spec if before is not None else self.world.spec
        for message in messages[1:]:
            kind = message.subject.split(".")[3]
            if kind == "pods":
                k = int(message.subject.split(".")[4])
                shards[k] = decode_shard(message.data, places(head.workerNum, k))
            elif kind == "spec":
                spec = decode(JobSpec, message.data)
        self.state = after = JobState(head, tuple(shards), spec)
        self.commits += 1
        writer = client.process.name if client is not None else "?"
        if before is None:
            return
        for name in invariants.broken(after):
            self.problem(f"{name} broken by a commit of {writer}")
        self._owner(before.head, head, writer)
        self._history(before, after, writer)

    def _owner(self, before: Head, after: Head, writer: str) -> None:
        """Only the owner writes; ownership changes by one term at a time, and only to oneself or to nobody."""
        if after.owner == before.owner:
            if after.owner.replica != writer:
                self.problem(f"StaleNeverWrites: {writer} wrote a head of {after.owner}")
            return
        taken = after.owner.replica == writer
        given = after.owner.replica == "" and before.owner.replica == writer
        if after.owner.term != before.owner.term + 1 or not (taken or given):
            self.problem(f"StaleNeverWrites: {writer} made {before.owner} into {after.owner}")
        if (before.phase, before.seqNum, before.failures, before.cursor) != (after.phase, after.seqNum, after.failures, after.cursor):
            self.problem(f"StaleNeverWrites: {writer} took over and changed more than the owner")

    def _history(self, before: JobState, after: JobState, writer: str) -> None:
        old, new = before.head, after.head
        lines = fresh(old.recent, new.recent)
        phase = old.phase
        for line in lines:
            self.world.tell(writer, f"commits {line.phaseFrom}->{line.phaseTo} ({line.retries}) {line.cause} {line.podName} {line.message}")
            if line.phaseFrom is not phase:
                self.problem(f"OneStory: {line.phaseFrom} -> {line.phaseTo} follows {phase}")
            phase = line.phaseTo
            if line.counted:
                self._count(line)
            if line.cause in ASKED:
                self.done[line.cause] += 1
                if self.done[line.cause] > self.asked[ASKED[line.cause]]:
                    self.problem(f"CountOnce: {line.cause} done {self.done[line.cause]} times, asked {self.asked[ASKED[line.cause]]} times")
            if line.phaseTo is Phase.RUN_COMMAND:
                self.ordered.add(line.incarnation)
        if phase is not new.phase:
            self.problem(f"OneStory: the story ends in {phase}, the head is in {new.phase}")
        counted = sum(line.counted for line in lines)
        self.used += counted - self._returned(before, after, counted)
        if new.failures != self.used:
            self.problem(f"CountExact: failures {old.failures} -> {new.failures}, {counted} counted in the story, {self.used} in all")
        if new.era == old.era:
            if new.cursor < old.cursor and new.era == f"era{self.world.eras}":  # a restored store counts its reports from a lower number
                self.problem(f"DecidedStays: cursor {old.cursor} -> {new.cursor} by {writer}")
            if new.seqNum < old.seqNum or (new.order != old.order and new.order.seqNum <= old.order.seqNum):
                self.problem(f"MasterSeqNumMonotonic: {old.order.seqNum} -> {new.order.seqNum}")
            if new.incarnation < old.incarnation:
                self.problem(f"IncarnationMonotonic: {old.incarnation} -> {new.incarnation}")
        if any(a.attempt > b.attempt for a, b in zip(before.pods(), after.pods(), strict=True)):
            self.problem("AttemptsMonotonic")
        if old.phase.terminal and old.phase is not new.phase:
            self.problem(f"TerminalStays: {old.phase} -> {new.phase}")
        if new.phase.terminal and not old.phase.terminal:
            self._end(new)
            self.world.ended()

    def _returned(self, before: JobState, after: JobState, counted: int) -> int:
        """How much of the budget was given back in this commit: a count, to a notice of preemption; all that was used, after a healthy run."""
        head, last = after.head, self.counted[-1].incarnation if self.counted else -1
        taken_back = 0
        if head.countedPod == "" and head.countedIncarnation == last != -1 and last not in self.taken_back:
            self.taken_back.add(last)
            taken_back = 1
        healthy = before.head.phase is Phase.RUN_COMMAND and self.world.server.now_ms - before.head.runStartedAt >= after.spec.retryResetAfter * 1000
        whole = after.spec.retryResetAfter > 0 and healthy and head.failures == counted - taken_back
        return self.used + taken_back if whole else taken_back

    def _count(self, line: Transition) -> None:
        self.counted.append(line)
        if line.incarnation in self.taken_back:
            self.problem(f"CountOncePerIncarnation: {line.incarnation} was taken back, and counts again ({line.cause} {line.podName})")
        same = [other for other in self.counted if other.incarnation == line.incarnation]
        if len(same) > 1:
            self.problem(f"CountOncePerIncarnation: incarnation {line.incarnation} counted {len(same)} times")
        training = self.world.trainings.get(line.incarnation)
        if line.cause != "plain" and self.harmed_at < (training.began if training is not None else 0.0) - LATE:
            self.problem(f"CountOnlyRealFailures: incarnation {line.incarnation} counted ({line.cause} {line.podName}), nothing of it was hurt")

    def _end(self, head: Head) -> None:
        spent = self.used == head.maxRetry + 1
        if (head.failedReason is FailedReason.BUDGET) is not spent and head.mode is Mode.MANAGED:
            self.problem(f"FailsExactly: {head.phase} ({head.failedReason}) with {self.used} counted of maxRetry {head.maxRetry}")
        if head.phase is Phase.SUCCEED:
            incarnation = PLAIN if head.mode is Mode.PLAIN else head.incarnation
            training = self.world.trainings.get(incarnation)
            if training is None or len(training.finished) < head.workerNum:
                self.problem(f"SucceedIsTrue: finished {sorted(training.finished) if training else []} of {head.workerNum}")

    # --- what runs -------------------------------------------------------------------------------------------------------------------

    def starts(self, child: Child) -> None:
        """A child is about to start."""
        for other in self.world.children:
            if other.pod == child.pod:
                self.problem(f"OnePodPerPlace: {child.name} starts on {child.node} while {other.name} runs on {other.node}")
            elif other.incarnation != child.incarnation:
                self.problem(f"OneIncarnationRuns: {child.name} starts while {other.name} runs")
        if child.incarnation != PLAIN and child.incarnation not in self.ordered:
            self.problem(f"NobodyRunsAlone: {child.name} starts, nobody ordered incarnation {child.incarnation}")

    def ends(self, now: float) -> None:
        """The world is over."""
        state = self.state
        if state is None:
            self.problem("Ends: the job was never stored")
        elif not state.head.phase.terminal:
            head = state.head
            pods = [f"{p.attempt}{'p' if p.present else ''}{'g' if p.gone else ''}{'f' if p.finished else ''}" for p in state.pods()]
            self.problem(f"Ends: still {head.phase} at {now:.0f} s, owner {head.owner.replica}, order {head.order.phase} {head.seqNum}, pods {pods}")


def fresh(before: tuple[Transition, ...], after: tuple[Transition, ...]) -> tuple[Transition, ...]:
    """Lines of `after` behind the last of `before`."""
    if not before:
        return after
    for i in range(len(after) - 1, -1, -1):
        if after[i] == before[-1]:
            return after[i + 1 :]
    return after
