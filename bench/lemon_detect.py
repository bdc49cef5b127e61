"""Precision and recall of every detector on generated worlds, written in the documented format and read back: mean over seeds, 28 days.

Claim, default detector: at least 0.9 / 0.9 for lemons of 225 times the healthy rate with 70 % of failures attributed, 0.9 / 0.62 with 20 %, 0.85 /
0.6 for 50 times with 70 %; the specification's rules beside it. With the black hole on: failure rate of jobs of 512 and more GPUs, with and without
lemons. The oracle is no detector: Gibbs sampling of blame, classes and rates with the world's own rates, spread and share of lemons, at the same
threshold and where it is as precise as the reference. Nobody finds more, save by the chance of these seeds.
usage: python bench/lemon_detect.py [--seeds 10] [--first 1000] [--worlds FILE.py]
       Exit code 1: less than that, or, beside a reference, less precision or recall than its detector has.
       --worlds names a module with world(ratio, days, seed, attributed) -> (lemons, jobs, ...) as of the reference; its detector is run beside ours
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from aegis_lemon.detect import DETECTORS, Thresholds, rank
from aegis_lemon.detect.score import Bools, Floats, precision_recall
from aegis_lemon.generate import WorldSpec, generate, write_world
from aegis_lemon.history import Observed, observe, read

CLAIMS = {(225.0, 0.7): (0.9, 0.9), (225.0, 0.2): (0.9, 0.62), (50.0, 0.7): (0.85, 0.6)}
EPOCH = 1_767_225_600


def own(ratio: float, attributed: float, seed: int, folder: Path) -> tuple[Observed, set[str]]:
    world = generate(WorldSpec(ratio=ratio, attributed=attributed, seed=seed))
    write_world(world, folder)
    return observe(read(folder)), {f"n{node:04d}" for node in np.flatnonzero(world.lemon)}


def foreign(module: Any, ratio: float, attributed: float, seed: int, folder: Path) -> tuple[Observed, set[str], tuple[float, float]]:
    """A world of the reference in the documented format; and what the reference's own detector makes of it."""
    lemon, jobs, *_ = module.world(ratio, 28, seed, attributed)
    with (folder / "jobs.csv").open("w") as file:
        file.write("job,start,end,nodes,state,blame\n")
        for number, (day, nodes, days, failed, blamed, _) in enumerate(jobs):
            start, state = EPOCH + day * 86_400, "node_fail" if failed else "completed"
            names = ";".join(f"n{node:04d}" for node in nodes)
            file.write(f"{number},{start},{start + days * 86_400},{names},{state},{f'n{blamed:04d}' if blamed >= 0 else ''}\n")
    flag = module.mixture(*module.em(jobs, 28)) > 0.5
    return observe(read(folder)), {f"n{node:04d}" for node in np.flatnonzero(lemon)}, precision_recall(flag, lemon)


SHAPE, EQUAL = 4.0, 1e6
"""Spread of rates within a class of a world (Gamma); of a class whose nodes are all alike."""


