"""A fleet with lemons, drawn from a seed: shaped on the published numbers of RSC-1. Pure but for the generator it makes from the seed.

The fleet's mean failure rate is pinned; lemons fail `ratio` times as often as a healthy node. At a ratio of 225 and 1.2 % lemons, jobs of 512 and
more GPUs fail in 14 % of cases with lemons and 4 % without, as published; real fleets (LANL) are nearer to 5 to 9.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SHARE: dict[int, float] = {1: 0.09, 2: 0.05, 4: 0.06, 8: 0.07, 16: 0.07, 32: 0.11, 64: 0.11, 128: 0.18, 256: 0.14, 512: 0.12}
"""Nodes of a job -> share of the fleet's node time (Kokolis et al., fig. 6)."""
HARDWARE_XIDS, APPLICATION_XIDS = (48, 63, 74, 79, 94, 95), (13, 31, 43)
USERS, FAMILIES = 60, 12
MOST_NODES, MOST_DAYS = 50_000, 3660
DAY = 86_400.0


@dataclass(frozen=True)
class WorldSpec:
    """Rates per node-day; `attributed` is the share of failures that name their node; `onset` the share of the time over which lemons turn bad."""

    ratio: float = 225.0
    attributed: float = 0.7
    seed: int = 1
    nodes: int = 2000
    lemons: int = 24
    days: int = 28
    rf: float = 6.50e-3
    utilisation: float = 0.83
    mean_run: float = 0.2
    onset: float = 0.0
    black_hole: bool = False
    bursts: bool = False
    roles: bool = False

    def __post_init__(self) -> None:
        if self.nodes < 1 or not 0 <= self.lemons <= self.nodes or self.days < 1:
            raise WorldError(f"{self.nodes} nodes, {self.lemons} lemons, {self.days} days: expected lemons among the nodes, and at least a day")
        if self.seed < 0 or self.nodes > MOST_NODES or self.days > MOST_DAYS:
            raise WorldError(f"seed {self.seed}, {self.nodes} nodes, {self.days} days: expected 0 or more, at most {MOST_NODES} and {MOST_DAYS}")
        if not 1 <= self.ratio <= 1e6 or not 0 <= self.attributed <= 1 or not 0 <= self.onset <= 1:
            raise WorldError(
                f"ratio {self.ratio:g}, attributed {self.attributed:g}, onset {self.onset:g}: expected a ratio of 1 to 1e6 and shares of 0 to 1"
            )


class WorldError(ValueError):
    """A world that cannot be drawn."""

    code = "E140"


@dataclass(frozen=True)
class DrawnJob:
    """Times in days; `culprit` is the node that failed it (-1: none), `blame` the one that the history names."""

    start: float
    end: float
    nodes: NDArray[np.int64]
    state: str
    user: int
    family: int
    culprit: int = -1
    blame: int = -1
    excluded: tuple[int, ...] = ()


@dataclass
class World:
    """Truth and what a history would hold of it."""

    spec: WorldSpec
    lemon: NDArray[np.bool_]
    onset: NDArray[np.float64]
    jobs: list[DrawnJob] = field(default_factory=list)
    events: list[tuple[float, int, str, float, str]] = field(default_factory=list)
    """(day, node, kind, end in days, value)."""
    role: list[str] = field(default_factory=list)

    def rack(self, node: int) -> str:
        """Two nodes a rack would hide a rack's fault behind its nodes; 20 nodes share a pod's switch."""
        return f"r{node // 16:03d}"

    def large_failures(self, least: int = 64) -> tuple[float, float]:
        """Share of jobs of at least `least` nodes that the infrastructure failed, and the same without those that a lemon failed."""
        large = [job for job in self.jobs if len(job.nodes) >= least]
        failed = [job for job in large if job.culprit >= 0]
        kept = [job for job in failed if not self.lemon[job.culprit]]
        return len(failed) / max(1, len(large)), len(kept) / max(1, len(large))


