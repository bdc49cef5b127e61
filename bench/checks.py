"""All seven checks of two healthy CPU workers, side by side as in a troubleshoot round: cold, against two imports of torch, and out of warm standbys.

    python bench/checks.py [--rounds 5] [--json FILE]

Seven: io, gpu, runtime, rdma, allreduce, performance, hang; beside them process, memory and the comparison of software. Both workers run on this
machine at once, each check a process of its own. Printed, as medians over the rounds (seconds):

    import    one `import torch.distributed` in a new interpreter, alone; taken before and after each round
    cold      from the start of the round to the last result of both workers, nothing imported before
    warm      the same with a warm standby of each worker, that has imported what the run before had
    CPU       of all processes of a round that have ended: what a busy machine does not change as much
    bars      cold: two imports + 2 s; warm: 1 s
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aegis_agent import ports
from aegis_agent.checks import meeting
from aegis_agent.checks.registry import Context, named, run_checks
from aegis_agent.handover import WorkerTask
from aegis_agent.reaper import Reaper
from aegis_agent.warm import Standby, python_command
from aegis_agent.warm import run as standby_run
from aegis_proto.messages import CheckResult
from aegis_proto.state import JobSpec

WARM_BAR = 1.0
PRELOADED = 500
"""Modules that a standby with torch has at least."""
SCRIPT = "import torch.distributed, time\ntime.sleep(3600)\n"
"""The run before: its worker stands still while the standby imports what it had."""
LOCAL = ("process", "io", "gpu", "runtime", "rdma", "hang", "memory")
COMMAND = (sys.executable, "-c", "import torch")
WORKERS = 2
RESERVE = 2.0


def import_seconds() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch.distributed"], check=True)
    return time.perf_counter() - began


async def warmed(reaper: Reaper, folder: Path, index: int) -> Standby:
    """The standby of one worker, once it has what a run with torch imported; that run is over."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    argv = (sys.executable, str(script))
    command = python_command(argv)
    assert command is not None
    own = folder / f"standby-{index}"
    own.mkdir()
    environ = {**os.environ, "AEGIS_SCOPE": f"bench{os.getpid()}.w{index}.1.agent"}
    standby = Standby(reaper, command, environ, cwd=str(folder), folder=own, say=lambda _: None)
    standby.open()
    child, _ = standby_run(standby, reaper, argv, env={**environ, "AEGIS_SCOPE": f"bench{os.getpid()}.w{index}.1.0"}, record=True)
    try:
        async with asyncio.timeout(120):
            while standby.preloaded < PRELOADED:
                if standby.given_up:
                    raise RuntimeError(f"no standby: {standby.given_up}")
                await asyncio.sleep(0.1)
    finally:
        child.signal_group(9)
    return standby


async def worker(
    reaper: Reaper, index: int, port: int, began: float, folder: str, *, standby: Standby | None
) -> tuple[list[CheckResult], dict[str, float]]:
    """All checks of one worker; when each result came."""
    came: dict[str, float] = {}
    scope = f"bench{os.getpid()}.w{index}.1."
    context = Context(scope, folder, os.getpid(), f"n{index}", round="troubleshoot", python=sys.executable)

    async def local() -> list[CheckResult]:
        checks = [check for name in LOCAL if (check := named(name)) is not None]
        started = time.perf_counter() - began
        results = await run_checks(reaper, checks, context, os.environ, scope=f"check.{os.getpid()}.{index}")
        came.update({result.CheckType: started + result.duration for result in results})
        return results

    async def together() -> list[CheckResult]:
        task = WorkerTask(JobSpec("bench", command=COMMAND, workers=WORKERS), job="bench", uid=f"bench-{port}", workers=WORKERS)
        met = meeting.prepare(task, os.environ, index=index, host="127.0.0.1", port=port, round_key=("b", 0, 1), grace=10.0, gpus=False)
        assert met is not None
        if standby is not None:
            met = dataclasses.replace(met, words=(sys.executable,))
        started = time.perf_counter() - began
        results = await met.run(reaper, f"check.{os.getpid()}.{index}", f"n{index}", standby)
        came.update({result.CheckType: started + result.duration for result in results})
        return results

    results, met_results = await asyncio.gather(local(), together())
    return [*results, *met_results], came


def cpu_of_children() -> float:
    """Seconds of CPU of our children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def one_round(reaper: Reaper, folder: str, standbys: Sequence[Standby | None]) -> tuple[float, float, dict[str, float]]:
    """Seconds, seconds of CPU, and when the last result of each check came."""
    port = ports.free_port((20000, 29999))
    began, used = time.perf_counter(), cpu_of_children()
    both = await asyncio.gather(*(worker(reaper, index, port, began, folder, standby=standbys[index]) for index in range(WORKERS)))
    seconds = time.perf_counter() - began
    failed = [result for results, _ in both for result in results if not result.Pass]
    if failed:
        raise RuntimeError(f"a healthy worker failed {failed[0].CheckType}: {failed[0].Result}")
    return seconds, cpu_of_children() - used, {name: max(came[name] for _, came in both) for name in both[0][1]}


async def run(rounds: int, folder: str) -> dict[str, Any]:
    """Cold and warm rounds in turn."""
    reaper = Reaper()
    reaper.open()
    imports: list[float] = []
    took: dict[str, list[float]] = {"cold": [], "warm": []}
    cpu: dict[str, list[float]] = {"cold": [], "warm": []}
    came: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    standbys: list[Standby] = []
    try:
        await asyncio.to_thread(import_seconds)  # the files are in memory from now on, for both
        for index in range(WORKERS):
            standbys.append(await warmed(reaper, Path(folder), index))
        for _ in range(rounds):
            imports.append(await asyncio.to_thread(import_seconds))
            for how, used in (("cold", [None] * WORKERS), ("warm", standbys)):
                seconds, work, each = await one_round(reaper, folder, used)
                took[how].append(seconds)
                cpu[how].append(work)
                came[how].append(each)
            imports.append(await asyncio.to_thread(import_seconds))
    finally:
        for standby in standbys:
            standby.close()
        reaper.close()
    last = {how: {name: statistics.median(one[name] for one in each) for name in each[0]} for how, each in came.items()}
    middle = {how: statistics.median(seconds) for how, seconds in took.items()}
    spent = {how: statistics.median(seconds) for how, seconds in cpu.items()}
    return {"import": statistics.median(imports), "imports": imports, "rounds": took, "cpu": spent, "came": last, **middle}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="bench-checks-") as folder:
        found = asyncio.run(run(given.rounds, folder))
    bars = {"cold": 2 * found["import"] + RESERVE, "warm": WARM_BAR}
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {given.rounds} rounds each, {WORKERS} workers; one import {found['import']:.2f} s"
    )
    for how, bar in bars.items():
        way = f" (two imports + {RESERVE:g} s)" if how == "cold" else ""
        print(f"{how} {found[how]:.2f} s   bar {bar:.2f}{way}   CPU {found['cpu'][how]:.2f} s")
        print("  last result after: " + "  ".join(f"{name} {s:.2f}" for name, s in sorted(found["came"][how].items(), key=lambda item: item[1])))
    if given.json:
        given.json.write_text(json.dumps({**found, "bars": bars, "load": os.getloadavg()[0]}))
    return 0 if all(found[how] <= bar for how, bar in bars.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
