"""What workers and machines use (stream METRICS), and what of it matters.

Reads and writes nothing. Whose a sample is, is said by the subject, never by the body. None: not known, or not there.

| subject | who | what |
|---|---|---|
| aegis.job.<j>.metric.<pod> | agent | UsageSample of the run's processes |
| aegis.node.<n>.metric | node daemon | UsageSample of the machine |
| aegis.node.<n>.event.anomaly | node daemon | Anomaly |
"""

from __future__ import annotations

import msgspec

from aegis_proto import WIRE_VERSION


class UsageSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rates since the sample before, per second. GPUs: percent, bytes, watts, degrees Celsius, one per GPU."""

    at: int  # ms
    node: str = ""
    job: str = ""
    pod: str = ""
    incarnation: int = -1
    cpu: float | None = None  # cores
    memory: float | None = None  # bytes
    memoryLimit: float | None = None
    network: float | None = None  # bytes/s, both directions
    written: float | None = None  # bytes/s, to disks
    gpus: tuple[float, ...] = ()
    gpuMemory: tuple[float, ...] = ()
    gpuPower: tuple[float, ...] = ()
    gpuTemperature: tuple[float, ...] = ()
    v: int = WIRE_VERSION


ANOMALIES = frozenset({"gpuIdle", "bandwidthCollapse", "memoryGrowth", "gpuSilent"})
"""Codes of what a monitor notices."""


class Anomaly(msgspec.Struct, frozen=True, omit_defaults=True):
    """The four of the seed (pod, node, reason code, time), with the figures. Codes: gpuIdle, bandwidthCollapse, memoryGrowth, gpuSilent."""

    podName: str
    nodeName: str
    code: str
    timeStamp: int  # ms
    message: str = ""
    value: float = 0.0
    expected: float = 0.0
    job: str = ""
    incarnation: int = -1
    v: int = WIRE_VERSION


EXAMPLE = UsageSample(
    1_796_000_000_000, "n1", cpu=9.8, memory=61e9, memoryLimit=128e9, network=4.1e9, written=0.0, gpus=(97.0, 96.0), gpuPower=(612.0, 605.0)
)
NOTICED = Anomaly("", "n1", "memoryGrowth", EXAMPLE.at, "memory only grows: 15360 MiB more, now 62% of 128.0 GiB", 85e9, 69e9)
"""Examples for the generated documents."""
