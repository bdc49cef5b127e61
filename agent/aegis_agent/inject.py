"""Faults on one's own job, asked for by `aegis job inject` (a job that allows it): done by the agent to its own command, once per request.

| fault | what is done |
|---|---|
| kill | SIGKILL to the first rank (its process group) |
| raise | SIGINT to it: KeyboardInterrupt in Python |
| hang | SIGSTOP to it |
| oom | the address space of the first rank is limited to half of what it has: what it asks of the kernel next fails |
| stop | SIGTERM to the agent: a notice of preemption |
"""

from __future__ import annotations

import os
import resource
import signal
from typing import TYPE_CHECKING

from aegis_proto.state import Inject

if TYPE_CHECKING:
    from aegis_agent.runner import Run
    from aegis_agent.worker import Worker


class Injector:
    """Of one worker: `heard` with what each head asks for."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._done: set[str] = set()

    def heard(self, ask: Inject | None) -> None:
        worker = self.worker
        if ask is None or ask.id in self._done or ask.pod != worker.task.pod or ask.attempt != worker.task.attempt:
            return
        run = worker.exec.run
        if run is None or not run.alive or run.plan.incarnation != ask.incarnation or not worker.spec.allowInject:
            return
        self._done.add(ask.id)
        worker.exec.say(f"fault injected: {ask.fault}")
        try:
            self._do(ask.fault, run)
        except OSError as error:
            worker.exec.say(f"fault {ask.fault} could not be injected: {error}")

    def _do(self, fault: str, run: Run) -> None:
        pid = run.pids[0]
        match fault:
            case "kill":
                os.killpg(pid, signal.SIGKILL)
            case "raise":
                os.killpg(pid, signal.SIGINT)
            case "hang":
                os.killpg(pid, signal.SIGSTOP)
            case "oom":
                half = int(_field(pid, "VmSize")) * 512
                resource.prlimit(pid, resource.RLIMIT_AS, (half, half))
            case "stop":
                os.kill(os.getpid(), signal.SIGTERM)
            case _:
                self.worker.exec.say(f"fault {fault} is not known here")


def _field(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/status", errors="replace") as file:
        return next((line.split()[1] for line in file if line.startswith(f"{name}:")), "0")
