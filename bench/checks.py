"""All seven checks of two healthy CPU workers, as a troubleshoot round runs them side by side, against two cold imports of torch in the same run.

    python bench/checks.py [--rounds 5] [--json FILE]

Seven: io, gpu, runtime, rdma, allreduce, performance, hang; beside them process, memory and the comparison of software. Both workers run on this
machine at once, each check a process of its own, nothing warmed. Printed, as medians over the rounds (seconds):

    import    one `import torch.distributed` in a new interpreter, alone; taken before and after each round
    checks    from the start of the round to the last result of both workers
    bar       two imports + 2 s: the checks may take no longer
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aegis_agent import ports
from aegis_agent.checks import meeting
from aegis_agent.checks.registry import Context, named, run_check
from aegis_agent.handover import WorkerTask
from aegis_agent.reaper import Reaper
from aegis_proto.messages import CheckResult
from aegis_proto.state import JobSpec

LOCAL = ("process", "io", "gpu", "runtime", "rdma", "hang", "memory")
COMMAND = (sys.executable, "-c", "import torch")
WORKERS = 2
RESERVE = 2.0


def import_seconds() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch.distributed"], check=True)
    return time.perf_counter() - began


async def worker(reaper: Reaper, index: int, port: int, began: float, folder: str) -> tuple[list[CheckResult], dict[str, float]]:
    """All checks of one worker; when each result came."""
    came: dict[str, float] = {}
    context = Context("", folder, os.getpid(), f"n{index}")

    async def local(name: str) -> CheckResult:
        check = named(name)
        assert check is not None
        result = await run_check(reaper, check, context, os.environ, f"check.{os.getpid()}.{index}.{name}")
        came[name] = time.perf_counter() - began
        return result

    async def together() -> list[CheckResult]:
        task = WorkerTask(JobSpec("bench", command=COMMAND, workers=WORKERS), job="bench", uid=f"bench-{port}", workers=WORKERS)
        met = meeting.prepare(task, os.environ, index=index, host="127.0.0.1", port=port, round_key=("b", 0, 1), grace=10.0, gpus=False)
        assert met is not None
        started = time.perf_counter() - began
        results = await met.run(reaper, f"check.{os.getpid()}.{index}", f"n{index}")
        came.update({result.CheckType: started + result.duration for result in results})
        return results

    results, met_results = await asyncio.gather(asyncio.gather(*(local(name) for name in LOCAL)), together())
    return [*results, *met_results], came


async def one_round(reaper: Reaper, folder: str) -> tuple[float, dict[str, float]]:
    port = ports.free_port((20000, 29999))
    began = time.perf_counter()
    both = await asyncio.gather(*(worker(reaper, index, port, began, folder) for index in range(WORKERS)))
    seconds = time.perf_counter() - began
    failed = [result for results, _ in both for result in results if not result.Pass]
    if failed:
        raise RuntimeError(f"a healthy worker failed {failed[0].CheckType}: {failed[0].Result}")
    return seconds, {name: max(came[name] for _, came in both) for name in both[0][1]}


async def run(rounds: int, folder: str) -> dict[str, Any]:
    reaper = Reaper()
    reaper.open()
    imports, checks, came = [], [], []
    try:
        await asyncio.to_thread(import_seconds)  # the files are in memory from now on, for both
        for _ in range(rounds):
            imports.append(await asyncio.to_thread(import_seconds))
            seconds, each = await one_round(reaper, folder)
            checks.append(seconds)
            came.append(each)
            imports.append(await asyncio.to_thread(import_seconds))
    finally:
        reaper.close()
    each = {name: statistics.median(one[name] for one in came) for name in came[0]}
    return {"import": statistics.median(imports), "checks": statistics.median(checks), "imports": imports, "rounds": checks, "came": each}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="bench-checks-") as folder:
        found = asyncio.run(run(given.rounds, folder))
    bar = 2 * found["import"] + RESERVE
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {given.rounds} rounds, {WORKERS} workers")
    print(f"import {found['import']:.2f}   checks {found['checks']:.2f}   bar {bar:.2f} (two imports + {RESERVE:g} s)")
    print("last result after: " + "  ".join(f"{name} {seconds:.2f}" for name, seconds in sorted(found["came"].items(), key=lambda item: item[1])))
    if given.json:
        given.json.write_text(json.dumps({**found, "bar": bar, "load": os.getloadavg()[0]}))
    return 0 if found["checks"] <= bar else 1


if __name__ == "__main__":
    sys.exit(main())
