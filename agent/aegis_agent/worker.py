"""The life of a managed worker: says that it is there, obeys the orders of its job, reports what happened, leaves when the job has ended.

Level, not edge: each head that is heard or read is judged as a whole (`orders`), and one activity at a time makes this worker equal to the order it
obeys. A higher order takes the place of the activity of a lower one. Decides nothing for the job. What it does without the bus: `mode`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from aegis_proto import subjects
from aegis_proto.messages import encode
from aegis_proto.phases import LostReason, OrderPhase
from aegis_proto.state import HeadView, Order

from aegis_agent import mode, ports
from aegis_agent.checks.registry import Context, run_round
from aegis_agent.executor import Executor, hello, last_word
from aegis_agent.handover import LEAVE, REQUEUE, Exit, Status, WorkerTask, now_ms
from aegis_agent.link import Uplink
from aegis_agent.orders import ROUNDS, Rank, Verdict, judge
from aegis_agent.reports import Reports
from aegis_agent.runner import Run
from aegis_agent.scope import scope_id, scope_prefix
from aegis_agent.writer import ReportWriter

log = logging.getLogger(__name__)

HEARTBEAT = 5.0
"""Seconds between two heartbeats."""
HOLD = 600.0
"""Seconds a worker whose command has ended waits for a bus that is away, before it leaves with the command's code."""
PENDING_AGAIN = 30.0
"""Seconds until "I am here" is said again while no new order has named us; doubled each time, at most ten times as long."""
FLUSH = 5.0
AHEAD = 1.0
"""Seconds that a notice of preemption may take to be stored before the command is told: the errors of its peers are to come after it."""
INSIST = 30.0
"""Seconds that a preempted worker whose command has ended tries to be heard, where the bus is away: unheard, its going costs its peers a failure."""
_RUNS = frozenset({OrderPhase.COMMAND, OrderPhase.HANG})
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
        self._pending_at = 0.0
        self._pending_gap = PENDING_AGAIN
        self._ended_at: float | None = None  # monotonic, end of the command, while we wait for the job's end
        self._terms = 0
        self._activity: asyncio.Task[None] | None = None
        self._end: asyncio.Future[Exit] | None = None
        self._reported: set[Rank] = set()
        self._run_rank = Rank()
        self._why = ""
        self._first = Rank()
        """The highest order seen before we said that we are here."""
        self._settled = False
        """We have said that we are here: rounds that begin from now on count on this boot."""
        self._over = False
        """This attempt is over: another has its place, or its credentials were taken back."""
        self._said_here = Rank()

    # --- life -------------------------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        self._end = asyncio.get_running_loop().create_future()
        hello(self.task)
        await self.exec.open(self._on_signal, self.status)
        if self.uplink.hopeless:
            self._go_plain("no address of a credentials service")
        else:
            self.uplink.open()
        tasks = [asyncio.create_task(work) for work in (self.reports.pump(), self._beat(), self._start_watch())]
        self._tell_status()
        try:
            last = await self._end
        finally:
            for task in tasks[1:]:
                task.cancel()
        if last.reason == LostReason.PREEMPTED and self.uplink.managed:
            until = time.monotonic() + min(INSIST, max(FLUSH, self.spec.preemptGrace))
            while self._terms < 2 and time.monotonic() < until and not await self.reports.flush(0.5):
                pass
        elif self.uplink.connected and not self.plain:
            await self.reports.flush(FLUSH)
        tasks[0].cancel()
        await self.uplink.close()
        await self.exec.close(last)
        return last.code

    def _leave(self, code: int, reason: str, message: str = "") -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(last_word(self.task, code, reason=reason, run=self.exec.run, plain=self.plain, message=message))

    @property
    def _leaving(self) -> bool:
        return self._terms > 0 or self._over or bool(self.uplink.told) or self._end is None or self._end.done()

    def _do(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Make `work` the activity. It begins when the one before has let go, and that is told to at once."""
        before = self._activity
        if before is not None:
            before.cancel()

        async def activity() -> None:
            cancelled = False
            while before is not None and not before.done():
                try:
                    await asyncio.wait((before,))
                except asyncio.CancelledError:
                    cancelled = True  # the next one waits for us, and we for the one before
            if cancelled:
                raise asyncio.CancelledError
            try:
                await work()
            except Exception as error:
                log.exception("the order could not be carried out")
                if self.phase in ROUNDS:
                    self.write.failed(self.phase, error)

        self._activity = asyncio.create_task(activity())

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
        born = self._first if self._settled else None
        decision = judge(self.last, head, uid=self.task.uid, pod=self.task.pod, attempt=self.task.attempt, born=born)
        if decision.verdict is Verdict.OTHER_JOB:
            return
        if not self._settled:
            self._first = max(self._first, decision.rank)
        self.write.era = head.era
        if decision.new_era and self._settled:
            self._pending()
        if decision.verdict is Verdict.SUPERSEDED:
            self._stop_and_leave("superseded")
        elif decision.verdict is Verdict.BEFORE:
            self.last = decision.rank
            if self._settled:  # repeated: what we said may be among the reports that were lost
                self._pending()
        elif decision.verdict is Verdict.OBEY:
            self.last, self.phase = decision.rank, decision.phase
            log.info("order %s %s", decision.phase, decision.rank)
            self._do(partial(self._obey, decision.phase, head.order))
            self._tell_status()

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
            self._settled = True
            self._pending()

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
        self._notice()
        self._do(self._preempted)

    def _notice(self) -> None:
        """Say that the platform takes this pod away, before anything of it ends."""
        run = self.exec.run
        if run is not None and self.phase in _RUNS:
            run.preempted = True
        if self.phase in ROUNDS or self.phase in _RUNS:
            self.write.notice(OrderPhase.COMMAND if self.phase in _RUNS else self.phase, self.spec.preemptGrace)
            self._reported.add(self.last)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    # --- orders -------------------------------------------------------------------------------------------------------------------

    async def _obey(self, phase: OrderPhase, order: Order) -> None:
        if phase in (OrderPhase.BOOTCHECK, OrderPhase.TROUBLESHOOT):
            await self._check(phase)
        elif phase is OrderPhase.COMMAND:
            await self._command(order)
        elif phase is OrderPhase.STOP:
            await self._stop(order.incarnation, grace=order.grace)
        elif phase is OrderPhase.HANG_WITH_QUIT:
            await self._stop(order.incarnation, leaving=True, grace=order.grace)
            self._leave(LEAVE, "ordered", "told to leave this node")
        elif phase is OrderPhase.QUIT:
            await self._stop(order.incarnation, leaving=True, grace=order.grace)
            self._leave(order.exitCode, "ended", "the job has ended")
        elif phase is OrderPhase.PLAIN:
            await self._end_run()
            self._go_plain("the job runs as a plain job")
        elif phase is OrderPhase.HANG:
            self.exec.say("this run is marked as hung: nothing is stopped, checks of others may follow")

    async def _end_run(self, grace: float = -1.0) -> bool:
        """Stop the child and its tree, with the specification's grace unless another is given. True when everything is verified gone."""
        run = self.exec.run
        return run is None or (await run.stop(self.spec.stopGrace if grace < 0 else grace)).clean

    async def _stop(self, incarnation: int, *, leaving: bool = False, grace: float = -1.0, reason: str = "") -> None:
        clean = await self._end_run(grace)
        self.write.stopped(self.exec.run, incarnation, clean=clean, leaving=leaving, reason=reason)

    async def _check(self, phase: OrderPhase) -> None:
        self.write.ack(phase)
        gone = await self._end_run()
        task = self.task
        context = Context(scope_prefix(task.uid, task.pod, task.attempt), self.spec.cwd or os.getcwd(), os.getpid(), task.node)
        scope = scope_id(task.uid, task.pod, task.attempt, "check")
        began = time.monotonic()
        results = await run_round(self.exec.reaper, phase.value, context, self.exec.environ, scope=scope)
        failed = [f"{result.CheckType} failed: {result.Result}" for result in results if not result.Pass]
        self.exec.say(f"{phase.value}: {len(results)} checks in {time.monotonic() - began:.3f} s: {'; '.join(failed) or 'passed'}")
        port = ports.free_port(self.spec.masterPortRange) if self.exec.index == 0 else 0
        self.write.checked(phase, results, address=self._address(), port=port, gone=gone)

    async def _command(self, order: Order) -> None:
        """Run the command of this incarnation, unless it runs already (a repeated round): then only the new round number is used from now on."""
        self.write.ack(OrderPhase.COMMAND)
        run = self.exec.run
        self._run_rank = self.last
        if run is not None and run.plan.incarnation == order.incarnation:
            if run.stop_asked:  # one incarnation never runs twice here
                await run.stop()
                self.write.stood_still(run, "this run was stopped here before", now_ms())
            elif run.result.done():
                self._run_ended(run)
            return
        await self._end_run()
        address = order.masterAddr or self.task.plainAddr or "127.0.0.1"
        run = self.exec.start(order.incarnation, address, order.masterPort or self.task.plainPort)
        self._ended_at = None
        run.result.add_done_callback(lambda _: self._run_ended(run))
        self._tell_status()

    def _run_ended(self, run: Run) -> None:
        """The command ended by itself, or something ended it that was not us: report it, once for each round."""
        if run is not self.exec.run or self.plain or run.result.cancelled() or (run.ended_by_us and not run.preempted):
            return
        result = run.result.result()
        self._ended_at = self._ended_at or time.monotonic()
        # Of the run's own round when an order to stop has come meanwhile: it may still be the better evidence.
        rank = self.last if self.phase in _RUNS else self._run_rank
        if rank not in self._reported:
            self._reported.add(rank)
            error = self.write.ended(run, result, rank, self.exec.progress.step)
            if error is not None:
                self.exec.say(f"run {run.plan.incarnation} ended: {error.reason}, exit {error.exitCode}: {error.message}")
        reason = result.ending.reason.value if result.ending else LostReason.PREEMPTED.value if run.preempted else "finished"
        self.exec.note_end(last_word(self.task, result.code, reason=reason, run=run))
        self._tell_status()

    async def _preempted(self) -> None:
        run = self.exec.run
        if run is not None and not run.result.done():
            self.exec.say(f"notice of preemption: the command has {self.spec.preemptGrace:g} s")
            if self.uplink.connected:
                await self.reports.flush(AHEAD)
            await run.stop(self.spec.preemptGrace)
        await self._stop(self.last.incarnation, leaving=True, reason=LostReason.PREEMPTED.value)
        self._leave(REQUEUE, LostReason.PREEMPTED.value)

    def _stop_and_leave(self, why: str) -> None:
        """Another attempt has our place, or our credentials were taken back: an answer, not an absence."""
        self._over = True

        async def work() -> None:
            self.exec.say(f"this attempt is over ({why}){': ' + self.uplink.why if self.exec.run is None else ': the command is stopped'}")
            clean = await self._end_run()
            if self.uplink.connected:
                self.write.stopped(self.exec.run, self.last.incarnation, clean=clean, leaving=True)
            self._leave(REQUEUE, why)

        self._do(work)

    # --- plain --------------------------------------------------------------------------------------------------------------------

    def _go_plain(self, why: str) -> None:
        """From now on this is a plain job: the command, its exit code, nothing else."""
        self.plain, self._why = True, why
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
            if self.uplink.connected:
                self._beats += 1
                beat = self.write.heartbeat(self._beats, self.exec.run, self.exec.progress)
                self.uplink.core(subjects.heartbeat(self.task.job, self.task.pod), encode(beat))
            await asyncio.sleep(HEARTBEAT)

    def _look(self, now: float) -> None:
        """What only time brings: "I am here" again, the end of patience without the bus."""
        if self._leaving:
            return
        if self.uplink.connected:
            if self.last == self._said_here and self._settled and now - self._pending_at >= self._pending_gap:
                self._pending_gap = min(2 * self._pending_gap, 10 * PENDING_AGAIN)
                self._pending()
            return
        run, progress = self.exec.run, self.exec.progress
        silent = now - self.uplink.lost_at
        if self._ended_at is not None and min(silent, now - self._ended_at) >= HOLD and run is not None and run.result.done():
            self._leave(run.result.result().code, "finished" if run.result.result().code == 0 else "error")
        elif run is not None and run.alive and not run.stop_asked and self.uplink.managed:
            told, since = self.uplink.told, progress.silence(now)
            gap, patient = progress.longest_gap, now < progress.long_until
            if mode.cut_off(silent=silent, told=told, since_progress=since, longest_gap=gap, expected_long=patient) is mode.CutOff.STOP:
                self._do(partial(self._cut_off, run, silent))

    async def _cut_off(self, run: Run, silent: float) -> None:
        """Stop a child that stands still while nobody can be asked; the bus, when it returns, says what next."""
        self.exec.say(f"cut off from the bus for {silent:.0f} s and no progress: the command is stopped")
        began = now_ms()
        await run.stop(self.spec.stopGrace)
        self.write.stood_still(run, "cut off from the bus, and no progress", began)

    # --- words --------------------------------------------------------------------------------------------------------------------

    def _pending(self) -> None:
        self._pending_at, self._said_here = time.monotonic(), self.last
        self.write.pending(self.exec.run, self._address())

    def _address(self) -> str:
        if self.task.address:
            return self.task.address
        servers = self.uplink.servers or [self.task.credentials]
        return ports.route_address(servers[0])

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
