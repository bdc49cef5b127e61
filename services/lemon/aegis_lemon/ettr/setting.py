"""What an expected ETTR is computed from: one frozen value, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

DAY = 86_400.0
GPUS_PER_NODE = 8
RSC1, RSC2 = 6.50, 2.34
"""Failures per 1000 node-days of the two research clusters of Kokolis et al. (HPCA 2025): jobs of more than 128 GPUs."""
LLAMA3 = 419 / (2048 * 54) * 1000
"""419 unplanned interruptions of 2,048 nodes in 54 days (arXiv 2407.21783, table 5): 3.79."""


class SettingError(ValueError):
    """A value that no run can have; the message names it and what was expected."""

    code = "E140"


@dataclass(frozen=True)
class Setting:
    """A job and its surroundings. Seconds; `rf` in failures per 1000 node-days; `run` 0 means a very long run.

    write    seconds a save stops training (of an async save: its stall)
    restart  from nodes held to training moving again
    queue    mean wait for nodes, at the start and after each stop; failures do not strike there
    persist  async only: seconds until a snapshot is durable after its stall; a stop before that loses it
    slowdown async only: share of speed lost while persisting (0..1)
    """

    nodes: float
    rf: float
    write: float = 0.0
    restart: float = 300.0
    queue: float = 0.0
    run: float = 0.0
    persist: float = 0.0
    slowdown: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0:
                raise SettingError(f"{field.name} {value}: expected a finite number, not negative")
        if self.nodes == 0:
            raise SettingError("nodes 0: expected at least a part of one node")
        if not math.isfinite(self.nodes * self.rf):
            raise SettingError(f"{self.nodes:g} nodes at rf {self.rf:g}: expected a failure rate that is a number")
        if self.slowdown > 1:
            raise SettingError(f"slowdown {self.slowdown}: expected a share of speed, 0 to 1")

    @classmethod
    def of_gpus(cls, gpus: float, rf: float, **rest: float) -> Setting:
        """The same by GPUs, eight to a node."""
        return cls(gpus / GPUS_PER_NODE, rf, **rest)

    @property
    def rate(self) -> float:
        """Failures of the job per second: nodes x r_f."""
        return self.nodes * self.rf / 1000 / DAY

    @property
    def mttf(self) -> float:
        """Mean time to failure of the job, seconds; infinite without failures."""
        return 1 / self.rate if self.rate > 0 else math.inf

    @property
    def overhead(self) -> float:
        """Seconds that one save costs: the stall, and what persisting slows down."""
        return self.write + self.slowdown * self.persist
