"""Precision and recall of every detector on generated worlds, written in the documented format and read back: mean over seeds, 28 days.

Claim, default detector: at least 0.9 / 0.9 for lemons of 225 times the healthy rate with 70 % of failures attributed, 0.9 / 0.62 with 20 %, 0.85 /
0.6 for 50 times with 70 %; the specification's rules beside it. With the black hole on: failure rate of jobs of 512 and more GPUs, with and without
lemons.
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
from aegis_lemon.detect import DETECTORS, rank
from aegis_lemon.detect.score import precision_recall
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
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in DETECTORS}
        reference = []
        for seed in range(args.first, args.first + args.seeds):
            with tempfile.TemporaryDirectory() as folder:
                if module is None:
                    observed, lemons = own(ratio, attributed, seed, Path(folder))
                else:
                    observed, lemons, theirs = foreign(module, ratio, attributed, seed, Path(folder))
                    reference.append(theirs)
            for name in DETECTORS:
                found[name].append(measured(observed, lemons, name))
        print(f"{ratio:g}x, {attributed:.0%} attributed, {args.seeds} worlds; promised {promised[0]:.2f} / {promised[1]:.2f}")
        for name, values in [*found.items(), ("reference", reference)]:
            if values:
                precision, recall = np.mean(values, 0)
                error = np.std([value[1] for value in values], ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
                print(f"  {name:<10} {precision:.3f} / {recall:.3f} +- {error:.3f}", flush=True)
                bars = np.maximum(promised, np.mean(reference, 0) if reference else 0.0)
                short |= name == "blame" and bool(precision < bars[0] - 1e-9 or recall < bars[1] - 1e-9)
    if module is None:
        rates = np.mean([generate(WorldSpec(seed=args.first + seed, black_hole=True)).large_failures() for seed in range(3)], 0)
        print(f"black hole on: jobs of 512 and more GPUs fail in {rates[0]:.1%}, without lemons in {rates[1]:.1%} (published: 14 % and 4 %)")
    return int(short)


if __name__ == "__main__":
    sys.exit(main())
