"""The life of a managed worker: says that it is there, obeys the orders of its job, reports what happened, leaves when the job has ended.

Level, not edge: each head that is heard or read is judged as a whole (`orders`), and one activity at a time makes this worker equal to the order it
obeys. A higher order takes the place of the activity of a lower one. Decides nothing for the job. What it does without the bus: `mode`. What it runs:
`training`; what it checks: `diagnosis`; what lives beside it: `companions`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from aegis_proto import subjects
from aegis_proto.messages import encode
from aegis_proto.phases import LostReason, OrderPhase
from aegis_proto.state import HeadView, Order

from aegis_agent import mode
from aegis_agent.activity import Activity
from aegis_agent.companions import Companions
from aegis_agent.diagnosis import diagnose
from aegis_agent.executor import Executor, hello, last_word
from aegis_agent.handover import LEAVE, REQUEUE, Exit, Status, WorkerTask, now_ms
from aegis_agent.inject import Injector
from aegis_agent.link import Uplink
from aegis_agent.logroad import LogRoad
from aegis_agent.orders import ROUNDS, Rank, Verdict, judge
from aegis_agent.people import People
from aegis_agent.presence import Presence
from aegis_agent.reports import Reports
from aegis_agent.runner import Run
from aegis_agent.signature import Signature
from aegis_agent.spool import SPOOL_DIR, Spool
from aegis_agent.training import RUNS, Training
from aegis_agent.writer import ReportWriter

log = logging.getLogger(__name__)

HEARTBEAT = 5.0
"""Seconds between two heartbeats."""
HOLD = 600.0
"""Seconds a worker whose command has ended waits for a bus that is away, before it leaves with the command's code."""
FLUSH = 5.0
AHEAD = 1.0
"""Seconds that a notice of preemption may take to be stored before the command is told: the errors of its peers are to come after it."""
INSIST = 30.0
"""Seconds that a preempted worker whose command has ended tries to be heard, where the bus is away: unheard, its going costs its peers a failure."""
_LEAVES = frozenset({OrderPhase.QUIT, OrderPhase.HANG_WITH_QUIT})


