"""Shapes in a series of samples. Pure: samples in, findings out; thresholds are `shapes.toml`.

A `Sample` is what one worker or machine used since the sample before. Findings are told once per episode: the shape must go before it is found again.
"""

from __future__ import annotations

import statistics
import tomllib
from collections import deque
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any


@cache
def thresholds() -> dict[str, Any]:
    return tomllib.loads(resources.files("aegis_agent.monitors").joinpath("shapes.toml").read_text())


@dataclass(frozen=True, slots=True)
class Sample:
    """Rates since the sample before. None: not known or not there. `patience`: the run has asked for it (`expect-long`), or is not training."""

    at: int  # ms since 1970
    cpu: float | None = None  # cores
    memory: float | None = None  # bytes resident
    memory_limit: float | None = None
    gpu: float | None = None  # percent, the least busy GPU
    network: float | None = None  # bytes/s, sent and received
    written: float | None = None  # bytes/s, to disks
    patience: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """`value` beside what was `expected`, in the unit of the text."""

    code: str
    at: int
    value: float
    expected: float
    message: str


class GpuZero:
    """GPUs that were busy do nothing, and nothing is being saved."""

    code = "gpuIdle"

    def __init__(self, limits: dict[str, Any]) -> None:
        self.limits = limits
        self._before: deque[float] = deque(maxlen=limits["history"])
        self._seen = 0
        self._quiet = 0
        self._longest = 0  # pauses of this run that ended by themselves, in samples
        self._told = False

    def take(self, sample: Sample) -> Finding | None:
        t = self.limits
        self._seen += 1
        if sample.gpu is None:
            return None
        usual = statistics.median(self._before) if self._before else 0.0
        saving = max(sample.written or 0.0, 0.0) >= t["writing"]
        if sample.gpu > t["idle"]:
            if usual >= t["busy"] and not self._told:
                self._longest = max(self._longest, self._quiet)
            self._before.append(sample.gpu)
            self._quiet, self._told = 0, False
            return None
        if saving or sample.patience:
            self._quiet = 0
            return None
        self._quiet += 1
        enough = max(t["samples"], int(self._longest * t["patience"]) + 1 if self._longest >= t["samples"] else 0)
        if self._told or self._seen <= t["settle"] or usual < t["busy"] or self._quiet < enough:
            return None
        self._told = True
        return Finding(
            self.code,
            sample.at,
            sample.gpu,
            usual,
            f"GPUs do nothing for {self._quiet} samples; they were {usual:.0f} % busy, nothing is being saved",
        )


class BandwidthCollapse:
    """Traffic falls to a part of what it was, while the work goes on."""

    code = "bandwidthCollapse"

    def __init__(self, limits: dict[str, Any]) -> None:
        self.limits = limits
        self._traffic: deque[float] = deque(maxlen=limits["history"])
        self._use: deque[float] = deque(maxlen=limits["history"])
        self._seen = 0
        self._low = 0
        self._told = False

    def take(self, sample: Sample) -> Finding | None:
        t = self.limits
        self._seen += 1
        use = sample.gpu if sample.gpu is not None else sample.cpu
        if sample.network is None or use is None or sample.patience:
            return None
        if self._seen <= t["settle"]:
            self._traffic.append(sample.network)
            self._use.append(use)
            return None
        usual, working = statistics.median(self._traffic), statistics.median(self._use)
        if usual < t["least"] or use < t["busy"] * working:
            self._low = 0
            if use >= t["busy"] * working:
                self._keep(sample.network, use)
            return None
        share = sample.network / usual
        if not t["above"] <= share < t["below"]:
            self._low, self._told = 0, False
            if share >= t["below"]:
                self._keep(sample.network, use)
            return None
        self._low += 1
        if self._told or self._low < t["samples"]:
            return None
        self._told = True
        text = f"traffic fell to {sample.network / 1e6:.1f} MB/s, {share:.0%} of {usual / 1e6:.1f} MB/s, while the work goes on"
        return Finding(self.code, sample.at, sample.network, usual, text)

    def _keep(self, network: float, use: float) -> None:
        self._traffic.append(network)
        self._use.append(use)


class _Climb:
    """A level that only rises. The level is the lowest of the last `lowest` samples: what comes and goes within them is no rise."""

    def __init__(self, limits: dict[str, Any], lowest: int) -> None:
        self.limits = limits
        self._last: deque[float] = deque(maxlen=lowest)
        self._levels: list[float] = []  # since it last fell or stood
        self._highest = 0.0

    def take(self, share: float) -> float | None:
        """`share` of the limit; the rise when it has been steady and large, else None."""
        t = self.limits
        self._last.append(share)
        if len(self._last) < (self._last.maxlen or 0):
            return None
        level, levels = min(self._last), self._levels
        stands = len(levels) >= t["standing"] and level - levels[-t["standing"]] < t["slack"]
        if levels and (level < self._highest - t["slack"] or stands or len(levels) >= t["history"]):
            levels.clear()
            self._highest = level
        levels.append(level)
        self._highest = max(self._highest, level)
        start = next((i for i in range(len(levels) - 1, -1, -1) if levels[i] <= level - t["rise"]), None)
        if start is None or len(levels) - 1 - start < t["least"] or level < t["used"]:
            return None
        rise, n = level - levels[start], len(levels) - 1 - start
        marks = [levels[start + n * k // 4] for k in range(5)]
        steady = min(after - before for before, after in pairwise(marks))
        return rise if steady >= t["steady"] * rise else None


class MemoryGrowth:
    """Memory that only grows: quickly, or over hours below what checkpoints and evaluations take and give back."""

    code = "memoryGrowth"

    def __init__(self, limits: dict[str, Any]) -> None:
        self.limits = limits
        self._seen = 0
        self._climbs = [_Climb(limits, lowest) for lowest in limits["lowest"]]
        self._told = False

    def take(self, sample: Sample) -> Finding | None:
        self._seen += 1
        if sample.memory is None or not sample.memory_limit or self._seen <= self.limits["settle"]:
            return None
        share = sample.memory / sample.memory_limit
        rises = [rise for climb in self._climbs if (rise := climb.take(share)) is not None]
        if not rises or self._told:  # once a run: it does not stop by itself
            return None
        self._told = True
        rise = max(rises)
        text = f"memory only grows: {rise * sample.memory_limit / 2**20:.0f} MiB more, now {share:.0%} of {sample.memory_limit / 2**30:.1f} GiB"
        return Finding(self.code, sample.at, sample.memory, (share - rise) * sample.memory_limit, text)


class Shapes:
    """All detectors over one series. `begin` at the start of each run: nothing of an earlier one is used."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        t = thresholds()
        self._detectors = (GpuZero(t["gpu_zero"]), BandwidthCollapse(t["bandwidth_collapse"]), MemoryGrowth(t["memory_growth"]))

    def take(self, sample: Sample) -> list[Finding]:
        return [finding for detector in self._detectors if (finding := detector.take(sample)) is not None]
