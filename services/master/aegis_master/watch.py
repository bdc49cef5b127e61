"""Watching the workers of one job: heartbeats, silence, missing acknowledgements, progress. The glue between the bus and the pure `judge`.

Reads core heartbeats and, for a silent worker, the platform's last word in REPORTS; writes progress. What it finds is stepped by the owner.
"""

from __future__ import annotations

import time

import msgspec
import structlog
from aegis_bus.connection import Bus, Msg
from aegis_bus.errors import BusError
from aegis_proto import subjects
from aegis_proto.api import Progress
from aegis_proto.ids import pod_index, pod_name
from aegis_proto.messages import BadMessage, Fact, Heartbeat, decode
from aegis_proto.phases import FactKind, LostReason, Mode, Phase
from aegis_proto.state import Head, JobState

from aegis_master import counting, metrics
from aegis_master.clock import ServerClock
from aegis_master.events import Marked, Note
from aegis_master.intake import Beside, Taken
from aegis_master.judge import AskPlatform, Dead, Judge, Suspect
from aegis_master.publish import Publisher
from aegis_master.rounds import check_name
from aegis_master.settings import OwnerSettings
from aegis_master.stall import Stall

log = structlog.get_logger("aegis.master.watch")
_heartbeat = msgspec.json.Decoder(Heartbeat)
ANSWERING, PATIENCE = 0.5, 5.0
"""While answers still come (seconds since the last one), an order is not repeated to all, for at most so many times `ack_after`."""
MOST_STALL = 86_400.0
"""Seconds; what a worker tells beyond is no save."""
MOST_WORDS = 500
"""Characters of what a check says, in a line for people."""
ACKED_ROUNDS = frozenset({Phase.BOOT_CHECKING, Phase.RUN_COMMAND, Phase.TROUBLESHOOTING})


