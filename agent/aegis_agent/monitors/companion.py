"""The monitors of a worker: what the processes of its run use, every ten seconds, and what of it
matters, as a report.

Writes METRICS (`aegis.job.<j>.metric.<pod>`), and REPORTS of kind `check` with CheckType `monitor`. Never in the way: a bus that is away
loses samples.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aegis_proto import subjects
from aegis_proto.messages import CheckResult, encode

from aegis_agent.companions import Companion
from aegis_agent.env import without_secrets
from aegis_agent.handover import now_ms
from aegis_agent.monitors.gpus import Gpus, Nvml
from aegis_agent.monitors.readings import of_processes
from aegis_agent.monitors.sampling import Sampler, message
from aegis_agent.monitors.shapes import Finding, Shapes, thresholds
from aegis_agent.procs import descendants, processes

if TYPE_CHECKING:
    from aegis_agent.runner import Run
    from aegis_agent.worker import Worker

log = logging.getLogger(__name__)


class Monitor(Companion):
    """One per worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._shapes = Shapes()
        self._sampler = Sampler()
        self._nvml = Nvml(self._start)

    def run_started(self, run: Run) -> None:
        self._shapes.begin()  # nothing of an earlier run is evidence
        self._sampler = Sampler()

    def _start(self, argv: Sequence[str], fd: int) -> None:
        """The process that asks NVML: a helper, never ended with a run."""
        executor = self._worker.exec
        executor.reaper.spawn(argv, env=without_secrets(executor.environ), stdin=fd, stdout=fd, stderr=subprocess.DEVNULL, helper=True)

    async def close(self) -> None:
        self._nvml.close()

    async def work(self) -> None:
        while True:
            await asyncio.sleep(thresholds()["interval"])
            run = self._worker.exec.run
            if run is None or not run.alive or run.stop_asked:
                continue
            await self.sample(run)

    async def sample(self, run: Run) -> None:
        worker, task = self._worker, self._worker.task
        try:
            gpus: Gpus | None = await self._nvml.read()
        except TimeoutError:
            gpus = None
            self._tell(Finding("gpuSilent", now_ms(), 0.0, 0.0, "the GPU driver does not answer"))
        except Exception as error:  # no library, a lost GPU: the check of GPUs says what
            log.debug("NVML: %s", error)
            gpus = None
        if run is worker.exec.run:
            worker.exec.progress.gpu = min(gpus.use) if gpus is not None and gpus.use else -1.0
        roots = run.pids
        pids = {*roots, *descendants(processes(), roots)}
        patience = time.monotonic() < worker.exec.progress.long_until
        sample = self._sampler.take(of_processes(pids), gpus, now_ms(), patience=patience)
        if sample is None or run is not worker.exec.run:
            return
        bus = worker.uplink.bus
        if bus is not None and worker.uplink.connected:
            usage = message(sample, gpus, node=task.node, job=task.job, pod=task.pod, incarnation=run.plan.incarnation)
            bus.core(subjects.job_metric(task.job, task.pod), encode(usage))
        for finding in self._shapes.take(sample):
            self._tell(finding)

    def _tell(self, finding: Finding) -> None:
        worker = self._worker
        worker.exec.say(f"monitor: {finding.message}")
        values = {"value": finding.value, "expected": finding.expected}
        worker.write.noticed(CheckResult("monitor", False, finding.message, finding.at, node=worker.task.node, code=finding.code, values=values))
