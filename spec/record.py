"""Writes traces for `traces.py` into a folder: of the simulation (`--seeds N`), of the demo (`--demo`), of integration tests (`--tests NAME ...`).

The simulated masters write into memory, the real ones themselves (AEGIS_MASTER_TRACE). Exit 1 when one of them
told of no step. Needs the checkout: `tests/` is on the path here.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import traces

ROOT = Path(__file__).resolve().parents[1]
ORIGINS = ("simulation", "demo", "integration")
"""How names of traces begin."""


def simulated(folder: Path, first: int, seeds: int) -> None:
    """One file a seed; the job's name is that of the seed, so that no run explains another."""
    sys.path.insert(0, str(ROOT / "tests"))
    world = importlib.import_module("simulation.world")
    for seed in range(first, first + seeds):
        result = world.run(seed, story=True)
        lines = [{"master": who, **line, "job": f"seed{seed}"} for who, told in result.traces.items() for line in told]
        (folder / f"simulation-{seed}.ndjson").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def real(folder: Path, name: str, argv: list[str]) -> int:
    """Run a command whose masters write their traces."""
    return subprocess.run(argv, env={**os.environ, "AEGIS_MASTER_TRACE": str(folder / f"{name}-%p.ndjson")}, cwd=ROOT, check=False).returncode


def written(folder: Path, wanted: list[str]) -> list[str]:
    """Complaints: each origin has told of steps. Prints what it told."""
    complaints = []
    for origin in ORIGINS:
        reader = traces.Reader()
        files = sorted(folder.glob(f"{origin}-*.ndjson"))
        reader.read(files)
        steps = sum(len(chain.steps) for chain in reader.chains)
        if files or origin in wanted:
            print(f"{origin}: {len(files)} traces, {len(reader.chains)} chains, {steps} steps")
        if origin in wanted and not steps:
            complaints.append(f"{origin}: no step is told")
    return complaints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--tests", nargs="*", default=[], help="test files")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [origin for origin, asked in zip(ORIGINS, (options.seeds > 0, options.demo, options.tests), strict=True) if asked]
    if not wanted:
        parser.error("nothing to record: --seeds, --demo or --tests")
    for old in folder.glob("*.ndjson"):
        old.unlink()
    simulated(folder, options.first, options.seeds)
    bad = real(folder, "demo", [sys.executable, "-m", "aegis_cli", "demo"]) if options.demo else 0
    if options.tests and not bad:
        bad = real(folder, "integration", [sys.executable, "-m", "pytest", "-q", "-m", "integration", *options.tests])
    complaints = written(folder, wanted)
    for complaint in complaints:
        print(f"FAILED {complaint}", file=sys.stderr)
    return bad or bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
