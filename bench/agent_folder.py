"""The agent's folder (`aegis-agent install`): bytes, time to make, time from start to the end of `aegis-agent -c true`; beside a virtual environment.

    python bench/agent_folder.py [--rounds 20]

The virtual environment is the one this runs in: how many bytes its packages of the agent have is counted file by file. Bar: none; figures to compare.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aegis_agent import install


def starts(argv: list[str], rounds: int) -> list[float]:
    """Seconds of each start, in milliseconds' resolution, interleaved by the caller."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run(argv, cwd="/", check=True, capture_output=True)
        taken.append(time.perf_counter() - began)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "aegis"
        began = time.monotonic()
        install.install(folder)
        made = time.monotonic() - began
        copied = Path(name) / "copy"
        began = time.monotonic()
        subprocess.run([str(folder / "bin" / "aegis-agent"), "install", str(copied)], check=True, capture_output=True)
        again = time.monotonic() - began
        ways = {
            "folder": [str(copied / "bin" / "aegis-agent"), "-c", "true"],
            "this environment": [sys.executable, "-m", "aegis_agent", "-c", "true"],
            "sh -c true": ["sh", "-c", "true"],
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(given.rounds):
            for way, argv in ways.items():
                taken[way] += starts(argv, 1)
        packed = Path(name) / "aegis.tar.zst"
        subprocess.run(["tar", "--zstd", "-cf", str(packed), "-C", name, "copy"], check=False, capture_output=True)
        size = f", {packed.stat().st_size / 1e6:.0f} MB as .tar.zst" if packed.exists() and packed.stat().st_size else ""
        print(f"folder: {install.size(copied) / 1e6:.0f} MB{size}; made in {made:.1f} s, copied and tried by its own agent in {again:.1f} s")
        for way, values in taken.items():
            print(f"{way:<20} start to end, median of {len(values)}: {statistics.median(values) * 1000:.0f} ms (max {max(values) * 1000:.0f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
