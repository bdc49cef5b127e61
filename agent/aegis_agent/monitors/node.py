"""The monitors of a machine: what all of it uses, every ten seconds, and what of it matters, as an event of the node.

Writes METRICS (`aegis.node.<n>.metric`) and EVENTS (`aegis.node.<n>.event.anomaly`: node, code, time and figures).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

import structlog
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_proto import subjects
from aegis_proto.messages import encode

from aegis_agent.handover import now_ms
from aegis_agent.lifeline import end_with
from aegis_agent.monitors.gpus import Gpus, Nvml
from aegis_agent.monitors.readings import of_machine
from aegis_agent.monitors.sampling import Sampler, anomaly, message
from aegis_agent.monitors.shapes import Finding, Shapes, thresholds

log = structlog.get_logger()


class NodeMonitor:
    """`look(bus)` is one poll. `environ`: for the process that asks NVML."""

    def __init__(self, node: str, environ: Mapping[str, str]) -> None:
        self._node, self._environ = node, environ
        self._shapes = Shapes()
        self._sampler = Sampler()
        self._nvml = Nvml(self._start)
        self._asker: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that asks NVML, 0 when there is none."""
        return self._asker.pid if self._asker is not None and self._asker.poll() is None else 0

    def _start(self, argv: Sequence[str], fd: int) -> None:
        before = partial(end_with, os.getpid())
        self._asker = subprocess.Popen(
            argv,
            env=dict(self._environ),
            stdin=fd,
            stdout=fd,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=before,  # noqa: PLW1509 (main thread, prctl only)
        )

    async def look(self, bus: Bus) -> None:
        findings: list[Finding] = []
        gpus: Gpus | None = None
        try:
            gpus = await self._nvml.read()
        except TimeoutError:
            findings.append(Finding("gpuSilent", now_ms(), 0.0, 0.0, "the GPU driver does not answer"))
        except Exception as error:  # no library, a lost GPU: the check of GPUs says what
            log.debug("NVML", error=str(error))
        sample = self._sampler.take(of_machine(), gpus, now_ms())
        if sample is not None:
            bus.core(subjects.node_metric(self._node), encode(message(sample, gpus, node=self._node)))
            findings += self._shapes.take(sample)
        for finding in findings:
            log.warning("monitor", code=finding.code, message=finding.message)
            try:
                await bus.publish(subjects.node_event(self._node, "anomaly"), encode(anomaly(finding, node=self._node)), msg_id="auto")
            except BusError as error:
                log.warning("monitor: not told", error=str(error))


async def pause() -> None:
    await asyncio.sleep(thresholds()["interval"])