class Watch:
    """Of one job, by its owner."""

    def __init__(self, bus: Bus, publisher: Publisher, clock: ServerClock, settings: OwnerSettings, job: str) -> None:
        self.bus = bus
        self.publisher = publisher
        self.clock = clock
        self.settings = settings
        self.job = job
        self.judge = Judge(settings.judge, time.monotonic())
        self.stall = Stall(time.monotonic())
        self._marked_by_us: set[int] = set()
        self._marked_by_them: set[int] = set()
        self._beside_told: set[tuple[int, str]] = set()
        self._slow_since: dict[int, float] = {}
        self._incarnation = -1
        self.checkpoint = -1
        """Newest complete checkpoint (step) that a worker told in the present incarnation."""
        self.save_stall = -1
        """ms for which a save stopped the steps, by the last worker that knew it."""
        self._followed: object = None
        self._order_at = self._answered_at = time.monotonic()
        self._order_seq = -1
        self._repeats = 0
        self._progress_at = 0.0
        self._progress: tuple[int, int, int] = (-1, -1, -1)

    # --- what is heard ---------------------------------------------------------------------------------------------------------------

    def on_heartbeat(self, msg: Msg) -> None:
        """One heartbeat; the cheapest path of the service."""
        try:
            beat = _heartbeat.decode(msg.data)
            index = int(msg.subject[msg.subject.rindex(".") + 2 :])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            _BAD.inc()
            return
        step = beat.step if beat.incarnation == self._incarnation else -1
        counted = self.judge.heartbeat(index, beat.attempt, beat.boot, beat.n, now=time.monotonic(), step=step)
        if counted:
            self.stall.beat(index, beat, time.monotonic())
        if counted and beat.incarnation == self._incarnation and beat.checkpoint > self.checkpoint:
            self.checkpoint = beat.checkpoint
        if counted and 0 <= beat.stall < MOST_STALL:
            self.save_stall = round(1000 * beat.stall)
        (_COUNTED if counted else _OTHER).inc()

    def take(self, taken: Taken) -> None:
        """What a report or fact says about who lives."""
        now = time.monotonic()
        if taken.heard >= 0:
            self.judge.heard(taken.heard, now)
            self._answered_at = now
        if taken.peer_error >= 0:
            self.judge.peer_error(taken.peer_error, now)
        if taken.look is not None:
            self.stall.looked(taken.look.index, taken.look.sign, taken.look.where)
        if taken.marks >= 0:
            self._marked_by_them.add(taken.marks)
        if taken.word is not None:
            self.judge.platform(taken.word.index, taken.word.attempt, taken.word.running, now)

    def beside(self, state: JobState, beside: Beside) -> tuple[Note, ...]:
        """A check beside a run that stands still: measured; told when it failed, once per worker and check while it stands."""
        index, result = beside.index, beside.result
        check = check_name(result)
        if check not in metrics.KNOWN or (index, check) in self._beside_told:
            return ()
        self._beside_told.add((index, check))
        metrics.checked(state.head, (result,))
        if result.Pass:
            return ()
        words = f"{pod_name(index)} failed {check}: {result.Result[:MOST_WORDS]} (beside the run, which stands still)"
        return (Note("check", words, index, details={"check": check, "node": state.pod(index).node}, at=beside.at),)

    def highest_step(self) -> int:
        """Highest step that a worker told in the present incarnation, -1 = none."""
        return self.judge.steps(time.monotonic())[1]

    # --- each second -----------------------------------------------------------------------------------------------------------------

    async def tick(self, state: JobState, now: float) -> list[Suspect | Dead | Marked]:
        """Who became suspect, dead or hung, or advances again; also tells progress."""
        head = state.head
        self._follow(state, now)
        if not head.tally.hung:
            self._beside_told.clear()
        marks = self._marks(state, now)
        if (witness := witness_of(head)) >= 0:
            self.judge.peer_error(witness, now)
        found: list[Suspect | Dead | Marked] = [*marks]
        for finding in self.judge.tick(now):
            if isinstance(finding, AskPlatform):
                await self._ask_platform(finding.index, finding.attempt)
            else:
                found.append(finding)
        await self._tell_progress(head, now)
        return found

    def _marks(self, state: JobState, now: float) -> list[Marked]:
        """What the marks of a hang should be and are not. Those that a worker asked for itself are its own."""
        head = state.head
        if head.phase is not Phase.RUN_COMMAND or head.mode is not Mode.MANAGED or not self.judge.listening(now):
            return []
        present = {i: pod for i, pod in enumerate(state.pods()) if pod.present and not pod.finished and not pod.toQuit}
        hung = self.stall.tick(state.spec, present, now)
        if hung is not None and (waiting := [i for i in present if i not in hung.indexes]):
            self.judge.peer_error(waiting[0], now)  # it is missed by others, should it be silent
        wanted = set(hung.indexes) if hung is not None else set()
        if hung is not None:  # by whoever owned this job before: the same silence
            self._marked_by_us |= {i for i, pod in present.items() if pod.mark == "hang"}
        marks = []
        for i, pod in present.items():
            if i in wanted and not pod.mark:
                self._marked_by_us.add(i)
                why = hung.why if hung is not None else ""
                marks.append(Marked(i, pod.attempt, pod.boot, head.incarnation, message=f"({why})"))
        for i, pod in present.items():
            if i not in wanted and pod.mark == "hang" and i in self._marked_by_us - self._marked_by_them:
                marks.append(Marked(i, pod.attempt, pod.boot, head.incarnation, cleared=True))
        slow = {i for i, pod in present.items() if pod.mark == "slow"}
        self._slow_since = {i: self._slow_since.get(i, now) for i in slow}
        for i in slow:
            if now - self._slow_since[i] >= state.spec.slowNodeWait:  # nothing was saved: it is kept going with
                pod = present[i]
                why = f"(no checkpoint within {state.spec.slowNodeWait:g} s: kept)"
                marks.append(Marked(i, pod.attempt, pod.boot, head.incarnation, kind="slow", cleared=True, message=why))
        return marks

    def _follow(self, state: JobState, now: float) -> None:
        """Who is to be watched: who is there, while the job is managed."""
        if state.head.incarnation != self._incarnation:
            self._incarnation = state.head.incarnation
            self.checkpoint = -1
            self.judge.forget_steps()
            self._marked_by_us, self._marked_by_them = set(), set()
            ran_for = (self.clock.now_ms() - state.head.runStartedAt) / 1000 if state.head.runStartedAt else 0.0
            self.stall.follow(self._incarnation, now, max(0.0, ran_for))
        if state.shards is self._followed:
            return
        self._followed = state.shards
        watched = state.head.mode is Mode.MANAGED and not state.head.phase.terminal
        pods = enumerate(state.pods()) if watched else ()
        self.judge.follow(((i, pod.attempt, pod.boot, pod.suspect) for i, pod in pods if pod.present and not pod.gone), now)

    async def _ask_platform(self, index: int, attempt: int) -> None:
        """The platform's last word about a silent pod, said before this replica listened."""
        now = time.monotonic()
        try:
            item = await self.bus.get("REPORTS", subjects.fact(self.job, pod_name(index)))
            fact = decode(Fact, item.data) if item is not None else None
        except (BusError, BadMessage) as error:
            log.info("no last word of the platform", job=self.job, pod=pod_name(index), error=str(error))
            fact = None
        if fact is not None and fact.attempt == attempt and fact.kind in (FactKind.RUNNING, FactKind.NODE_SILENT):
            self.judge.platform(index, attempt, fact.kind is FactKind.RUNNING, now)
        else:
            self.judge.platform_unknown(index, attempt, now)

    def missing_acks(self, state: JobState, now: float) -> bool:
        """True when the present order is to be published again: a round order that somebody present has not acknowledged."""
        order = state.head.order
        if order.seqNum != self._order_seq:
            self._order_seq, self._order_at, self._repeats = order.seqNum, now, 0
            return False
        settings = self.settings
        if state.head.phase not in ACKED_ROUNDS or state.head.mode is not Mode.MANAGED or self._repeats >= settings.ack_repeats:
            return False
        waited = now - self._order_at
        if waited < settings.ack_after or (now - self._answered_at < ANSWERING and waited < PATIENCE * settings.ack_after):
            return False
        if all(pod.acked >= order.seqNum or not pod.present or pod.finished for shard in state.shards for pod in shard):
            return False
        self._repeats += 1
        self._order_at = now
        return True

    async def _tell_progress(self, head: Head, now: float) -> None:
        low, high, live = self.judge.steps(now)
        said = (head.incarnation, low, high)
        if low < 0 or said == self._progress or now - self._progress_at < self.settings.progress:
            return
        before, since = self._progress, now - self._progress_at
        rate = max(0.0, (low - before[1]) / since) if before[0] == head.incarnation and before[1] >= 0 else 0.0
        if low > before[1]:
            metrics.LAST_STEP.labels(self.job).set(time.time())
        metrics.STEP.labels(self.job).set(low)
        self._progress, self._progress_at = said, now
        await self.publisher.progress(Progress(self.job, head.namespace, head.incarnation, low, high, round(rate, 4), self.clock.now_ms(), live))


def witness_of(head: Head) -> int:
    """Place of the worker whose Error began the recovery that runs now, -1 when none did: level, so that a takeover does not forget the witness."""
    recovering = head.phase in (Phase.RESTARTING, Phase.TROUBLESHOOTING) and head.countedIncarnation == head.incarnation
    told = head.countedEvidence in (counting.EVIDENCE_ERROR, counting.EVIDENCE_SIGNAL, counting.EVIDENCE[LostReason.COLLATERAL])
    return pod_index(head.countedPod) if recovering and told and head.countedPod else -1


_COUNTED, _OTHER, _BAD = (metrics.HEARTBEATS.labels(label) for label in ("yes", "no", "bad"))