class Worker:
    """One attempt of one pod. `await run()` gives the exit code."""

    def __init__(self, task: WorkerTask, environ: Mapping[str, str]) -> None:
        self.task = task
        self.spec = task.spec
        self.boot = secrets.token_hex(8)
        self.exec = Executor(task, environ)
        self.uplink = Uplink(task, self.exec.reaper, environ, on_head=self._on_head, on_reach=self._on_reach, on_ready=self._on_ready)
        self.reports = Reports(self.uplink.publish, self.uplink.wait_connected)
        self.write = ReportWriter(task, self.boot, self.reports)
        self.phase = OrderPhase.WAIT
        self.plain = False
        self._start_wait = mode.start_wait_from(dict(environ))
        self._began = time.monotonic()
        self._beats = 0
        self.signature = Signature()
        self._terms = 0
        self._end: asyncio.Future[Exit] | None = None
        self._why = ""
        self._over = False
        """This attempt is over: another has its place, or its credentials were taken back."""
        self.presence = Presence(self.exec, self.uplink, self.write)
        self.companions = Companions(self)
        self.training = Training(
            self.exec, self.write, self.companions, phase=lambda: self.phase, changed=self._tell_status, wanted=lambda: not self.plain
        )
        self._activity = Activity(self._could_not)
        self.exec.people.update(People(self).verbs)
        self.injector = Injector(self)

    # --- life -------------------------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        self._end = asyncio.get_running_loop().create_future()
        hello(self.task)
        await self.exec.open(self._on_signal, self.status)
        self.road = LogRoad(self.task, self.boot, self.uplink.publish, await asyncio.to_thread(self._spool) if self.exec.state_dir else None)
        self.exec.road = self.road
        if self.uplink.hopeless:
            self._go_plain("no address of a credentials service")
        else:
            self.uplink.open()
        tasks = [asyncio.create_task(work) for work in (self.reports.pump(), self.road.pump(), self._beat(), self._start_watch())]
        self.companions.open()
        self._tell_status()
        try:
            last = await self._end
        finally:
            for task in tasks[2:]:
                task.cancel()
            await self.companions.close()
        if last.reason == LostReason.PREEMPTED and self.uplink.managed:
            until = time.monotonic() + min(INSIST, max(FLUSH, self.spec.preemptGrace))
            while self._terms < 2 and time.monotonic() < until and not await self.reports.flush(0.5):
                pass
        elif self.uplink.connected and not self.plain:
            await self.reports.flush(FLUSH)
        if self.uplink.connected and not self.plain:
            await self.road.flush(FLUSH)
        for task in tasks[:2]:
            task.cancel()
        await self.road.leave()
        await self.uplink.close()
        await self.exec.close(last)
        return last.code

    def _spool(self) -> Spool | None:
        """Where lines wait while the bus is away; what an agent of this worker left there goes on."""
        folder = self.exec.state_dir
        return Spool(folder / SPOOL_DIR, owner=f"{self.task.uid}.{self.task.pod}") if folder is not None else None

    def _leave(self, code: int, reason: str, message: str = "") -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(last_word(self.task, code, reason=reason, run=self.exec.run, plain=self.plain, message=message))

    @property
    def _leaving(self) -> bool:
        return self._terms > 0 or self._over or bool(self.uplink.told) or self._end is None or self._end.done()

    def _could_not(self, error: Exception) -> None:
        if self.phase in ROUNDS:
            self.write.failed(self.phase, error)

    @property
    def last(self) -> Rank:
        """The order obeyed last."""
        return self.write.rank

    @last.setter
    def last(self, rank: Rank) -> None:
        self.write.rank = rank

    # --- what is heard ------------------------------------------------------------------------------------------------------------

    def _on_head(self, head: HeadView) -> None:
        if self.plain or self._leaving:
            return
        decision = judge(self.last, head, uid=self.task.uid, pod=self.task.pod, attempt=self.task.attempt, born=self.presence.born)
        if decision.verdict is Verdict.OTHER_JOB:
            return
        self.presence.saw(decision.rank)
        self.write.era = head.era
        if decision.new_era and self.presence.settled:
            self.presence.say()
        if decision.verdict is Verdict.SUPERSEDED:
            self._stop_and_leave("superseded")
        elif decision.verdict is Verdict.BEFORE:
            self.last = decision.rank
            if self.presence.settled:  # repeated: what we said may be among the reports that were lost
                self.presence.say()
        elif decision.verdict is Verdict.OBEY:
            self.last, self.phase = decision.rank, decision.phase
            log.info("order %s %s", decision.phase, decision.rank)
            self._activity.do(partial(self._obey, decision.phase, head.order))
            self.companions.ordered(decision.phase)
            self._tell_status()
        self.injector.heard(head.inject)

    def _on_reach(self) -> None:
        """The bus came or went, or an answer ended this attempt."""
        if self.plain or self._end is None or self._end.done():
            return
        if self.uplink.told and self._terms == 0 and not self._over:
            self._stop_and_leave(self.uplink.told)
        self._tell_status()

    def _on_ready(self) -> None:
        """Connected, subscribed, and the head as it was before we said anything has been read: say that we are here."""
        if not self.plain and not self._leaving:
            self.presence.settle()

    def _on_signal(self, number: int) -> None:
        """SIGTERM or SIGINT: a notice of preemption (managed), or the end of a plain job. The second one kills."""
        self._terms += 1
        run = self.exec.run
        if self._terms > 1:
            if run is not None:
                self._spawn(run.stop(0.0))
            return
        if self.plain:
            if run is not None:
                self._spawn(run.stop(self.spec.preemptGrace))
            else:
                self._leave(128 + number, "signal")
            return
        if self.phase in _LEAVES or self._over:
            return  # it leaves already, with the code it was told
        if self.phase in ROUNDS or self.phase in RUNS:
            self.training.notice(self.phase)
        self._activity.do(self._preempted)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    # --- orders -------------------------------------------------------------------------------------------------------------------

    async def _obey(self, phase: OrderPhase, order: Order) -> None:
        if phase in (OrderPhase.BOOTCHECK, OrderPhase.TROUBLESHOOT):
            await diagnose(self.exec, self.training, self.write, order, phase=phase, address=self.presence.address())
        elif phase is OrderPhase.COMMAND:
            await self.training.command(order)
        elif phase is OrderPhase.STOP:
            await self.training.stop(order.incarnation, grace=order.grace)
        elif phase is OrderPhase.HANG_WITH_QUIT:
            await self.training.stop(order.incarnation, leaving=True, grace=order.grace)
            self._leave(LEAVE, "ordered", "told to leave this node")
        elif phase is OrderPhase.QUIT:
            await self.training.stop(order.incarnation, leaving=True, grace=order.grace)
            self._leave(order.exitCode, "ended", "the job has ended")
        elif phase is OrderPhase.PLAIN:
            await self.training.end()
            self._go_plain("the job runs as a plain job")
        elif phase is OrderPhase.HANG:
            self.exec.say("this run is marked as hung: nothing is stopped, checks of others may follow")

    async def _preempted(self) -> None:
        run = self.exec.run
        if run is not None and not run.result.done():
            self.exec.say(f"notice of preemption: the command has {self.spec.preemptGrace:g} s")
            if self.uplink.connected:
                await self.reports.flush(AHEAD)
            await run.stop(self.spec.preemptGrace)
        await self.training.stop(self.last.incarnation, leaving=True, reason=LostReason.PREEMPTED.value)
        self._leave(REQUEUE, LostReason.PREEMPTED.value)

    def _stop_and_leave(self, why: str) -> None:
        """Another attempt has our place, or our credentials were taken back: an answer, not an absence."""
        self._over = True

        async def work() -> None:
            self.exec.say(f"this attempt is over ({why}){': ' + self.uplink.why if self.exec.run is None else ': the command is stopped'}")
            clean = await self.training.end()
            if self.uplink.connected:
                self.write.stopped(self.exec.run, self.last.incarnation, clean=clean, leaving=True)
            self._leave(REQUEUE, why)

        self._activity.do(work)

    # --- plain --------------------------------------------------------------------------------------------------------------------

    def _go_plain(self, why: str) -> None:
        """From now on this is a plain job: the command, its exit code, nothing else."""
        self.plain, self._why = True, why
        self.road.close()
        if self.task.job:
            self.exec.say(f"running without Aegis: {why}. A fault now ends the job")
        self._tell_status()
        run = self.exec.start_plain()
        self._tell_status()
        run.result.add_done_callback(lambda _: self._spawn(self._plain_ended(run)))

    async def _plain_ended(self, run: Run) -> None:
        code = run.result.result().code
        await run.stop()
        self._leave(code, "exited")

    # --- clocks -------------------------------------------------------------------------------------------------------------------

    async def _start_watch(self) -> None:
        """Until it is clear whether we are managed: connected, plain, or to be placed anew."""
        while not self.plain:
            reach = mode.Reach(self.task.attempt, self.uplink.connected, self.uplink.managed, self.uplink.told, self.uplink.hopeless)
            waited = time.monotonic() - self._began
            what = mode.start(reach, waited, self._start_wait)
            if what is mode.Start.WAIT or self._leaving:
                return
            if what is mode.Start.PLAIN:
                await self.uplink.close()
                self._go_plain(self.uplink.why or "the bus could not be reached")
                return
            if what is mode.Start.LEAVE:
                self._leave(REQUEUE, "unreachable", self.uplink.why)
                return
            await asyncio.sleep(min(1.0, max(0.01, self._start_wait - waited)))

    async def _beat(self) -> None:
        while True:
            now = time.monotonic()
            if not self.plain:
                self._look(now)
                self.companions.look(now)
            if self.uplink.connected:
                self._beats += 1
                run = self.exec.run
                look = self.signature.look(run.pids if run is not None and run.alive else (), now)
                beat = self.write.heartbeat(self._beats, run, self.exec.progress, now, look)
                self.uplink.core(subjects.heartbeat(self.task.job, self.task.pod), encode(beat))
            await asyncio.sleep(HEARTBEAT)

    def _look(self, now: float) -> None:
        """What only time brings: "I am here" again, the end of patience without the bus."""
        if self._leaving:
            return
        if self.uplink.connected:
            self.presence.say_again(now)
            return
        run, progress = self.exec.run, self.exec.progress
        silent = now - self.uplink.lost_at
        ended_at = self.training.ended_at
        if ended_at is not None and min(silent, now - ended_at) >= HOLD and run is not None and run.result.done():
            self._leave(run.result.result().code, "finished" if run.result.result().code == 0 else "error")
        elif run is not None and run.alive and not run.stop_asked and self.uplink.managed:
            told, since = self.uplink.told, progress.silence(now)
            gap, patient = progress.longest_gap, now < progress.long_until
            if mode.cut_off(silent=silent, told=told, since_progress=since, longest_gap=gap, expected_long=patient) is mode.CutOff.STOP:
                self._activity.do(partial(self.training.cut_off, run, silent))

    # --- words --------------------------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        run = self.exec.run
        return Status(
            pid=os.getpid(),
            boot=self.boot,
            uid=self.task.uid,
            pod=self.task.pod,
            attempt=self.task.attempt,
            plain=self.plain,
            managed=self.uplink.managed,
            connected=self.uplink.connected,
            running=run is not None and run.alive,
            incarnation=max(self.last.incarnation, 0),
            seqNum=max(self.last.seq_num, 0),
            phase=self.phase.value,
            step=self.exec.progress.step,
            why=self._why or self.uplink.why,
            at=now_ms(),
        )

    def _tell_status(self) -> None:
        self.exec.write_status(self.status())
