"""Children of the agent: started, and reaped the moment they end, together with every orphan that falls to us (the duties of PID 1).

One place calls waitid, on SIGCHLD, for all: nothing else in the agent's process may use `subprocess` or asyncio's subprocesses while it is open.
Each child leads its own session, dies with the agent (PDEATHSIG) and, on request, starts inside a cgroup.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from aegis_agent.lifeline import end_with

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def hide_memory() -> None:
    """PR_SET_DUMPABLE 0: no other process of this user reads our memory, environment or files through /proc. A child that execs is open again."""
    _prctl(_PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Orphans below us become our children, not those of PID 1."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Child:
    """A started process. `exit` resolves to its return code: >= 0 as exited, -n when ended by signal n."""

    def __init__(
        self, pid: int, stdout: IO[bytes] | None, stderr: IO[bytes] | None, exited: asyncio.Future[int], popen: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.pid = pid
        self.exit = exited
        self.ended_at = 0  # ms since 1970
        self.stdout = stdout
        self.stderr = stderr
        self._popen = popen  # kept: its destructor would look for the process

    @property
    def alive(self) -> bool:
        return not self.exit.done()

    def signal_group(self, *numbers: int) -> None:
        """Signal its process group; only while it is not reaped, so that the group is still its own."""
        if self.alive:
            for number in numbers:
                try:
                    os.killpg(self.pid, number)
                except OSError:
                    return

    def ended(self, code: int) -> None:
        if self._popen is not None:
            self._popen.returncode = code
        self.ended_at = time.time_ns() // 1_000_000
        if not self.exit.done():
            self.exit.set_result(code)


class Reaper:
    """Starts children and reaps everything. Open it in the main thread: PDEATHSIG counts from the thread that forks."""

    def __init__(self) -> None:
        self.children: dict[int, Child] = {}
        self.orphans = 0
        """Orphans reaped so far."""
        self.helpers: set[int] = set()
        """Living children that are not of the user's command (checks, enrolment): never ended with a run."""

    def open(self) -> None:
        become_subreaper()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)
        self.reap()

    def close(self) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def reap(self) -> None:
        """Take every child that has ended."""
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                return
            if info is None:
                return
            child = self.children.pop(info.si_pid, None)
            self.helpers.discard(info.si_pid)
            if child is None:
                self.orphans += 1
            else:
                child.ended(info.si_status if info.si_code == os.CLD_EXITED else -info.si_status)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        pass_fds: Sequence[int] = (),
        cgroup_procs: str | None = None,
        helper: bool = False,
        nice: int = 0,
    ) -> Child:
        """Start `argv`; OSError when it cannot be started. The command is looked for in the PATH of `env`. `helper`: see `helpers`; `nice`: how much
        it gives way."""
        parent = os.getpid()

        def before_exec() -> None:
            end_with(parent)
            if nice:
                os.nice(nice)
            if cgroup_procs is not None:
                try:
                    fd = os.open(cgroup_procs, os.O_WRONLY)
                    os.write(fd, b"0")
                    os.close(fd)
                except OSError:
                    pass

        options: dict[str, Any] = dict(env=dict(env), cwd=cwd or None, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=tuple(pass_fds), bufsize=0)
        popen = subprocess.Popen(list(argv), start_new_session=True, preexec_fn=before_exec, **options)  # noqa: PLW1509 (main thread, prctl only)
        return self._keep(Child(popen.pid, popen.stdout, popen.stderr, asyncio.get_running_loop().create_future(), popen), helper)

    def adopt(self, pid: int, stdout: IO[bytes] | None, stderr: IO[bytes] | None, *, helper: bool = False) -> Child:
        """A process that somebody else has forked and that is our child now, before it can end."""
        return self._keep(Child(pid, stdout, stderr, asyncio.get_running_loop().create_future()), helper)

    def _keep(self, child: Child, helper: bool) -> Child:
        self.children[child.pid] = child
        if helper:
            self.helpers.add(child.pid)
        return child
