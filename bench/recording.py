"""What keeping flight records costs a training: torch's recorder on, as the agent sets it, beside the same training without it.

A record costs microseconds, a collective between two busy processes hundreds, with a spread that is larger than what is looked for. So both are
measured apart: CPU time of an all-reduce of a gloo group of one rank with and without the recorder (nobody is waited for; order ABBA, of each run the
least mean over blocks of `--block`, of each kind the median over its runs), and CPU time of a step of two gloo ranks, some milliseconds of matrix
work and `--ops` all-reduces. The cost is the difference times `--ops`, over the step. Claim: <= 1 %. Prints one JSON object.

    python bench/recording.py [--rounds 5] [--steps 150] [--ops 8] [--size 384] [--block 200]
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

BEGIN = """
import os, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
if os.environ.get("TORCH_FR_BUFFER_SIZE", "0") != "0":
    import aegis_agent.flightwriter
dist.init_process_group("gloo")
def measured(work, times):
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times
"""
END = """
if dist.get_rank() == 0:
    print(took)
dist.destroy_process_group()
"""
STEP = f"""{BEGIN}
steps, ops, size = map(int, sys.argv[1:4])
a, b = torch.randn(size, size), torch.ones(4096)
def step():
    for _ in range(ops):
        torch.mm(a, a)
        dist.all_reduce(b)
        b.fill_(1.0)
measured(step, 10)
took = measured(step, steps)
{END}"""
OP = f"""{BEGIN}
block = int(sys.argv[1])
b = torch.ones(4096)
def op():
    dist.all_reduce(b)
measured(op, block)
took = min(measured(op, block) for _ in range(50))
{END}"""


def run(program: str, ranks: int, record: bool, folder: Path, *args: int) -> float:
    """CPU seconds that rank 0 prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(ranks):
        plan = RunPlan("bench-000001", "w0", 1, 0, 0, 1, ranks, "127.0.0.1", port, 0, "scope", flight_dir=str(folder))
        own = {} if record else {"TORCH_FR_BUFFER_SIZE": "0"}  # the user's own value wins
        env = {**rank_environment({**os.environ, **own}, plan, rank), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-c", program, *map(str, args)]
        children.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
    out = [child.communicate(timeout=300)[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit(f"a rank ended with {[child.returncode for child in children]}")
    return float(out[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--ops", type=int, default=8)
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--block", type=int, default=200)
    args = parser.parse_args()
    op: dict[bool, list[float]] = {True: [], False: []}
    steps: list[float] = []
    with tempfile.TemporaryDirectory(prefix="aegis-recording-") as folder:
        for _ in range(args.rounds):
            for record in (True, False, False, True):
                op[record].append(run(OP, 1, record, Path(folder), args.block))
            steps.append(run(STEP, 2, False, Path(folder), args.steps, args.ops, args.size))
    record_s, step_s = median(op[True]) - median(op[False]), median(steps)
    cost = record_s * args.ops / step_s * 100
    told = {
        "us_per_record": round(record_s * 1e6, 2),
        "us_per_op": {kind: [round(t * 1e6, 1) for t in sorted(op[record])] for kind, record in (("recording", True), ("without", False))},
        "step_cpu_ms": round(step_s * 1000, 2),
        "cost_percent": round(cost, 3),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(told))
    return 0 if cost <= 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
