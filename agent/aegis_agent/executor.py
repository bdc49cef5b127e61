"""What a worker needs to run the command, managed or plain: the reaper, the output, the state directory, the control socket, signals.

Owns the state directory of the worker. Makes the `Run` of an incarnation from the task.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from aegis_proto.ids import pod_index

from aegis_agent import ports
from aegis_agent.control import Answer, ControlSocket, Request, Verb, socket_path
from aegis_agent.env import RunPlan, rank_environment
from aegis_agent.handover import EXIT_FILE, FLIGHT_DIR, LOG_DIR, Exit, Status, WorkerTask, now_ms, write_exit, write_status
from aegis_agent.output import Sink, with_time
from aegis_agent.procs import carries, descendants, processes, scope_prefix
from aegis_agent.progress import Progress
from aegis_agent.reaper import Reaper
from aegis_agent.runner import Run
from aegis_agent.scope import scope_id

if TYPE_CHECKING:
    from aegis_agent.logroad import LogRoad
    from aegis_agent.warm import Standby

FORWARDED = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT)
"""Passed on to the command as they are; SIGTERM and SIGINT mean something to the agent itself."""


class Executor:
    """`light`: a bare command that nobody manages: no state directory, no socket, its output not touched."""

    def __init__(self, task: WorkerTask, environ: Mapping[str, str], *, light: bool = False) -> None:
        self.task = task
        self.environ = dict(environ)
        self.light = light
        self.reaper = Reaper()
        self.out, self.err = Sink(1), Sink(2)
        self.run: Run | None = None
        self.road: LogRoad | None = None
        self.progress = Progress()
        self.index = pod_index(task.pod)
        self.people: dict[str, Verb] = {}
        """Verbs of the control socket that are not for the training."""
        self.state_dir: Path | None = None
        self.standby: Standby | None = None
        self.on_saver: Callable[[str], None] | None = None
        """Told the folder when a training begins to save by the saver."""
        self._own_dir = False
        self._control: ControlSocket | None = None
        self._warned: set[str] = set()

    async def open(self, on_term: Callable[[int], None], status: Callable[[], Status]) -> None:
        """Be the reaper, make the state directory, listen. `on_term(signal)` is called for SIGTERM and SIGINT."""
        self.reaper.open()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_term, number)
        for number in FORWARDED:
            loop.add_signal_handler(number, self.forward, number)
        if self.light and not self.task.stateDir:
            return
        try:
            if self.task.stateDir:
                folder = Path(self.task.stateDir)
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                (folder / EXIT_FILE).unlink(missing_ok=True)
            else:
                folder = Path(tempfile.mkdtemp(prefix="aegis-agent-"))
                self._own_dir = True
            self.state_dir = folder
            control = ControlSocket(socket_path(folder), lambda request: self._answer(request, status), self.people, self._of_training)
            await control.open()
            self._control = control
            self._open_standby(folder)
        except OSError as error:
            self.say(f"going on without {'a control socket' if self.state_dir else 'a state directory'}: {error}")

    async def close(self, last: Exit) -> None:
        """The last word, everywhere; then nothing is left of us."""
        if self.standby is not None:
            self.standby.close()
        if self._control is not None:
            await self._control.close()
        for sink in (self.out, self.err):
            await asyncio.to_thread(sink.flush, 2.0)
        write_exit(self.state_dir, self.task.terminationFile, last)
        self.reaper.close()
        if self._own_dir and self.state_dir is not None and last.code == 0:
            shutil.rmtree(self.state_dir, ignore_errors=True)

    def say(self, text: str) -> None:
        """One line to people, on stderr, among the output of the command."""
        head = with_time(b"[%b aegis] " % self.task.pod.encode()) if self.task.stamp else b"[%b aegis] " % self.task.pod.encode()
        self.err.write(head + text.encode() + b"\n")
        if self.road is not None:
            self.road.say(text)

    def write_status(self, status: Status) -> None:
        if self.state_dir is not None:
            try:
                write_status(self.state_dir, status)
            except OSError as error:
                self.say(f"cannot write the status: {error}")

    def note_end(self, last: Exit) -> None:
        """The command has ended, the agent stays: should it be killed now, the platform can still read how it went."""
        write_exit(self.state_dir, self.task.terminationFile, last)

    def forward(self, number: int) -> None:
        if self.run is not None:
            self.run.send_signal(number)

    def _open_standby(self, folder: Path) -> None:
        """A warm standby, where the job wants one and its command is a plain python script."""
        spec = self.task.spec
        if not spec.warm or self.light or not self.task.job:
            return
        from aegis_agent.warm import Standby, python_command

        command = python_command(spec.command)
        if command is None:
            self.say("no warm standby: the command is not a plain python script. Restarts are cold")
            return
        scope = scope_id(self.task.uid, self.task.pod, self.task.attempt, "agent")
        env = rank_environment(self.environ, self._plan(0, "", 0, spec.nprocPerNode, scope), 0)
        self.standby = Standby(self.reaper, command, env, cwd=spec.cwd, folder=folder, say=self.say)
        self.standby.open()

    # --- the run ----------------------------------------------------------------------------------------------------------------

    def start(self, incarnation: int, address: str, port: int, *, bare: bool = False) -> Run:
        """Start the command as run `incarnation`, with rank 0's store at `address:port`. The run before must be gone."""
        task, spec = self.task, self.task.spec
        scope = scope_id(task.uid or f"local-{os.getpid()}", task.pod, task.attempt, incarnation)
        plan = self._plan(incarnation, address, port, 1 if bare else spec.nprocPerNode, scope)
        last = self.run
        if self.standby is not None and last is not None and last.failed_early:
            self.standby.give_up(f"run {last.plan.incarnation}, started out of it, failed at once")
        progress = self.progress = Progress(began=time.monotonic())
        if self.state_dir is not None:
            (self.state_dir / EXIT_FILE).unlink(missing_ok=True)
        self.run = Run(
            self.reaper,
            plan,
            spec.command,
            environ=self.environ,
            cwd=spec.cwd,
            grace=spec.stopGrace,
            out=self.out,
            err=self.err,
            log_dir=self.state_dir / LOG_DIR if self.state_dir is not None else None,
            raw=task.raw,
            stamp=task.stamp,
            bare=bare,
            inherit=bare and task.raw,
            road=self.road,
            standby=self.standby,
        )
        warning = self.run.nested.warning if self.run.nested else None
        if warning and warning not in self._warned:
            self._warned.add(warning)
            self.say(warning)
        self.run.watch = lambda lines: progress.printed(lines, time.monotonic())
        self.run.start()
        return self.run

    def _flight_dir(self, incarnation: int) -> str:
        """Where the flight records of a run go; "" where there is no place for them."""
        if self.state_dir is None:
            return ""
        folder = self.state_dir / FLIGHT_DIR / str(incarnation)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return ""
        return str(folder)

    def _plan(self, incarnation: int, address: str, port: int, nproc: int, scope: str) -> RunPlan:
        task = self.task
        return RunPlan(
            job=task.job,
            pod=task.pod,
            attempt=task.attempt,
            incarnation=incarnation,
            index=self.index,
            workers=task.workers,
            nproc=nproc,
            address=address,
            port=port,
            max_restarts=task.spec.maxRetry,
            scope=scope,
            socket=str(self._control.path) if self._control is not None else "",
            error_dir=str(self.state_dir / LOG_DIR / str(incarnation)) if self.state_dir is not None else "",
            flight_dir=self._flight_dir(incarnation) if task.job else "",
            namespace=task.namespace if task.job else "",
            node=task.node,
            user=task.spec.env,
        )

    def start_plain(self) -> Run:
        """Start the command without Aegis: ranks from what the platform alone says; where it says nothing, the environment is left as it is."""
        task = self.task
        port = task.plainPort
        if not task.job or (task.workers > 1 and not task.plainAddr):
            bare = task.spec.nprocPerNode == 1
            return self.start(0, "127.0.0.1", 0 if bare else ports.free_port(task.spec.masterPortRange), bare=bare)
        if not port and task.workers == 1:
            port = ports.free_port(task.spec.masterPortRange)
        return self.start(0, task.plainAddr or "127.0.0.1", port)

    def _of_training(self, pid: int) -> bool:
        """Whether this process is the training's: below us, or of its scope. One that cannot be looked at is taken for one."""
        prefix = scope_prefix(self.task.uid, self.task.pod) if self.task.uid else f"local-{os.getpid()}."
        return pid <= 0 or pid in descendants(processes(), [os.getpid()]) or carries(pid, prefix)

    # --- the child's words ------------------------------------------------------------------------------------------------------

    def _answer(self, request: Request, status: Callable[[], Status]) -> Answer:
        import msgspec

        now = time.monotonic()
        if request.verb == "progress":
            self.progress.advance(request.step, now)
        elif request.verb == "checkpoint":
            self.progress.saved(request.step)
        elif request.verb == "expect-long":
            if not 0 < request.seconds <= 86400:
                return {"ok": False, "error": f"expect-long {request.seconds:g}: between 0 and 86400 seconds"}
            self.progress.expect_long(request.seconds, now)
        elif request.verb == "saver":
            if self.on_saver is None or not os.path.isabs(request.path):
                return {"ok": False, "error": f"saver {request.path!r}: an absolute path, of a managed worker"}
            self.on_saver(request.path)
        else:
            return {"status": msgspec.to_builtins(status())}
        return {}


def last_word(task: WorkerTask, code: int, *, reason: str, run: Run | None, plain: bool = False, message: str = "") -> Exit:
    """The end of a worker that leaves with `code`, with what is known of its last run."""
    result = run.result.result() if run is not None and run.result.done() else None
    told = result.ending if result else None
    return Exit(
        code=code,
        signal=told.signal if told else 0,
        reason=reason,
        at=now_ms(),
        plain=plain,
        message=(message or (told.message if told else ""))[:500],
        uid=task.uid,
        pod=task.pod,
        attempt=task.attempt,
        incarnation=run.plan.incarnation if run is not None else -1,
        clean=run is None or run.gone is None or run.gone.clean,
        childCode=result.code if result else None,
    )


def hello(task: WorkerTask) -> None:
    if task.job:
        sys.stderr.write(f"aegis-agent: {task.pod} of {task.job}, attempt {task.attempt}, pid {os.getpid()}\n")
