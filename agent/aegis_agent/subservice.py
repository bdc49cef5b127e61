"""The saver's service beside a worker: begun when the training says that it saves by `aegis_saver`, kept up until the worker leaves.

Its output goes into that of the worker (`[w0 saver] ...`). One that dies is started again three seconds later, over runs as well: what it looks after
is the folder. Owns that process (a helper: never ended with a run).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aegis_agent.companions import Companion
from aegis_agent.env import without_secrets
from aegis_agent.output import Stream
from aegis_agent.procs import VARIABLE
from aegis_agent.reaper import Child
from aegis_agent.scope import scope_id

if TYPE_CHECKING:
    from aegis_agent.worker import Worker

AGAIN = 3.0
"""Seconds from its end to its next start."""


class SaverService(Companion):
    """One per worker; only the worker of rank 0 is ever asked."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._folder = ""
        self._asked = asyncio.Event()
        self.child: Child | None = None
        worker.exec.on_saver = self._begin

    def _begin(self, folder: str) -> None:
        if folder != self._folder:
            self._folder = folder
            if self.child is not None:
                self.child.signal_group(signal.SIGTERM)
        self._asked.set()

    async def work(self) -> None:
        await self._asked.wait()
        try:
            while True:
                code = await self._once()
                self._worker.exec.say(f"the saver's service ended with {code}; again in {AGAIN:g} s")
                await asyncio.sleep(AGAIN)
        finally:
            if self.child is not None:
                self.child.signal_group(signal.SIGKILL)

    async def _once(self) -> int:
        executor, task = self._worker.exec, self._worker.task
        found = importlib.util.find_spec("aegis_saver")
        if found is None or found.origin is None:
            return 127
        run = executor.run
        env = {
            **without_secrets(executor.environ),
            "AEGIS_SAVER_PYTHON": sys.executable,
            "AEGIS_JOB": task.job,
            "AEGIS_INCARNATION": str(run.plan.incarnation if run is not None else 0),
            "AEGIS_CONTROL_SOCKET": run.plan.socket if run is not None else "",
            VARIABLE: scope_id(task.uid, task.pod, task.attempt, "agent"),
        }
        words = ["/bin/sh", str(Path(found.origin).with_name("ckpt.sh")), self._folder]
        try:
            child = self.child = executor.reaper.spawn(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, helper=True)
        except OSError as error:
            executor.say(f"the saver's service cannot be started: {error}")
            return 126
        stream = Stream(_own(child), executor.out, None, f"[{task.pod} saver] ".encode(), None, stamp=task.stamp)
        try:
            return await child.exit
        finally:
            stream.drain()
            stream.close()


def _own(child: Child) -> int:
    """A descriptor of the output that the stream closes itself."""
    assert child.stdout is not None
    fd = os.dup(child.stdout.fileno())
    child.stdout.close()
    return fd
