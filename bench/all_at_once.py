"""One worker of thirty fails, and all thirty at once: how long until all run again, in the same job on the real stack.

    python bench/all_at_once.py [--workers 30] [--rounds 5] [--json FILE]

A real bus, master, job controller, credentials service, and for each worker a node daemon and an agent of its own, all on this machine. The command
is a shell that notes when it starts; it imports nothing. In turn: SIGKILL of one worker's command (another one each time), SIGKILL of all commands.
Printed, as medians over the rounds (seconds from the kill to the start of the last command of the next run):

    one       one of them was killed
    all       all were killed
    bar       all <= 1.5 x one: nothing is done one after the other for many that fail
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / part) for part in ("", "integration")]

from harness.waiting import until  # noqa: E402
from support.house import House, house  # noqa: E402

BAR = 1.5
SCRIPT = """
name="$AEGIS_POD-$AEGIS_INCARNATION"
echo $$ > "part-$name"
mv "part-$name" "run-$name"
exec sleep 100000
"""
COMMAND = ["sh", "-c", SCRIPT]
LIMIT = 300.0  # seconds a restart of all may take


async def running(h: House, job: str, folder: Path, incarnation: int, workers: int) -> tuple[dict[str, int], float]:
    """Process of each worker, and when the last of them started (s since 1970); the master has seen all of it."""

    def files() -> list[Path]:
        found = list(folder.glob(f"run-w*-{incarnation}"))
        return found if len(found) == workers else []

    found: list[Path] = await until(files, LIMIT, f"all of incarnation {incarnation}")
    await h.when(job, lambda s: s.head.phase == "RunCommand" and s.head.incarnation == incarnation, LIMIT, f"run {incarnation}")
    await asyncio.sleep(1.0)  # acknowledgements and first lines of this run are no part of the next restart
    return {path.name.split("-")[1]: int(path.read_text()) for path in found}, max(path.stat().st_mtime for path in found)


async def measure(workers: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {"one": [], "all": []}
    async with house(folder, nodes=workers) as h:
        work = folder / "work"
        work.mkdir()
        job = await h.submit(COMMAND, "many", workers=workers, cwd=str(work), maxRetry=2 * rounds + 1, stopGrace=5.0)
        incarnation = 0
        pids, _ = await running(h, job, work, incarnation, workers)
        for n in range(rounds):
            for how, seconds in took.items():
                counted = (await h.state(job)).head.countedPod
                alone = next(pod for pod in (f"w{(n + i) % workers}" for i in range(2)) if pod != counted)
                victims = list(pids.values()) if how == "all" else [pids[alone]]
                killed = time.time()
                for pid in victims:
                    os.kill(pid, signal.SIGKILL)
                incarnation += 1
                pids, last = await running(h, job, work, incarnation, workers)
                seconds.append(last - killed)
                print(json.dumps({"killed": len(victims), "seconds": round(last - killed, 3)}), flush=True)
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-all-", ignore_cleanup_errors=True) as folder:
        took = asyncio.run(measure(given.workers, given.rounds, Path(folder)))
    one, everybody = (statistics.median(took[how]) for how in ("one", "all"))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {given.workers} workers, {given.rounds} rounds each")
    print(f"one {one:.3f} s   all {everybody:.3f} s   {everybody / one:.2f} x (bar {BAR})")
    if given.json:
        given.json.write_text(json.dumps({"one": took["one"], "all": took["all"], "workers": given.workers}))
    return 0 if everybody <= BAR * one else 1


if __name__ == "__main__":
    sys.exit(main())