def generate(spec: WorldSpec) -> World:
    """Draw it. The same spec gives the same world."""
    rng = np.random.default_rng(spec.seed)
    n = spec.nodes
    healthy = spec.rf / (1 + spec.lemons / n * (spec.ratio - 1))
    lemon = np.zeros(n, np.bool_)
    lemon[rng.choice(n, spec.lemons, replace=False)] = True
    rate = np.where(lemon, spec.ratio * healthy, healthy * rng.gamma(4, 0.25, n))  # healthy nodes differ mildly, as fleets do
    role = ["" for _ in range(n)]
    if spec.roles:
        for node in range(0, n, 32):  # LANL's: the first node of each domain does more, and fails more
            role[node] = "head"
            rate[node] = max(rate[node], 15 * healthy)
    world = World(spec, lemon, np.where(lemon, rng.uniform(0, spec.onset * spec.days, n), 0.0) if spec.onset else np.zeros(n), role=role)
    free: deque[int] = deque(maxlen=64)
    for day in range(spec.days):
        for size, share in SHARE.items():
            if size > n:
                continue
            for _ in range(rng.poisson(share * spec.utilisation * n / (size * spec.mean_run))):
                nodes = rng.choice(n, size, replace=False, shuffle=False) if size > 1 else rng.integers(0, n, 1)
                if spec.black_hole and size <= 8 and free:
                    nodes = np.unique(np.append(nodes[1:], free.popleft()))
                _draw_job(world, rng, day=day, nodes=nodes, rate=rate, healthy=healthy, free=free)
    _draw_noise(world, rng)
    if spec.bursts:
        _draw_bursts(world, rng)
    world.jobs.sort(key=lambda job: job.start)
    world.events.sort()
    return world


def _draw_job(
    world: World, rng: np.random.Generator, *, day: int, nodes: NDArray[np.int64], rate: NDArray[np.float64], healthy: float, free: deque[int]
) -> None:
    spec = world.spec
    start = day + rng.random()
    rates = np.where(world.lemon[nodes] & (world.onset[nodes] > start), healthy, rate[nodes])
    length, until = rng.exponential(spec.mean_run), rng.exponential(1 / rates.sum())
    user, family = int(rng.zipf(1.6) % USERS), int(rng.integers(0, FAMILIES))
    excluded = tuple(int(node) for node in rng.integers(0, spec.nodes, 3)) if rng.random() < 0.02 else ()
    if until >= length:
        state = "failed" if rng.random() < 0.24 else "completed"
        world.jobs.append(DrawnJob(start, start + length, nodes, state, user, family, excluded=excluded))
        return
    culprit = int(nodes[np.searchsorted(np.cumsum(rates), rng.uniform(0, rates.sum()))])
    end = start + until
    named = bool(rng.random() < spec.attributed)
    world.jobs.append(DrawnJob(start, end, nodes, "node_fail", user, family, culprit, culprit if named else -1, excluded))
    if spec.black_hole:
        free.extend([culprit] * int(rng.poisson(2)))
    if named:
        for _ in range(rng.poisson(2)):
            world.events.append((end - rng.uniform(0, 60) / DAY, culprit, "xid", 0.0, str(rng.choice(HARDWARE_XIDS))))
        if rng.random() < 0.5:
            world.events.append((end, culprit, "out", end + rng.uniform(0.01, 0.03), ""))
        if rng.random() < 0.1:
            world.events.append((end, culprit, "ticket", 0.0, ""))


def _draw_noise(world: World, rng: np.random.Generator) -> None:
    """Application XIDs with a heavy tail, and maintenance, which say nothing about hardware."""
    for node, count in enumerate(rng.negative_binomial(0.15, 0.13, world.spec.nodes)):
        for _ in range(count):
            world.events.append((rng.uniform(0, world.spec.days), node, "xid", 0.0, str(rng.choice(APPLICATION_XIDS))))
    for node in rng.integers(0, world.spec.nodes, world.spec.nodes // 20):
        begin = rng.uniform(0, world.spec.days)
        world.events.append((begin, int(node), "out", begin + rng.uniform(0.05, 0.5), ""))


def _draw_bursts(world: World, rng: np.random.Generator) -> None:
    """Racks that lose their link: most of their nodes fail within minutes, several times in a week."""
    for rack in rng.choice(max(1, world.spec.nodes // 16), min(3, max(1, world.spec.nodes // 16)), replace=False):
        begin = rng.uniform(0, max(0.1, world.spec.days - 7))
        for _ in range(6):
            at = begin + rng.uniform(0, 7)
            for node in range(rack * 16, min(world.spec.nodes, rack * 16 + 16)):
                if rng.random() < 0.7:
                    world.events.append((at + rng.uniform(0, 300) / DAY, node, "failure", 0.0, "link"))
