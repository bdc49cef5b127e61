"""The reports of a worker as messages: the envelope with its round, and what each kind says. Fills the queue of `reports`; sends nothing itself."""

from __future__ import annotations

import os

from aegis_proto import subjects
from aegis_proto.messages import (
    AckData,
    CheckResponse,
    CheckResult,
    ErrorData,
    FinishData,
    HangData,
    Heartbeat,
    Message,
    PendingData,
    StoppedData,
    raw,
)
from aegis_proto.phases import LostReason, MessageType, OrderPhase, ReportKind

from aegis_agent.handover import WorkerTask, now_ms
from aegis_agent.orders import Rank
from aegis_agent.progress import Progress
from aegis_agent.reports import Reports
from aegis_agent.runner import Run, RunResult
from aegis_agent.signature import Look


class ReportWriter:
    """Writes for one boot of one attempt. `rank` is the order obeyed last: its round is the one that is answered, unless another is given."""

    def __init__(self, task: WorkerTask, boot: str, queue: Reports) -> None:
        self.task = task
        self.boot = boot
        self.queue = queue
        self.era = ""
        self.rank = Rank()

    def pending(self, run: Run | None, address: str, check_port: int = 0) -> None:
        """ "I am here", with what runs: a new era of the store adopts a training that never stopped."""
        data = PendingData(
            podIP=address,
            nodeName=self.task.node,
            running=run is not None and stands(run),
            incarnation=run.plan.incarnation if run is not None else -1,
            exitCode=exit_code(run),
            stopped=run.plan.incarnation if run is not None and run.gone is not None and run.gone.clean else -1,
            checkPort=check_port,
        )
        self._put(ReportKind.PENDING, MessageType.ACK, "", data)

    def ack(self, phase: OrderPhase) -> None:
        """Late, and not at all when the round is answered before."""
        self._put(ReportKind.ACK, MessageType.ACK, phase.value, AckData(pid=os.getpid()), late=True)

    def stopped(self, run: Run | None, incarnation: int, *, clean: bool, leaving: bool, reason: str = "") -> None:
        data = StoppedData(incarnation=incarnation, clean=clean, leaving=leaving, exitCode=exit_code(run), reason=reason)
        self._put(ReportKind.STOPPED, MessageType.ACK, OrderPhase.STOP.value, data)

    def checked(self, phase: OrderPhase, results: list[CheckResult], *, address: str, port: int, check_port: int, gone: bool) -> None:
        response = CheckResponse(results=tuple(results), addr=address, port=port, treeGone=gone, checkPort=check_port)
        self._put(ReportKind.FINISH, MessageType.FINISH, phase.value, response)

    def noticed(self, result: CheckResult) -> None:
        """What a monitor of this worker saw, or a check beside a run that stands still; it answers no round and changes nothing by itself."""
        self._put(ReportKind.CHECK, MessageType.ACK, "check", result)

    def notice(self, phase: OrderPhase, grace: float) -> None:
        """The platform takes this pod away: an Error of the present round, dated now."""
        data = ErrorData(reason=LostReason.PREEMPTED.value, message=f"SIGTERM to the agent, at most {grace:g} s to leave", diedAt=now_ms())
        self._put(ReportKind.ERROR, MessageType.ERROR, phase.value, data)

    def failed(self, phase: OrderPhase, error: Exception) -> None:
        """The order could not be carried out: could not diagnose, or could not start the command."""
        data = ErrorData(message=f"{type(error).__name__}: {error}"[:500], diedAt=now_ms())
        self._put(ReportKind.ERROR, MessageType.ERROR, phase.value, data)

    def ended(self, run: Run, result: RunResult, rank: Rank, step: int) -> ErrorData | None:
        """How the command ended: Finish, or the Error that is returned."""
        told = result.ending
        if told is None:
            self._put(ReportKind.FINISH, MessageType.FINISH, OrderPhase.COMMAND.value, FinishData(exitCode=0, step=step), rank)
            return None
        error = ErrorData(
            reason=told.reason.value,
            exitCode=result.code,
            signal=told.signal,
            rank=result.rank,
            message=told.message,
            diedAt=result.ended_at,
            ranFor=round(result.ran_for, 3),
            pids=len(run.pids),
        )
        self._put(ReportKind.ERROR, MessageType.ERROR, OrderPhase.COMMAND.value, error, rank)
        return error

    def stood_still(self, run: Run | None, why: str, at: int) -> None:
        """The command was stopped here because it did not advance."""
        data = ErrorData(reason=LostReason.HUNG.value, message=why, diedAt=at, exitCode=exit_code(run))
        self._put(ReportKind.ERROR, MessageType.ERROR, OrderPhase.COMMAND.value, data)

    def marked(self, kind: str, cleared: bool, why: str) -> None:
        """A person on the machine marks this worker, or withdraws the mark."""
        self._put(ReportKind.HANG, MessageType.ERROR, "hang", HangData(kind=kind, cleared=cleared, message=f"({why})" if why else ""))

    def looked(self, silence: float, sign: str, where: str) -> None:
        """What the run looks like while it is marked as hung."""
        data = HangData(kind="look", silence=round(silence, 1), sign=sign, message=where[:300])
        self._put(ReportKind.HANG, MessageType.ERROR, "hang", data)

    def heartbeat(self, n: int, run: Run | None, progress: Progress, now: float, look: Look) -> Heartbeat:
        """The `n`th of this boot; not a report: it goes by core and may be lost. Steps of an earlier incarnation are not told as this one's."""
        incarnation = max(self.rank.incarnation, 0)
        ours = run is not None and run.plan.incarnation == incarnation
        if not ours:
            progress, look = Progress(), Look()
        silence, longest = progress.silence(now), progress.longest_gap or 0.0
        return Heartbeat(
            boot=self.boot,
            n=n,
            attempt=self.task.attempt,
            incarnation=incarnation,
            seqNum=max(self.rank.seq_num, 0),
            running=run is not None and run.alive,
            step=progress.step,
            queued=self.queue.queued,
            checkpoint=progress.checkpoint,
            stall=round(progress.stall, 2),
            silence=-1.0 if silence is None else round(silence, 1),
            quiet=-1.0 if progress.line_at is None else round(now - progress.line_at, 1),
            patience=round(max(0.0, progress.long_until - now), 1),
            gap=round(max(5 * progress.usual_gap, 2 * longest), 1) if progress.usual_gap else 0.0,
            sign=look.sign,
            cpu=round(look.cpu, 2),
            gpu=progress.gpu,
        )

    def _put(self, kind: ReportKind, type_: MessageType, phase: str, data: object, rank: Rank | None = None, *, late: bool = False) -> None:
        rank = rank or self.rank
        message = Message(
            AegisName=self.task.job,
            AegisNamespace=self.task.namespace,
            podName=self.task.pod,
            type=type_,
            phase=phase,
            data=raw(data),
            timeStamp=now_ms(),
            uid=self.task.uid,
            era=self.era,
            attempt=self.task.attempt,
            boot=self.boot,
            incarnation=max(rank.incarnation, 0),
            seqNum=max(rank.seq_num, 0),
        )
        put = self.queue.put_late if late else self.queue.put
        put(subjects.report(self.task.job, self.task.pod, kind.value), message)


def stands(run: Run) -> bool:
    """The run goes on, or has ended well by itself: a new era takes it over as it is. Nobody has begun to stop it, and none of its ranks failed."""
    return not run.stop_asked and (not run.result.done() or run.result.result().ending is None)


def exit_code(run: Run | None) -> int | None:
    """Code of a run that has ended, as a shell shows it."""
    return run.result.result().code if run is not None and run.result.done() else None
