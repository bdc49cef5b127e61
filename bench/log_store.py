"""The store of the lines: how fast it takes them, how fast it answers, beside `grep` over the same files.

Writes realistic lines of 64 workers with 8 ranks each as batches of 200, makes them durable every second, then asks as `aegis job logs` does.
Prints one JSON object per measurement, wall and CPU time beside each other (a busy machine stretches the first); bounded by `--seconds` of writing.

    python bench/log_store.py [--lines 10000000] [--seconds 60] [--folder DIR] [--repeat 3]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from aegis_lognexus.store import Asked, LogStore, ask
from aegis_lognexus.store.blocks import segment, segment_numbers
from aegis_lognexus.store.matching import Question
from aegis_proto.logs import LogBatch, LogLine
from aegis_proto.messages import decode, encode

JOB = "digits-abc123"
WORKERS, RANKS, BATCH = 64, 8, 200
T0 = 1_796_000_000_000


def batches(rng: random.Random) -> list[bytes]:
    """Bodies of one message per worker, encoded as they travel; numbers and times are set per round."""
    texts = [
        " iteration {n:8d}/  250000 | consumed samples: {n:12d} | loss: 2.{k:03d} | grad norm: 0.{k:03d} | nan iterations:   0 |",
        "[2026-02-27 17:39:04,936] [INFO] [logging.py:107:log_dist] step={n}, skipped=0, lr=[0.0003], mom=[(0.9, 0.95)]",
        "node-{k}:{n}:{n} [3] NCCL INFO Channel 02/0 : 3[3] -> 4[4] via P2P/CUMEM/read",
        "epoch {n} batch {k} loss 1.{k:03d} throughput {n} tokens/s mfu 0.41 mem 63.1 GB",
    ]
    out = []
    for worker in range(WORKERS):
        lines = tuple(
            LogLine(T0, 0, worker * RANKS + rng.randrange(RANKS), "out", rng.choice(texts).format(n=rng.randrange(10**6), k=rng.randrange(1000)))
            for _ in range(BATCH)
        )
        out.append(encode(LogBatch("uid", 1, "b1", 1, lines, f"node-{worker}")))
    return out


def write(folder: Path, count: int, seconds: float) -> tuple[int, float, float]:
    """(lines, wall seconds, CPU seconds) of decoding, keeping and making durable; one rare line every 50,000."""
    store = LogStore(folder)
    bodies = batches(random.Random(5))
    lines, seq, round_ = 0, 0, 0
    began, cpu, committed = time.perf_counter(), time.process_time(), time.perf_counter()
    while lines < count and time.perf_counter() - began < seconds:
        for worker, body in enumerate(bodies):
            seq += 1
            sent = decode(LogBatch, body)
            at = T0 + round_ * 1000
            moved = tuple(LogLine(at + k, round_ // 200, line.rank, line.kind, line.text) for k, line in enumerate(sent.lines))
            if seq % 250 == 0:
                moved = (*moved[:-1], LogLine(at + BATCH, round_ // 200, moved[-1].rank, "err", f"RuntimeError: rare failure number {seq}"))
            lines += len(store.append(JOB, f"w{worker}", LogBatch("uid", 1, "b1", 1 + round_ * BATCH, moved, sent.node), seq))
        round_ += 1
        if time.perf_counter() - committed > 1.0:
            committed = time.perf_counter()
            store.commit()
    store.close()
    return lines, time.perf_counter() - began, time.process_time() - cpu


def timed(folder: Path, asked: Asked, repeat: int) -> tuple[float, float, int]:
    """(median wall ms, median CPU ms, lines of the answer)."""
    took, busy, count = [], [], 0
    for _ in range(repeat):
        began, cpu = time.perf_counter(), time.process_time()
        count = len(ask(folder, asked).lines)
        took.append((time.perf_counter() - began) * 1000)
        busy.append((time.process_time() - cpu) * 1000)
    return median(took), median(busy), count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="aegis-logs-", dir=args.folder))
    try:
        lines, wall, cpu = write(base, args.lines, args.seconds)
        folder = base / "jobs" / JOB
        files = [segment(folder, n) for n in segment_numbers(folder)]
        size = sum(path.stat().st_size for path in files)
        index = sum(path.stat().st_size for path in folder.glob("*.idx"))
        print(
            json.dumps(
                {
                    "wrote_lines": lines,
                    "gb": round(size / 1e9, 2),
                    "index_kb": round(index / 1e3),
                    "lines_per_s": round(lines / wall),
                    "lines_per_cpu_s": round(lines / cpu),
                    "load": round(os.getloadavg()[0], 1),
                }
            ),
            flush=True,
        )
        middle = T0 + (lines // (WORKERS * BATCH) // 2) * 1000
        questions = {
            "tail 100": Asked(Question(), tail=100),
            "tail 100 of one worker": Asked(Question(worker="w17"), tail=100),
            "tail 100 of one rank": Asked(Question(rank=137), tail=100),
            "tail 100 of the first incarnation": Asked(Question(incarnation=0), tail=100),
            "a second in the middle": Asked(Question(since=middle, until=middle + 1000, worker="w3"), limit=1000),
            "grep a word, last 100": Asked(Question(grep="rare failure"), tail=100),
            "grep a word that is nowhere": Asked(Question(grep="no such words"), tail=100, budget=120),
            "regex, last 100": Asked(Question(grep=r"rare failure number \d+0\b"), tail=100, budget=120),
            "regex on one worker, whole store": Asked(Question(worker="w17", grep=r"number \d+$"), tail=9_999, budget=120),
        }
        for name, asked in questions.items():
            wall, busy, count = timed(folder, asked, args.repeat)
            print(json.dumps({"query": name, "ms": round(wall, 1), "cpu_ms": round(busy, 1), "lines": count}), flush=True)
        began = time.perf_counter()
        found = subprocess.run(["grep", "-c", "-F", "no such words", *map(str, files)], check=False, capture_output=True, text=True).stdout
        assert all(row.endswith(":0") for row in found.split())
        print(json.dumps({"grep -F over the same files": "a word that is nowhere", "ms": round((time.perf_counter() - began) * 1000, 1)}), flush=True)
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
