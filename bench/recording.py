"""What keeping flight records costs a training: its steps with torch's recorder on, as the agent sets it, beside the same steps without it.

Two gloo ranks, a step of some milliseconds of matrix work and `--ops` all-reduces. Both kinds run in turn, in the order ABBA; compared is the least
CPU time of a step of each kind, since what else runs here only adds to it. Claim: <= 1 %. Prints one JSON object.

    python bench/recording.py [--rounds 3] [--steps 150] [--ops 8] [--size 384]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from aegis_agent.env import RunPlan, rank_environment

RANKS = 2
STEP = """
import os, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
if os.environ.get("TORCH_FR_BUFFER_SIZE", "0") != "0":
    import aegis_agent.flightwriter
dist.init_process_group("gloo")
steps, ops, size = map(int, sys.argv[1:4])
a, b = torch.randn(size, size), torch.ones(4096)
def step():
    for _ in range(ops):
        torch.mm(a, a)
        dist.all_reduce(b)
        b.fill_(1.0)
for _ in range(10):
    step()
cpu, wall = time.process_time(), time.perf_counter()
for _ in range(steps):
    step()
cpu, wall = (time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps
if dist.get_rank() == 0:
    print(cpu, wall)
"""


def run(record: bool, args: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of a step of rank 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(RANKS):
        plan = RunPlan("bench-000001", "w0", 1, 0, 0, 1, RANKS, "127.0.0.1", port, 0, "scope", flight_dir=str(folder))
        own = {} if record else {"TORCH_FR_BUFFER_SIZE": "0"}  # the user's own value wins
        env = {**rank_environment({**os.environ, **own}, plan, rank), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-c", STEP, str(args.steps), str(args.ops), str(args.size)]
        children.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
    out = [child.communicate(timeout=300)[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit(f"a rank ended with {[child.returncode for child in children]}")
    cpu, wall = map(float, out[0].split())
    return cpu, wall


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--ops", type=int, default=8)
    parser.add_argument("--size", type=int, default=384)
    args = parser.parse_args()
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="aegis-recording-") as folder:
        for _ in range(args.rounds):
            for record in (True, False, False, True):
                found[record].append(run(record, args, Path(folder)))
    cpu = {record: min(times[0] for times in found[record]) for record in found}
    wall = {record: median(times[1] for times in found[record]) for record in found}
    cost = (cpu[True] / cpu[False] - 1) * 100
    told = {
        "step_ms": round(wall[False] * 1000, 2),
        "step_recording_ms": round(wall[True] * 1000, 2),
        "cpu_cost_percent": round(cost, 2),
        "wall_cost_percent": round((wall[True] / wall[False] - 1) * 100, 2),
        "cpu_spread_percent": round((max(t[0] for t in found[False]) / min(t[0] for t in found[False]) - 1) * 100, 2),
        "us_per_record": round((cpu[True] - cpu[False]) / args.ops * 1e6, 1),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(told))
    return 0 if cost <= 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
