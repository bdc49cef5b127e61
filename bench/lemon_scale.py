"""A large fleet from files to a ranking: 4,000 nodes, 90 days, 200,000 jobs. Seconds and peak memory of `aegis lemon rank` as a user starts it.

Also the contour of 10,000 points. Claim: ranked in at most 10 s and 2 GB; contour in at most 1 s.
usage: python bench/lemon_scale.py [--nodes 4000] [--days 90] [--keep DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aegis_lemon.ettr import RSC1, Setting
from aegis_lemon.ettr.contour import axis, contour
from aegis_lemon.generate import WorldSpec, generate, write_world


def ranked(folder: Path) -> tuple[float, float, float, dict[str, object]]:
    """(wall seconds, CPU seconds, peak MB, answer) of a fresh process."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([sys.executable, "-m", "aegis_cli", "lemon", "rank", "--history", str(folder), "--json"], stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        out.seek(0)
        return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, json.load(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4000)
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        if not (folder / "jobs.csv").is_file():
            world = generate(WorldSpec(seed=1, nodes=args.nodes, days=args.days, lemons=args.nodes * 12 // 1000))
            write_world(world, folder)
        jobs = sum(1 for _ in (folder / "jobs.csv").open()) - 1
        size = (folder / "jobs.csv").stat().st_size / 1e6
        seconds, cpu, peak, answer = ranked(folder)
    flagged = [node["node"] for node in answer["nodes"] if node["flagged"]]  # type: ignore[attr-defined]
    print(f"{args.nodes} nodes, {args.days} days, {jobs} jobs ({size:.0f} MB): ranked in {seconds:.1f} s ({cpu:.1f} s CPU), {peak:.0f} MB", end="; ")
    print(f"{len(flagged)} flagged (load {os.getloadavg()[0]:.1f})")
    began = time.perf_counter()
    contour(Setting(1536, RSC1, restart=300), axis(0.1, 20, 100), axis(1, 1200, 100))
    spent = time.perf_counter() - began
    print(f"contour of 10,000 points in {spent * 1000:.1f} ms")
    return int(seconds > 10 or peak > 2000 or spent > 1)


if __name__ == "__main__":
    sys.exit(main())
