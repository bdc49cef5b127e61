"""What the agent itself takes: to start, to end an obedient run and verify that nothing of it is left, and to notice that a child has died.

    python bench/agent_times.py [--rounds 9]

Prints medians over the rounds, with the bars they are meant to stay under; exit 1 when one is missed. Ends only what it started.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import statistics
import subprocess
import sys
import time

from aegis_agent.env import RunPlan
from aegis_agent.procs import members, scope_id
from aegis_agent.reaper import Reaper
from aegis_agent.runner import Run

BARS = {"start, s of CPU": 0.25, "stop of 4 children, s": 0.05, "exit noticed, s": 0.02}


def start() -> float:
    """Seconds of CPU of an interpreter that imports the plain agent: wall time says more about the machine's other load."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import aegis_agent.main, aegis_agent.plain"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def stop(reaper: Reaper, incarnation: int) -> float:
    scope = scope_id(f"bench-{os.getpid()}", "w0", 1, incarnation)
    plan = RunPlan("job-1", "w0", 1, incarnation, 0, 1, 4, "127.0.0.1", 29500, 3, scope)
    run = Run(reaper, plan, ["sh", "-c", "exec sleep 600"], environ=os.environ, grace=5.0)
    run.start()
    while len(list(members(scope, whole=True))) < 4:
        await asyncio.sleep(0.01)
    began = time.monotonic()
    ended = await run.stop()
    took = time.monotonic() - began
    if not ended.clean or list(members(scope, whole=True)):
        raise RuntimeError("something of the run is left")
    return took


async def noticed(reaper: Reaper) -> float:
    child = reaper.spawn(["sleep", "600"], env=os.environ)
    await asyncio.sleep(0)
    began = time.monotonic()
    os.kill(child.pid, signal.SIGKILL)
    await child.exit
    return time.monotonic() - began


async def measure(rounds: int) -> dict[str, list[float]]:
    reaper = Reaper()
    reaper.open()
    found: dict[str, list[float]] = {name: [] for name in BARS}
    try:
        for number in range(rounds):
            for name, value in zip(BARS, (start(), await stop(reaper, number), await noticed(reaper)), strict=True):
                found[name].append(value)
    finally:
        reaper.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    missed = 0
    for name, values in asyncio.run(measure(parser.parse_args().rounds)).items():
        median = statistics.median(values)
        missed += median > BARS[name]
        print(f"{name:24} median {median:.3f}   min {min(values):.3f}   max {max(values):.3f}   bar {BARS[name]}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
