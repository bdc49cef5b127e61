"""One run of the user's command on this worker: its local ranks started, watched, ended, and verified gone.

The first local rank that fails decides; the others are ended at once. Exit is noticed by SIGCHLD, gone-ness by pidfd and sweeps: nothing polls.
Owns the processes of one scope and the log folder of one incarnation.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aegis_proto.phases import LostReason

from aegis_agent import nested as nesting
from aegis_agent.cgroup import Cgroup
from aegis_agent.env import RunPlan, bare_environment, nested_environment, rank_environment
from aegis_agent.handover import CANNOT_RUN, NOT_FOUND
from aegis_agent.output import TAIL, LogFile, Sink, Stream, forget_old_runs
from aegis_agent.reaper import Child, Reaper
from aegis_agent.reasons import Ending, ending, missing_in_shell, not_found_message, rank_in
from aegis_agent.scope import Ended, Patience, Proc, end, in_group, live, members, ticks_now

if TYPE_CHECKING:
    from aegis_proto.logs import LogKind

    from aegis_agent.logroad import LogRoad
    from aegis_agent.warm import Standby

OUT: LogKind = "out"
ERR: LogKind = "err"
_STRENGTH = {LostReason.SIGNAL: 3, LostReason.ERROR: 2, LostReason.PORT: 2, LostReason.COLLATERAL: 1}


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: `ending` is None when every rank exited 0. `rank` is the global rank that decided (-1 = a nested launcher or none)."""

    ending: Ending | None
    rank: int
    ended_at: int  # ms since 1970
    ran_for: float  # seconds

    @property
    def code(self) -> int:
        return self.ending.code if self.ending else 0


@dataclass(slots=True)
class _Rank:
    local: int
    child: Child
    streams: list[Stream]
    tail: deque[str]
    log: LogFile | None
    error_file: str


