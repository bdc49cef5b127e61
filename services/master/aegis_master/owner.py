"""The owner of one job: reads its reports in stream order, steps the machine, commits, then acts.

Reads REPORTS from head.cursor + 1 and the core heartbeats of the job; writes the job state (JobStore) and, after a commit, what follows from it
(`publish`). Everything in memory here can be lost at any instruction: the state and the cursor are one commit, effects are renderings of it.

One loop, one commit in flight. A batch is what has arrived. Events from outside the stream
(deadline, death, era) are stepped in the same loop and fenced by the same commit: if it is refused they never happened, and whoever owns the job
finds them again.
Each commit is republished to every agent, so none is made for its own sake: what changes an order or a phase is stored at once; flags of a round of a
large job (present, finished, stopped) after `flags` seconds or as long as the round has lasted; acknowledgements and the cursor ride along.
Re-reading them after a crash gives the same.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from aegis_bus.connection import Bus, Stored, Subscription
from aegis_bus.crashpoint import crashpoint
from aegis_bus.errors import BusError, Rejected, Unreachable, Unreadable, WrongLastSequence
from aegis_bus.jobstore import JobStore, Loaded
from aegis_bus.ordered import Gap, OrderedReader
from aegis_proto.ids import pod_name
from aegis_proto.phases import LedgerState, Phase
from aegis_proto.state import JobState, Transition

from aegis_master import asked, intake, machine, metrics
from aegis_master import events as ev
from aegis_master.batch import Batch, fresh, last_sequence, urgency
from aegis_master.clock import ServerClock
from aegis_master.effects import Effects
from aegis_master.judge import Dead, Suspect, fenced
from aegis_master.recoveries import Recoveries
from aegis_master.settings import OwnerSettings
from aegis_master.trace import Trace
from aegis_master.watch import Watch

log = structlog.get_logger("aegis.master.owner")


@dataclass(frozen=True, slots=True)
class Shared:
    """What all owners of a replica share."""

    replica: str
    bus: Bus
    store: JobStore
    effects: Effects
    clock: ServerClock
    settings: OwnerSettings
    trace: Trace
    may_write: asyncio.Event
    """Cleared while this replica's lease is lost: then it only waits (the fence would refuse it anyway)."""
    era: Callable[[], str]


