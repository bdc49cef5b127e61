"""The monitors of a machine: what all of it uses, every ten seconds, and what of it matters, as an event of the node.

Writes METRICS (`aegis.node.<n>.metric`) and EVENTS (`aegis.node.<n>.event.anomaly`: node, code, time and figures).
"""

from __future__ import annotations

import asyncio

import structlog
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_proto import subjects
from aegis_proto.messages import encode

from aegis_agent.handover import now_ms
from aegis_agent.monitors.readings import Gpus, Nvml, of_machine
from aegis_agent.monitors.sampling import Sampler, anomaly, message
from aegis_agent.monitors.shapes import Finding, Shapes, thresholds

log = structlog.get_logger()


class NodeMonitor:
    """`look(bus)` is one poll; `work` polls for ever with the bus that `bus()` gives then."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._shapes = Shapes()
        self._sampler = Sampler()
        self._nvml = Nvml()

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
