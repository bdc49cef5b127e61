"""The training of a managed worker: the user's command started, stopped and reported as the orders of its job want it.

Owns which rounds have been told how a run ended. One incarnation never runs twice here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aegis_proto.phases import LostReason, OrderPhase
from aegis_proto.state import Order

from aegis_agent.companions import Companions
from aegis_agent.executor import Executor, last_word
from aegis_agent.handover import now_ms
from aegis_agent.orders import Rank
from aegis_agent.runner import Run
from aegis_agent.writer import ReportWriter

RUNS = frozenset({OrderPhase.COMMAND, OrderPhase.HANG})
"""Orders under which the command runs."""


class Training:
    """`phase()` is the order obeyed now; `changed()` is called when what runs has changed; `wanted()` is false when nobody manages it any more."""

    def __init__(
        self,
        executor: Executor,
        write: ReportWriter,
        companions: Companions,
        *,
        phase: Callable[[], OrderPhase],
        changed: Callable[[], None],
        wanted: Callable[[], bool],
    ) -> None:
        self.exec, self.write, self.companions = executor, write, companions
        self.ended_at: float | None = None
        """Monotonic, end of the command, while the end of the job is waited for."""
        self._phase, self._changed, self._wanted = phase, changed, wanted
        self._reported: set[Rank] = set()
        self._rank = Rank()
        """The round of the run."""

    @property
    def spec_grace(self) -> float:
        return self.exec.task.spec.stopGrace

    async def end(self, grace: float = -1.0) -> bool:
        """Stop the child and its tree, with the specification's grace unless another is given. True when everything is verified gone."""
        run = self.exec.run
        return run is None or (await run.stop(self.spec_grace if grace < 0 else grace)).clean

    async def stop(self, incarnation: int, *, leaving: bool = False, grace: float = -1.0, reason: str = "") -> None:
        """End it and say so."""
        clean = await self.end(grace)
        self.write.stopped(self.exec.run, incarnation, clean=clean, leaving=leaving, reason=reason)

    async def command(self, order: Order) -> None:
        """Run the command of this incarnation, unless it runs already (a repeated round): then only the new round number is used from now on."""
        self.write.ack(OrderPhase.COMMAND)
        run = self.exec.run
        self._rank = self.write.rank
        if run is not None and run.plan.incarnation == order.incarnation:
            if run.stop_asked:  # one incarnation never runs twice here
                await run.stop()
                self.write.stood_still(run, "this run was stopped here before", now_ms())
            elif run.result.done():
                self._ended(run)
            return
        await self.end()
        task = self.exec.task
        address = order.masterAddr or task.plainAddr or "127.0.0.1"
        run = self.exec.start(order.incarnation, address, order.masterPort or task.plainPort)
        self.ended_at = None
        run.result.add_done_callback(lambda _: self._ended(run))
        run.result.add_done_callback(lambda _: self.companions.run_ended(run))
        self.companions.run_started(run)
        self._changed()

    def _ended(self, run: Run) -> None:
        """The command ended by itself, or something ended it that was not us: report it, once for each round."""
        if run is not self.exec.run or not self._wanted() or run.result.cancelled() or (run.ended_by_us and not run.preempted):
            return
        result = run.result.result()
        self.ended_at = self.ended_at or time.monotonic()
        # Of the run's own round when an order to stop has come meanwhile: it may still be the better evidence.
        rank = self.write.rank if self._phase() in RUNS else self._rank
        if rank not in self._reported:
            self._reported.add(rank)
            error = self.write.ended(run, result, rank, self.exec.progress.step)
            if error is not None:
                self.exec.say(f"run {run.plan.incarnation} ended: {error.reason}, exit {error.exitCode}: {error.message}")
        reason = result.ending.reason.value if result.ending else LostReason.PREEMPTED.value if run.preempted else "finished"
        self.exec.note_end(last_word(self.exec.task, result.code, reason=reason, run=run))
        self._changed()

    def notice(self, phase: OrderPhase) -> None:
        """Say that the platform takes this pod away, before anything of it ends."""
        run = self.exec.run
        if run is not None and phase in RUNS:
            run.preempted = True
        self.write.notice(OrderPhase.COMMAND if phase in RUNS else phase, self.exec.task.spec.preemptGrace)
        self._reported.add(self.write.rank)

    async def cut_off(self, run: Run, silent: float) -> None:
        """Stop a child that stands still while nobody can be asked; the bus, when it returns, says what next."""
        self.exec.say(f"cut off from the bus for {silent:.0f} s and no progress: the command is stopped")
        began = now_ms()
        await run.stop(self.spec_grace)
        self.write.stood_still(run, "cut off from the bus, and no progress", began)
