"""What a person on the machine may ask of a worker's agent over its socket (`aegis-agent ctl`), and the training may not: hang, burn, check, taint,
untaint, stop. Each harms this job at most; none excludes a node for others.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aegis_agent import own
from aegis_agent.checks.registry import CHECKS, named, run_check
from aegis_agent.control import Answer, Request
from aegis_agent.diagnosis import context_of, interpreter_of
from aegis_agent.env import without_secrets
from aegis_agent.scope import VARIABLE, end_scope, scope_id
from aegis_agent.training import RUNS

if TYPE_CHECKING:
    from aegis_agent.worker import Worker

MOST_SECONDS = 3600.0
SLACK = 60.0
"""Seconds beyond a burn's time after which it is ended: start of the interpreter, import of torch."""


def refused(error: str) -> Answer:
    return {"ok": False, "error": error}


class People:
    """Of one worker; `verbs` is what the socket calls."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._burning = False
        self.verbs: dict[str, Callable[[Request], Awaitable[Answer]]] = {
            "hang": self.hang,
            "taint": self.taint,
            "untaint": self.untaint,
            "burn": self.burn,
            "check": self.check,
            "stop": self.stop,
        }

    def _mark(self, kind: str, cleared: bool, why: str) -> Answer:
        worker = self.worker
        run = worker.exec.run
        if worker.plain or not worker.uplink.managed:
            return refused("this worker is not managed: nobody would act on it")
        if run is None or not run.alive or worker.phase not in RUNS:
            return refused("the command does not run")
        worker.write.marked(kind, cleared, why)
        return {"ok": True, "result": f"mark {kind} {'withdrawn' if cleared else 'asked for'}"}

    async def hang(self, request: Request) -> Answer:
        """Mark this worker as hung: evidence is taken, nothing is stopped before the deadline of a hang. `clear`: withdraw it."""
        return self._mark("hang", request.clear, request.why or "asked on the machine")

    async def taint(self, request: Request) -> Answer:
        """Mark this worker as slow: it leaves at the next complete checkpoint, and the job does not use its node again."""
        return self._mark("slow", False, request.why or "asked on the machine")

    async def untaint(self, request: Request) -> Answer:
        return self._mark("slow", True, request.why)

    async def stop(self, request: Request) -> Answer:
        """Leave as if the platform took this pod away: with the grace of preemption, not counted, placed anew."""
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        return {"ok": True, "result": f"leaving, the command has {self.worker.spec.preemptGrace:g} s"}

    async def check(self, request: Request) -> Answer:
        """Run checks by name (all without one), beside whatever runs."""
        worker = self.worker
        context = context_of(worker.exec, await interpreter_of(worker.exec), "")
        every = [check.name for check in CHECKS if check.applies(context)]
        names = request.name.split(",") if request.name and request.name != "all" else every
        chosen = [check for name in names if (check := named(name)) is not None]
        if len(chosen) != len(names):
            return refused(f"unknown check in {request.name!r}; known: {', '.join(check.name for check in CHECKS)}")
        task, run = worker.task, worker.exec.run
        if run is not None and run.alive:  # its processes are no leftovers: only those of other attempts would be
            context = replace(context, scope="")
        own = scope_id(task.uid, task.pod, task.attempt, "ctl")
        work = (run_check(worker.exec.reaper, check, context, worker.exec.environ, f"{own}-{check.name}") for check in chosen)
        results = await asyncio.gather(*work)
        return {"ok": all(result.Pass for result in results), "results": [msgspec.to_builtins(result) for result in results]}

    async def burn(self, request: Request) -> Answer:
        """Load CPUs or GPUs for a set time; refused beside a running command unless forced."""
        worker = self.worker
        kind, seconds = request.name or "cpu", request.seconds or 10.0
        if kind not in ("cpu", "gpu") or not 0 < seconds <= MOST_SECONDS:
            return refused(f"burn {kind} {seconds:g}: cpu or gpu, at most {MOST_SECONDS:g} s")
        if self._burning:
            return refused("one burn at a time")
        if worker.exec.run is not None and worker.exec.run.alive and not request.force:
            return refused("the command runs: it would be slowed down (--force does it all the same)")
        self._burning = True
        try:
            return await self._burn(kind, seconds)
        finally:
            self._burning = False

    async def _burn(self, kind: str, seconds: float) -> Answer:
        worker, task = self.worker, self.worker.task
        scope = scope_id(task.uid, task.pod, task.attempt, "burn")
        environ = {**without_secrets(worker.exec.environ), **task.spec.env, VARIABLE: scope}
        program = Path(__file__).with_name("burn.py").read_text()  # not by its path: beside it lie modules with names of the standard library
        python = [(await interpreter_of(worker.exec)).python or "python3"] if kind == "gpu" else own.python()  # the one that has the user's torch
        with tempfile.TemporaryFile() as output:
            try:
                child = worker.exec.reaper.spawn(
                    [*python, "-c", program, kind, str(seconds)],
                    env=environ,
                    stdout=output.fileno(),
                    stderr=subprocess.DEVNULL,
                    helper=True,
                )
            except OSError as error:
                return refused(f"cannot start {python}: {error.strerror}")
            try:
                async with asyncio.timeout(seconds + SLACK):
                    await asyncio.shield(child.exit)
            except TimeoutError:
                return refused(f"no result within {seconds + SLACK:g} s")
            finally:
                child.signal_group(signal.SIGKILL)
                await asyncio.shield(end_scope(scope, whole=True, limit=5.0))
            output.seek(0)
            lines = output.read(65536).decode(errors="replace").strip().splitlines()
        try:
            answer = msgspec.json.decode(lines[-1], type=dict[str, object]) if lines else {}
        except msgspec.MsgspecError:
            answer = {}
        if not isinstance(answer.get("pass"), bool):
            return refused(f"the burn ended with {child.exit.result()} and without a result")
        return {"ok": answer["pass"], **answer}