class Run:
    """One run. `start`, then await `result`; `stop` may be called at any time, by several, and returns when the whole tree is gone.

    `bare` leaves the rank variables to the platform (a task without a job); `inherit` hands the agent's own stdin, stdout and stderr to the command.
    """

    def __init__(
        self,
        reaper: Reaper,
        plan: RunPlan,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        cwd: str = "",
        grace: float = 15.0,
        out: Sink | None = None,
        err: Sink | None = None,
        log_dir: Path | None = None,
        raw: bool = False,
        stamp: bool = False,
        bare: bool = False,
        inherit: bool = False,
        road: LogRoad | None = None,
        standby: Standby | None = None,
    ) -> None:
        self.plan = plan
        self.argv = list(argv)
        self.grace = grace
        self.result: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        self.nested = None if bare else nesting.detect(self.argv, {**environ, **plan.user})
        self.preempted = False
        self.stop_asked = False
        self.gone: Ended | None = None
        self.watch: Callable[[bytes], None] | None = None
        """Is told of every whole line that a rank prints; set before `start`."""
        self._reaper = reaper
        self._environ = dict(environ)
        self._cwd = cwd
        self._out, self._err = out, err
        self._log_dir = log_dir / str(plan.incarnation) if log_dir else None
        self._raw = raw
        self._stamp = stamp
        self._bare = bare
        self._inherit = inherit
        self._road = road
        self._standby = None if bare or self.nested else standby
        self.warm = False
        """Started out of a standby that had packages imported."""
        self._ranks: list[_Rank] = []
        self._began = 0.0
        self._cgroup: Cgroup | None = None
        self._stopping: asyncio.Task[Ended] | None = None
        self._patience = Patience(grace)

    @property
    def alive(self) -> bool:
        """Some rank has not ended."""
        return any(rank.child.alive for rank in self._ranks)

    @property
    def ended_by_us(self) -> bool:
        """It ended because it was told to. A signal that was never sent from here (a kill that came first) is not ours."""
        if not self.stop_asked:
            return False
        told = self.result.result().ending if self.result.done() and not self.result.cancelled() else None
        return told is None or told.signal in (0, signal.SIGTERM) or (told.signal == signal.SIGKILL and self._patience.ran_out)

    @property
    def failed_early(self) -> bool:
        """Preloaded, and it failed by itself so soon that this may be why."""
        if not self.warm or not self.result.done() or self.result.cancelled() or self.stop_asked:
            return False
        from aegis_agent.warm.standby import EARLY

        told = self.result.result()
        return told.ending is not None and told.ran_for < EARLY and told.ending.signal not in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    @property
    def pids(self) -> list[int]:
        return [rank.child.pid for rank in self._ranks]

    def start(self) -> None:
        """Start every local rank. What cannot be started is a result, not an error: 126 or 127, as a shell would say."""
        if self._log_dir is not None:
            forget_old_runs(self._log_dir.parent)
            try:
                self._log_dir.mkdir(parents=True, exist_ok=True)
            except OSError:
                self._log_dir = None  # the run matters more than its logs
        self._cgroup = Cgroup.make(self.plan.scope)
        self._began = time.monotonic()
        for local in range(1 if self.nested or self._bare else self.plan.nproc):
            try:
                self._ranks.append(self._start_rank(local))
            except OSError as error:
                self._cannot_start(error)
                return
        for rank in self._ranks:
            rank.child.exit.add_done_callback(lambda _: self._one_ended())

    def _start_rank(self, local: int) -> _Rank:
        argv, plan = self.argv, self.plan
        if self._bare:
            env = bare_environment(self._environ, plan.scope, plan.user)
        elif self.nested is not None:
            env = nested_environment(self._environ, plan, self.nested)
            values = dict(workers=plan.workers, index=plan.index, world=plan.world, address=plan.address, port=plan.port)
            argv = nesting.with_flags(argv, self.nested, values)
        else:
            env = rank_environment(self._environ, plan, local)
        error_file = env.get("TORCHELASTIC_ERROR_FILE", "")
        if error_file.startswith(plan.error_dir or "\0"):
            Path(error_file).unlink(missing_ok=True)
        pipe = None if self._inherit else subprocess.PIPE
        stdin = None if self._inherit and local == 0 else subprocess.DEVNULL
        child = self._spawn(argv, local, env, dict(stdin=stdin, stdout=pipe, stderr=pipe, cgroup_procs=self._cgroup.procs if self._cgroup else None))
        tail: deque[str] = deque(maxlen=TAIL)
        streams: list[Stream] = []
        log = None
        if child.stdout is not None and child.stderr is not None and self._out is not None and self._err is not None:
            rank = plan.index * plan.nproc + local
            log = LogFile(self._log_dir / f"rank{rank}.log") if self._log_dir else None
            who = plan.pod if self.nested or self._bare else f"{plan.pod}/r{rank}"
            prefix = b"" if self._raw else f"[{who} i{plan.incarnation}] ".encode()
            number = -1 if self.nested or self._bare else rank
            for pipe_end, sink, keep, kind in ((child.stdout, self._out, None, OUT), (child.stderr, self._err, tail, ERR)):
                feed = self._road.feed(number, plan.incarnation, kind) if self._road is not None else None
                streams.append(Stream(os.dup(pipe_end.fileno()), sink, log, prefix, keep, stamp=self._stamp, feed=feed))
                streams[-1].watch = self.watch
                pipe_end.close()
        return _Rank(local, child, streams, tail, log, error_file)

    def _spawn(self, argv: Sequence[str], local: int, env: Mapping[str, str], options: dict[str, Any]) -> Child:
        if self._standby is None:
            return self._reaper.spawn(argv, env=env, cwd=self._cwd or None, **options)
        from aegis_agent.warm import run

        preloaded = self._standby.preloaded
        child, warm = run(self._standby, self._reaper, argv, env=env, cwd=self._cwd or None, record=local == 0, **options)
        self.warm = self.warm or (warm and preloaded > 0)
        return child

    def _cannot_start(self, error: OSError) -> None:
        if self._cwd and not os.path.isdir(self._cwd):
            code, message = CANNOT_RUN, f"E111 {self.plan.pod}: working directory {self._cwd!r} is not there (exit 126). Not counted, not retried."
        else:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
            path = {**self._environ, **self.plan.user}
            message = not_found_message(self.plan.pod, self.plan.node, self.argv[0] if self.argv else "", code, path)
        told = Ending(code, 0, LostReason.ERROR, message[:500])
        self._decide(RunResult(told, -1, time.time_ns() // 1_000_000, time.monotonic() - self._began))

    def _one_ended(self) -> None:
        if self.result.done():
            return
        failed = [rank for rank in self._ranks if not rank.child.alive and rank.child.exit.result() != 0]
        if failed:
            # Several in one pass: the kernel does not say who was first; a signal is stronger evidence than words of a victim.
            judged = [(rank, self._judge(rank)) for rank in failed]
            rank, verdict = max(judged, key=lambda pair: (_STRENGTH.get(pair[1].reason, 2), -pair[0].child.ended_at))
            self._decide(RunResult(verdict, self._number(rank), rank.child.ended_at, time.monotonic() - self._began))
        elif not self.alive:
            self._stop_soon()

    def _judge(self, rank: _Rank) -> Ending:
        for stream in rank.streams:
            stream.drain()
        code = rank.child.exit.result()
        error_file = ""
        if rank.error_file:
            try:
                error_file = Path(rank.error_file).read_text(errors="replace")[: 1 << 20]
            except OSError:
                pass
        not_found = ""
        if code in (CANNOT_RUN, NOT_FOUND) and (name := missing_in_shell(rank.tail) or (self.argv[0] if code == CANNOT_RUN else "")):
            not_found = not_found_message(self.plan.pod, self.plan.node, name, code, {**self._environ, **self.plan.user})
        ran_for = time.monotonic() - self._began
        named = self._number(rank) if self.plan.nproc > 1 and not self._bare else -1
        if self.nested is not None:
            named = rank_in(rank.tail)
        return ending(code, list(rank.tail), ran_for, error_file=error_file, preempted=self.preempted, not_found=not_found, rank=named)

    def _number(self, rank: _Rank) -> int:
        """The global rank; -1 where it is not ours to give."""
        return -1 if self.nested or self._bare else self.plan.index * self.plan.nproc + rank.local

    def _decide(self, result: RunResult) -> None:
        if not self.result.done():
            self.result.set_result(result)
        self._stop_soon()

    def _stop_soon(self) -> None:
        if self._stopping is None:
            self._patience = Patience(self.grace)
            self._stopping = asyncio.get_running_loop().create_task(self._stop())

    async def stop(self, grace: float | None = None) -> Ended:
        """End the run and everything of it. Returns when the tree is verified gone, or `clean` false when something would not die.

        `grace` (seconds; default: the run's) lies between SIGTERM and SIGKILL. A second call may only shorten it.
        """
        self.stop_asked = True
        if self._stopping is None:
            self._patience = Patience(self.grace if grace is None else grace)
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        elif grace is not None:
            self._patience.shorten(grace)
        return await asyncio.shield(self._stopping)

    def send_signal(self, number: int) -> None:
        """Forward a signal to the process groups of the ranks."""
        for rank in self._ranks:
            rank.child.signal_group(number)

    def _find(self) -> dict[int, Proc]:
        found = members(self.plan.scope, whole=True, roots=(os.getpid(),), spare=self._reaper.helpers)
        for pid in self._cgroup.pids() if self._cgroup else ():
            if pid not in found and (proc := live(pid)) is not None:
                found[pid] = proc
        return found

    async def _stop(self) -> Ended:
        there, since = self._find(), ticks_now()
        told = set()
        for rank in self._ranks:  # at once; the sweeps find what is outside of these groups
            if rank.child.alive:
                told |= in_group(there.values(), rank.child.pid)
                rank.child.signal_group(signal.SIGTERM, signal.SIGCONT)
        ended = await end(self._find, self._patience, told=told, since=since, kill_all=self._cgroup.kill if self._cgroup else None)
        for rank in self._ranks:
            for stream in rank.streams:
                stream.drain()
                stream.close()
            if rank.log is not None:
                rank.log.close()
        if self._cgroup is not None:
            self._cgroup.remove()
        self.gone = ended
        self._reaper.reap()
        self._one_ended()
        if not self.result.done() and not self.alive:
            last = max((rank.child.ended_at for rank in self._ranks), default=0)
            self.result.set_result(RunResult(None, -1, last, time.monotonic() - self._began))
        return ended