class JobOwner:
    """Owns one job until it ends, somebody else takes it, or `stop`."""

    def __init__(self, shared: Shared, loaded: Loaded) -> None:
        self.shared = shared
        self.job = loaded.state.head.job
        self.loaded = loaded
        self.state = loaded.state
        """As stepped: at most `lazy` seconds ahead of what is stored."""
        self.watch = Watch(shared.bus, shared.effects.publisher, shared.clock, shared.settings, self.job)
        self._inbox: asyncio.Queue[Stored | Gap] = asyncio.Queue(4 * shared.settings.batch)
        self._wake = asyncio.Event()
        self._stopping = False
        self._commit_by = math.inf  # monotonic time by which what is stepped must be stored
        self._uncommitted = 0  # messages behind the stored cursor
        self._next_tick = 0.0
        self._fire_again = 0.0  # a deadline that fired and still stands is not fired in a loop
        self._transitions: list[Transition] = []  # stepped, not yet stored
        self._notes: list[ev.Note] = []
        self._recoveries = Recoveries(self.state)

    # --- life --------------------------------------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Own the job; why it ended: ended | lost | released."""
        heartbeats: Subscription | None = None
        metrics.show_job(None, self.state.head)
        try:
            while True:
                try:
                    if heartbeats is None:
                        heartbeats = await self.shared.bus.subscribe(f"aegis.job.{self.job}.hb.*", self.watch.on_heartbeat)
                    outcome = await self._session()
                    if outcome != "reload":
                        return outcome
                    if not await self._reload():
                        return "lost"
                except WrongLastSequence:
                    if not await self._reload():
                        return "lost"
                except Unreadable as error:
                    log.error("job is not readable here", job=self.job, error=str(error))
                    return "lost"
                except BusError as error:
                    log.warning("owner waits for the bus", job=self.job, error=str(error))
                    await asyncio.sleep(random.uniform(0.1, 0.5))
                    if self._stopping:
                        return "released"
        finally:
            metrics.forget_job(self.loaded.state.head)
            if heartbeats is not None:
                await heartbeats.unsubscribe()

    def stop(self) -> None:
        """Finish what is in hand, commit it, give the job away."""
        self._stopping = True
        self._wake.set()

    def quiet(self) -> None:
        """We may not have heard heartbeats for a while (reconnect, loop lag): judge nothing for some time."""
        self.watch.judge.quiet(time.monotonic())

    def poke(self) -> None:
        """Something outside changed (era): look at it now."""
        self._wake.set()

    async def _reload(self) -> bool:
        """Read the state again; False when it is no longer ours. Steps after the stored cursor are taken again from the stream."""
        while True:
            try:
                loaded = await self.shared.store.load(self.job)
                break
            except Unreadable:
                raise
            except BusError as error:
                log.warning("state not readable now", job=self.job, error=str(error))
                if self._stopping:
                    return False
                await asyncio.sleep(random.uniform(0.1, 0.5))
        if loaded is None:
            return False
        before = self.loaded.state.head.owner
        ours = loaded.state.head.owner == before
        metrics.CONFLICTS.labels("reloaded" if ours else "lost").inc()
        if not ours:
            log.info("job taken by another replica", job=self.job, owner=loaded.state.head.owner.replica, term=loaded.state.head.owner.term)
            return False
        self._adopt(loaded)
        return True

    def _adopt(self, loaded: Loaded) -> None:
        metrics.show_job(self.state.head, loaded.state.head)
        self.loaded = loaded
        self.state = loaded.state
        self._forget_uncommitted()

    def _forget_uncommitted(self) -> None:
        """What was stepped and not stored never happened."""
        self._commit_by, self._uncommitted = math.inf, 0
        self._transitions, self._notes = [], []
        if self.shared.trace:
            self.shared.trace.void(self.loaded)

    async def _session(self) -> str:
        """From the stored state on, until something needs a reload or an end."""
        self._inbox = asyncio.Queue(4 * self.shared.settings.batch)
        self.state = self.loaded.state
        self._forget_uncommitted()
        await self.shared.effects.heal(self.state.head)
        if self.state.head.phase.terminal:
            return "ended"
        filters = [f"aegis.job.{self.job}.worker.>", f"aegis.job.{self.job}.fact.>"]
        async with OrderedReader(self.shared.bus, "REPORTS", filters, start=self.state.head.cursor + 1) as reader:
            pump = asyncio.create_task(self._pump(reader), name=f"reports {self.job}")
            try:
                while True:
                    outcome = await self._turn(pump)
                    if outcome:
                        return outcome
            finally:
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self, reader: OrderedReader) -> None:
        async for item in reader:
            await self._inbox.put(item)
            self._wake.set()

    # --- one turn ------------------------------------------------------------------------------------------------------------------

    async def _turn(self, pump: asyncio.Task[None]) -> str:
        items = await self._gather()
        if pump.done() and not items:
            pump.result()
            return "reload"
        began = time.monotonic()
        batch = Batch(self.state, self.state.head.cursor)
        await self._take(batch, items)
        await self._from_time(batch)
        self.state = batch.state
        if batch.cursor != self.state.head.cursor:
            self.state = self.state.with_head(cursor=batch.cursor)
            self._uncommitted += batch.taken
        self._transitions += batch.transitions
        self._notes += batch.notes
        stop = self._stopping
        self._commit_by = min(self._commit_by, began + batch.within)
        crowded = self._uncommitted >= max(self.shared.settings.batch, 4 * self.state.head.workerNum)
        if crowded or time.monotonic() >= self._commit_by or (stop and self.state is not self.loaded.state):
            taken = self._uncommitted
            await self._commit(self.state)
            metrics.BATCH.observe(taken)
            metrics.COMMIT.observe(time.monotonic() - began)
            self._after()
        if self.state.head.phase.terminal:
            await self.shared.effects.drain(self.job)
            return "ended"
        if stop:
            await self._release()
            return "released"
        return ""

    async def _gather(self) -> list[Stored | Gap]:
        """What has arrived, after waiting for the first of it or for the next thing that time brings."""
        self._wake.clear()
        if self._inbox.empty() and not self._stopping:
            try:
                async with asyncio.timeout(max(0.0, self._next_due() - time.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                pass
        items: list[Stored | Gap] = []
        while len(items) < self.shared.settings.batch and not self._inbox.empty():
            items.append(self._inbox.get_nowait())
        return items

    def _next_due(self) -> float:
        """Monotonic time of the next thing to do without a report."""
        now = time.monotonic()
        due = min(self._next_tick, self._commit_by)
        deadline = self.state.head.deadline
        if deadline is not None and deadline.setAt:
            passes = now + (deadline.setAt + deadline.seconds * 1000 - self.shared.clock.now_ms()) / 1000
            due = min(due, max(passes, self._fire_again))
        return due

    async def _take(self, batch: Batch, items: Sequence[Stored | Gap]) -> None:
        for item in items:
            if isinstance(item, Gap):
                log.warning("reports were lost", job=self.job, cursor=batch.cursor, first=item.first_seq)
                self._step(batch, ev.GapFound(), self.shared.clock.now_ms())
                younger = item.first_seq <= batch.cursor  # another stream: what it holds was said to its owner of then
                batch.cursor = await last_sequence(self.shared.bus, "REPORTS") if younger else item.first_seq - 1
                continue
            if item.seq <= batch.cursor:
                continue
            crashpoint("master.received")
            metrics.REPORTS.inc()
            batch.taken += 1
            taken = intake.take(batch.state, item.subject, item.data, item.time_ms)
            crashpoint("master.decoded")
            if taken.bad:
                await self.shared.effects.publisher.dead_letter(self.job, item, taken.bad)
                metrics.DROPPED.labels("bad").inc()
                batch.within = min(batch.within, self.shared.settings.lazy)
            self.watch.take(taken)
            batch.notes += taken.notes
            if taken.beside is not None:
                batch.notes += self.watch.beside(batch.state, taken.beside)
            if taken.dropped and not taken.events:
                metrics.DROPPED.labels(taken.dropped).inc()
            for event in taken.events:
                self._step(batch, event, item.time_ms)
            batch.cursor = item.seq
            if item.subject.endswith(".fact.job"):
                batch.within = min(batch.within, self.shared.settings.lazy)

    def _step(self, batch: Batch, event: ev.Event, at: int) -> None:
        crashpoint("master.before-step")
        before = batch.state
        try:
            after, effects = machine.step(before, event, at)
            if after.head.phase is Phase.RUN_COMMAND and before.head.phase is not Phase.RUN_COMMAND:
                # It runs from its order on, however long ago the answers came that nobody was there to read.
                at = max(at, self.shared.clock.now_ms())
                after, effects = machine.step(before, event, at)
        except Exception:
            # The machine is wrong about this one event. The state is as it was before it; the job goes on without it, and people are told.
            log.exception("event refused by the machine", job=self.job, kind=type(event).__name__)
            metrics.DROPPED.labels("machine").inc()
            return
        for effect in effects:
            if isinstance(effect, ev.Dropped):
                metrics.DROPPED.labels(effect.why).inc()
            else:
                batch.notes.append(effect)
        if after.head is not before.head or after.shards is not before.shards:
            if isinstance(event, ev.Finished):
                metrics.checked(before.head, event.results)
            batch.within = min(batch.within, urgency(before, event, after, self.shared.settings.flags, at))
        batch.transitions += fresh(before.head.recent, after.head.recent)
        batch.state = after
        if self.shared.trace:
            self.shared.trace.write(before, event, after, at)

    # --- what time brings ------------------------------------------------------------------------------------------------------------

    async def _from_time(self, batch: Batch) -> None:
        now_ms = self.shared.clock.now_ms()
        head = batch.state.head
        era = self.shared.era()
        if era and head.era != era and not head.phase.terminal:
            await self._new_era(batch, era, now_ms)
        deadline = batch.state.head.deadline
        if deadline is not None and deadline.setAt and now_ms >= deadline.setAt + deadline.seconds * 1000 and time.monotonic() >= self._fire_again:
            self._fire_again = time.monotonic() + 1.0
            self._step(batch, ev.DeadlinePassed(deadline.kind, deadline.seqNum, deadline.incarnation), now_ms)
            crashpoint("master.deadline-before-commit")
        if (stop := asked.fruitless(batch.state)) is not None:
            self._step(batch, stop, now_ms)
        reset = batch.state.spec.retryResetAfter
        head = batch.state.head
        if reset > 0 and head.phase is Phase.RUN_COMMAND and head.failures and now_ms - head.runStartedAt >= reset * 1000:
            self._step(batch, ev.Healthy(), now_ms)
        if time.monotonic() >= self._next_tick:
            self._next_tick = time.monotonic() + self.shared.settings.tick
            await self._tick(batch, now_ms)

    async def _new_era(self, batch: Batch, era: str, now_ms: int) -> None:
        """What was read so far is of another store: begin after what this one holds, and let everybody report anew."""
        log.warning("new era of the store", job=self.job, era=era, before=batch.state.head.era)
        self.quiet()
        last = await last_sequence(self.shared.bus, "REPORTS")
        self._step(batch, ev.EraChanged(era), now_ms)
        batch.state = batch.state.with_head(cursor=last)
        batch.cursor = last
        batch.within = 0.0

    async def _tick(self, batch: Batch, now_ms: int) -> None:
        now = time.monotonic()
        for finding in await self.watch.tick(batch.state, now):
            match finding:
                case ev.Marked():
                    self._step(batch, finding, now_ms)
                case Suspect(index, attempt, suspect):
                    self._step(batch, ev.SuspectChanged(index, attempt, suspect), now_ms)
                case Dead(index, attempt, reason, why, silent):
                    metrics.DEAD.labels(reason.value).inc()
                    node = batch.state.pod(index).node
                    died = now_ms - round(silent * 1000)
                    self._step(batch, ev.PodLost(index, attempt, reason, died, node=node, message=why), now_ms)
                    crashpoint("master.death-before-commit")
        for index, attempt in fenced(batch.state, now_ms, self.shared.settings.judge.fence):
            log.warning("fenced: taken as gone", job=self.job, pod=pod_name(index), attempt=attempt)
            self._step(batch, ev.PodGone(index, attempt), now_ms)
        head = batch.state.head
        if (
            head.phase is Phase.RUN_COMMAND
            and (not head.tellsSteps or head.ledger.state is LedgerState.RESTORING)
            and (step := self.watch.highest_step()) >= 0
        ):
            self._step(batch, ev.Progressed(head.incarnation, step), now_ms)
            head = batch.state.head
        if head.phase is Phase.RUN_COMMAND and self.watch.checkpoint > head.checkpointStep:
            self._step(batch, ev.Checkpointed(head.incarnation, self.watch.checkpoint, self.watch.save_stall), now_ms)
        if self.watch.missing_acks(batch.state, now):
            metrics.REPUBLISHED.inc()
            batch.within = 0.0

    # --- the commit ------------------------------------------------------------------------------------------------------------------

    async def _commit(self, state: JobState) -> None:
        """Store the state. Returns when it is stored; WrongLastSequence when somebody else wrote (it is not)."""
        crashpoint("master.before-commit")
        while True:
            await self.shared.may_write.wait()
            try:
                loaded = await self.shared.store.commit(self.loaded, state)
                break
            except WrongLastSequence:
                metrics.CONFLICTS.labels("refused").inc()
                raise
            except (Rejected, Unreachable) as error:
                # Not stored: the same commit may be tried again, it still expects the sequence it was made for.
                metrics.CONFLICTS.labels("retried").inc()
                log.warning("commit not stored, trying again", job=self.job, error=str(error))
                await asyncio.sleep(random.uniform(0.05, 0.25) if getattr(error, "retryable", True) else 1.0)
        crashpoint("master.after-commit")
        if self.shared.trace:
            self.shared.trace.committed(loaded)
        self.shared.clock.saw(loaded.time_ms)
        metrics.show_job(self.loaded.state.head, loaded.state.head)
        self.loaded = loaded
        self.state = loaded.state
        self._commit_by = math.inf
        self._uncommitted = 0

    def _after(self) -> None:
        """The effects of a commit. Any of them may be lost with this process: the next owner derives them from the state."""
        transitions, notes = tuple(self._transitions), tuple(self._notes)
        self._transitions, self._notes = [], []
        for transition in transitions:
            if transition.counted:
                metrics.FAILURES.labels(transition.cause or "unknown").inc()
            self._recoveries.see(self.state, transition)
            metrics.round_ended(self.state.head, transition)
        if transitions and self.state.head.phase.terminal:
            metrics.ended(self.state.head)
        if transitions or notes:
            self.shared.effects.add(self.state, transitions, notes)

    async def _release(self) -> None:
        """Give the job away at once, so that nobody needs to wait for the end of a lease."""
        await self.shared.effects.drain(self.job)
        crashpoint("master.release-before-cas")
        await self.shared.store.take_over(self.loaded, "")
        crashpoint("master.release-after-cas")
