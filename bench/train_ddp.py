"""A tiny CPU (gloo) DDP loop, for timing recoveries under any launcher: an ordinary training script, no word of Aegis in it.

Every rank appends JSON lines to $BENCH_DIR/ev.<pid>.jsonl: spawn (when the kernel started the process), imported, pg, step, done.
Rank 0 checkpoints the step every CKPT_EVERY steps, all ranks resume from it. Knobs: STEPS, STEP_MS, CKPT_EVERY, PG_TIMEOUT.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

BENCH_DIR = Path(os.environ["BENCH_DIR"])
LOG = (BENCH_DIR / f"ev.{os.getpid()}.jsonl").open("a", buffering=1)
INCARNATION = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
RANK = int(os.environ.get("RANK", "-1"))


def event(kind: str, **more: object) -> None:
    LOG.write(json.dumps({"t": time.time(), "ev": kind, "pid": os.getpid(), "rank": RANK, "inc": INCARNATION, **more}) + "\n")


def process_start() -> float:
    """Wall-clock time at which the kernel started this process (s)."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))


event("spawn", t_spawn=process_start())

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def main() -> int:
    torch.set_num_threads(1)
    event("imported")
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ.get("PG_TIMEOUT", "60"))))
    event("pg", world=dist.get_world_size())
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    checkpoint = BENCH_DIR / "ckpt.json"
    start = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
    every = int(os.environ.get("CKPT_EVERY", "10"))
    pause = float(os.environ.get("STEP_MS", "50")) / 1e3
    for step in range(start, int(os.environ.get("STEPS", "100000"))):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()  # the all-reduce happens here
        optimizer.step()
        event("step", step=step)
        if dist.get_rank() == 0 and step % every == 0:
            part = checkpoint.with_suffix(".part")
            part.write_text(json.dumps({"step": step}))
            part.replace(checkpoint)
        time.sleep(pause)
    dist.destroy_process_group()
    event("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
