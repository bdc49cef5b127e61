"""Lines per second through the classifier: hyperscan against `re`, over the same patterns and the same lines, in one run.

The mix is made here: what a training run prints (steps, NCCL INFO, configuration, launcher and kernel chatter), with one line in 2,000 that a pattern
names. Both engines must name the same lines. Prints one JSON line; the exit code is 1 where it is not as claimed: >= 1,000,000 lines/s on one core,
>= 15 x `re`.
usage: python bench/classify.py [--lines 400000] [--re-lines 20000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from statistics import median

from aegis_parsers.causes.classify import Engine, classify_lines, load_rules, sweep

ORDINARY = (
    " iteration {n:8d}/  250000 | consumed samples: {m:12d} | loss: 2.{k:03d} | grad norm: 0.{k:03d} | number of nan iterations:   0 |",
    "[2026-02-27 17:39:{s:02d},936] [INFO] [logging.py:107:log_dist] [Rank {r}] step={n}, skipped=0, lr=[0.0003], mom=[(0.9, 0.95)]",
    "node-{r}:{m}:{m} [{r}] NCCL INFO Channel {s:02d}/0 : {r}[{r}] -> {s}[{s}] via P2P/CUMEM/read",
    "node-{r}:{m}:{m} [{r}] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object",
    "W0227 17:39:{s:02d}.936000 {m} site-packages/torch/distributed/run.py:792] Setting OMP_NUM_THREADS for each process to be 1",
    "epoch {n} batch {k} loss 1.{k:03d} throughput {m} tokens/s mfu 0.41 mem 63.1 GB",
    "Saving checkpoint at iteration {n} to /ckpt/run/iter_{n:07d} in torch_dist format",
    "  rdzv_configs     : {{'timeout': 900}}",
    "Feb 14 05:03:{s:02d} node-{r} systemd[1]: Started Session {n} of user root.",
    "validation loss at iteration {n} | lm loss value: 2.{k:03d} | lm loss PPL: 8.{k:03d}",
)
SPEAKING = (
    "[rank{r}]: RuntimeError: mat1 and mat2 shapes cannot be multiplied ({n}x{k} and 11x5120)",
    "OSError: [Errno 28] No space left on device",
    "NVRM: Xid (PCI:0000:{s:02d}:00): 79, GPU has fallen off the bus",
    "[rank{r}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE)",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB.",
)


def mix(count: int) -> list[str]:
    rng = random.Random(3)
    kinds = [rng.choice(SPEAKING if rng.random() < 1 / 2000 else ORDINARY) for _ in range(count)]
    return [kind.format(n=n, m=100_000 + n * 7, k=n % 1000, s=n % 60, r=n % 8) for n, kind in enumerate(kinds)]


def rate(lines: list[str], engine: Engine) -> float:
    begin = time.process_time()
    classify_lines(lines, engine)
    return len(lines) / (time.process_time() - begin)


LEAST, LEAST_TIMES = 1_000_000, 15.0
"""Lines per second of CPU; by how much faster than `re`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=400_000)
    parser.add_argument("--re-lines", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    lines = mix(args.lines)
    few = lines[: args.re_lines]
    if sweep() is None:
        print(json.dumps({"re_lines_per_s": round(rate(few, "re")), "hyperscan": "not installed"}))
        return 1
    assert classify_lines(few, "re") == classify_lines(few, "hyperscan"), "the engines differ"
    rounds = [(rate(lines, "hyperscan"), rate(few, "re")) for _ in range(args.rounds)]
    fast, slow = median(f for f, _ in rounds), median(s for _, s in rounds)
    result = {
        "lines": len(lines),
        "named": len(classify_lines(lines)),
        "patterns": len(load_rules().patterns),
        "bytes_per_line": round(sum(map(len, lines)) / len(lines)),
        "hyperscan_lines_per_s": round(fast),
        "re_lines_per_s": round(slow),
        "times_re": round(fast / slow, 1),
    }
    print(json.dumps(result))
    return 0 if fast >= LEAST and fast >= LEAST_TIMES * slow else 1


if __name__ == "__main__":
    sys.exit(main())
