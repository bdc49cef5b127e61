"""Load for a set time, with a result: `python burn.py cpu|gpu SECONDS`. A program of its own; imports nothing of ours, runs under any interpreter.

CPU: one process per core hashes the same block in the same number of rounds and must get the same digest each time. GPU: torch multiplies the same
matrices on each device and must get the same bits. One JSON line: {"pass", "result", "values": {"rounds": .., "slowest": .., "wrong": ..}}.
"""

import hashlib
import json
import multiprocessing
import os
import sys
import time

BLOCK = b"\x5a" * (1 << 20)
ROUNDS = 4


def _digest() -> bytes:
    state = hashlib.sha256()
    for _ in range(ROUNDS):
        state.update(BLOCK)
    return state.digest()


def _core(core: int, seconds: float, wanted: bytes) -> tuple[int, int]:
    """(rounds, wrong results) of one core."""
    try:
        os.sched_setaffinity(0, {core})
    except OSError:
        pass
    until, rounds, wrong = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        wrong += _digest() != wanted
        rounds += 1
    return rounds, wrong


def _judge(kind: str, counts: list[tuple[int, int]], seconds: float) -> dict[str, object]:
    wrong, rounds = sum(bad for _, bad in counts), [done for done, _ in counts]
    usual = sorted(rounds)[len(rounds) // 2]
    slowest = min(rounds) / usual if usual else 0.0
    text = f"{len(counts)} {kind} for {seconds:g} s: {sum(rounds)} rounds, {wrong} wrong results, the slowest at {slowest:.2f} of the median"
    values = {"units": len(counts), "rounds": sum(rounds), "wrong": wrong, "slowest": round(slowest, 3)}
    return {"pass": wrong == 0, "result": text, "code": "burn.wrong" if wrong else "", "values": values}


def cpu(seconds: float) -> dict[str, object]:
    cores, wanted = sorted(os.sched_getaffinity(0)), _digest()
    with multiprocessing.get_context("fork").Pool(len(cores)) as pool:
        counts = pool.starmap(_core, [(core, seconds, wanted) for core in cores])
    return _judge("cores", counts, seconds)


def gpu(seconds: float) -> dict[str, object]:
    try:
        import torch
    except ImportError:
        return {"pass": False, "result": "this interpreter has no torch", "code": "burn.noTorch"}
    if not torch.cuda.is_available():
        return {"pass": False, "result": "torch sees no GPU", "code": "burn.noGpu"}
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    inputs, wanted = [], []
    for device in devices:
        torch.manual_seed(7)
        left = torch.randn(8192, 8192).to(device, torch.bfloat16)
        inputs.append(left)
        wanted.append((left @ left).float().sum())
    counts = [[0, 0] for _ in devices]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        results = [(left @ left).float().sum() for left in inputs]
        for i, result in enumerate(results):
            counts[i][0] += 1
            counts[i][1] += not bool(torch.equal(result, wanted[i]))
    return _judge("GPUs", [(done, bad) for done, bad in counts], seconds)


if __name__ == "__main__":
    print(json.dumps({"cpu": cpu, "gpu": gpu}[sys.argv[1]](float(sys.argv[2]))))
