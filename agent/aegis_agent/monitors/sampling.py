"""From readings to samples: rates between two readings, the message for METRICS, and the finding as a record. Pure but for the clock it is given."""

from __future__ import annotations

from aegis_proto.metrics import Anomaly, UsageSample

from aegis_agent.monitors.gpus import Gpus
from aegis_agent.monitors.readings import Counted
from aegis_agent.monitors.shapes import Finding, Sample


class Sampler:
    """Rates of one series."""

    def __init__(self) -> None:
        self._last: Counted | None = None

    def take(self, now: Counted, gpus: Gpus | None, at: int, *, patience: bool = False) -> Sample | None:
        """None for the first reading, and after counters went back (a process has gone)."""
        last, self._last = self._last, now
        if last is None or now.at <= last.at:
            return None
        seconds = now.at - last.at

        def rate(new: float, old: float) -> float | None:
            return (new - old) / seconds if new >= old else None

        return Sample(
            at,
            cpu=rate(now.cpu, last.cpu),
            memory=now.memory,
            memory_limit=now.memory_limit,
            gpu=min(gpus.use) if gpus is not None and gpus.use else None,
            network=rate(now.network, last.network),
            written=rate(now.written, last.written),
            patience=patience,
        )


def message(sample: Sample, gpus: Gpus | None, *, node: str, job: str = "", pod: str = "", incarnation: int = -1) -> UsageSample:
    return UsageSample(
        at=sample.at,
        node=node,
        job=job,
        pod=pod,
        incarnation=incarnation,
        cpu=round(sample.cpu, 3) if sample.cpu is not None else None,
        memory=sample.memory,
        memoryLimit=sample.memory_limit,
        network=round(sample.network, 1) if sample.network is not None else None,
        written=round(sample.written, 1) if sample.written is not None else None,
        gpus=gpus.use if gpus is not None else (),
        gpuMemory=gpus.memory if gpus is not None else (),
        gpuPower=gpus.power if gpus is not None else (),
        gpuTemperature=gpus.temperature if gpus is not None else (),
    )


def anomaly(finding: Finding, *, node: str, job: str = "", pod: str = "", incarnation: int = -1) -> Anomaly:
    """Pod, node, code and time: what an anomaly always says, with the figures."""
    return Anomaly(pod, node, finding.code, finding.at, finding.message, finding.value, finding.expected, job, incarnation)