def oracle(observed: Observed, ratio: float, shapes: tuple[float, float], sweeps: int = 800, burn: int = 200) -> Floats:
    """P(lemon | everything that was seen) for whoever knows how the world was made: Gibbs sampling. `shapes` of healthy nodes and lemons."""
    spec = WorldSpec()
    healthy = spec.rf / (1 + spec.lemons / spec.nodes * (ratio - 1))
    rng, n = np.random.default_rng(1), len(observed.names)
    exposure, nodes, start = observed.exposure, observed.blame.node, observed.blame.start
    shape, mean = np.array(shapes), np.array([healthy, ratio * healthy])
    prior = np.log(spec.lemons / (spec.nodes - spec.lemons))
    gammas = [np.append(0.0, np.cumsum(np.log(a + np.arange(4000)))) for a in shapes]  # log Gamma(a + c) - log Gamma(a), by c
    rate, posterior = np.full(n, spec.rf), np.zeros(n)
    for sweep in range(sweeps):
        heap = np.append(0.0, np.cumsum(rate[nodes]))
        drawn = heap[start[:-1]] + rng.random(len(start) - 1) * np.diff(heap[start])
        culprit = nodes[np.minimum(np.searchsorted(heap[1:], drawn), start[1:] - 1)]
        count = np.rint(observed.hard).astype(int) + np.bincount(culprit, minlength=n)
        good, bad = (
            log[count] - a * np.log1p(m * exposure / a) - count * np.log(a / m + exposure) for log, a, m in zip(gammas, shape, mean, strict=True)
        )
        chance = 1 / (1 + np.exp(-np.clip(prior + bad - good, -50, 50)))
        lemon = (rng.random(n) < chance).astype(int)
        rate = rng.gamma(shape[lemon] + count, 1 / (shape[lemon] / mean[lemon] + exposure))
        posterior += chance * (sweep >= burn)
    return posterior / (sweeps - burn)


def best_recall(scores: list[tuple[Floats, Bools]], precision: float) -> float:
    """The highest mean recall of any threshold whose mean precision is at least this; 0 when there is none."""
    points = [np.mean([precision_recall(score > at, lemon) for score, lemon in scores], 0) for at in np.linspace(0.01, 0.99, 99)]
    return max((float(recall) for found, recall in points if found >= precision - 1e-9), default=0.0)


def f1(point: Any) -> float:
    return float(2 * point[0] * point[1] / max(1e-9, point[0] + point[1]))


def measured(observed: Observed, lemons: set[str], detector: str) -> tuple[float, float]:
    ranking = rank(observed, detector)
    return precision_recall(np.array([node.flagged for node in ranking.nodes]), np.array([node.node in lemons for node in ranking.nodes]))


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--worlds", default="")
    args = parser.parse_args()
    module = load(args.worlds) if args.worlds else None
    short = False
    for (ratio, attributed), promised in CLAIMS.items():
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in (*DETECTORS, "oracle", "reference")}
        scores: list[tuple[Floats, Bools]] = []
        for seed in range(args.first, args.first + args.seeds):
            with tempfile.TemporaryDirectory() as folder:
                if module is None:
                    observed, lemons = own(ratio, attributed, seed, Path(folder))
                else:
                    observed, lemons, theirs = foreign(module, ratio, attributed, seed, Path(folder))
                    found["reference"].append(theirs)
            for name in DETECTORS:
                found[name].append(measured(observed, lemons, name))
            scores.append(
                (oracle(observed, ratio, (SHAPE, EQUAL if module is None else SHAPE)), np.array([node in lemons for node in observed.names]))
            )
            found["oracle"].append(precision_recall(scores[-1][0] > Thresholds().posterior, scores[-1][1]))
        print(f"{ratio:g}x, {attributed:.0%} attributed, {args.seeds} worlds; promised {promised[0]:.2f} / {promised[1]:.2f}")
        for name, values in found.items():
            if values:
                precision, recall = np.mean(values, 0)
                error = np.std(values, 0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.zeros(2)
                print(
                    f"  {name:<10} {precision:.3f} +- {error[0]:.3f} / {recall:.3f} +- {error[1]:.3f}  F1 {f1((precision, recall)):.3f}", flush=True
                )
        ours, bars = np.mean(found["blame"], 0), np.array(promised)
        if module is not None:
            theirs = np.mean(found["reference"], 0)
            print(f"  as precise as the reference the oracle finds {best_recall(scores, theirs[0]):.3f}")
            bars = np.maximum(promised, theirs)
        short |= bool((ours < bars - 1e-9).any())
    if module is None:
        rates = np.mean([generate(WorldSpec(seed=args.first + seed, black_hole=True)).large_failures() for seed in range(3)], 0)
        print(f"black hole on: jobs of 512 and more GPUs fail in {rates[0]:.1%}, without lemons in {rates[1]:.1%} (published: 14 % and 4 %)")
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
