"""A job of 10,000 workers, head and shards, everything dirty: how long a commit takes and how much it writes.

Bar: p99 <= 50 ms. One real nats-server on this machine, one job, one commit after another through `JobStore` (each reads back its server time).
Rows: the head alone; one dirty shard; all shards dirty. Columns in ms and bytes. `--sync always` puts every message on disk before its answer.

    python bench/commit_scale.py [--workers 10000] [--rounds 200] [--sync 1s|always] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import uuid
from pathlib import Path

from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_bus.jobstore import JobStore, Loaded
from aegis_bus.natsserver import NatsServer
from aegis_proto import messages
from aegis_proto.phases import OrderPhase, Phase
from aegis_proto.shards import encode as encode_shard
from aegis_proto.state import RECENT, ErrorNode, Head, JobSpec, JobState, Order, Owner, Pod, Transition, empty_shards
from aegis_proto.streams import stream_configs

BAR_MS = 50.0


REASONS = ("collateral: peer closed the connection while in all_reduce"[:64], "killed by signal 9", "gpuLost: Xid 79", "CUDA out of memory")
IDS = [str(uuid.UUID(int=random.Random(n).getrandbits(128))) + f"{random.Random(-n - 1).getrandbits(64):016x}" for n in range(1 << 15)]


def full_pod(index: int, n: int) -> Pod:
    """A pod with every field in use, as a platform fills them: ids of its own, random ones where real ones are random (no two pods pack as one)."""
    return Pod(
        ip=f"10.{index >> 16}.{(index >> 8) & 255}.{index & 255}",
        node=f"gpu-node-{index:05d}",
        innerPhase=Phase.TROUBLESHOOTING,
        finished=bool(n % 2),
        retries=n % 10,
        reason=REASONS[index % len(REASONS)],
        ts=1_796_000_000_000 + 1000 * n + index * 37 % 997,
        attempt=1 + n % 3,
        boot=IDS[index][36:],
        uid=IDS[index][:36],
        stopped=n,
        acked=n,
        exitCode=1,
        oldBoot=IDS[-1 - index][36:],
    )


def full_state(workers: int, n: int) -> JobState:
    """A head with all its lists full: 64 excluded nodes, 64 exceptions in the order, 16 transitions."""
    head = Head(
        job="llama-70b-abc123",
        name="llama-70b",
        namespace="research",
        uid="5f0e7a1c-2b3d-4c5e-8f90-123456789abc",
        workerNum=workers,
        maxRetry=10,
        era="01jf0000000000000000000000",
        owner=Owner("master-1-0123456789ab", n),
        cursor=n,
        phase=Phase.TROUBLESHOOTING,
        counts={str(phase): workers // 4 for phase in Phase},
        errorNodes=tuple(ErrorNode(f"gpu-node-{k:05d}", "gpuLost", 1_796_000_000_000 + n, f"w{k}") for k in range(64)),
        order=Order(
            OrderPhase.TROUBLESHOOT,
            n,
            n,
            attempts=tuple((1 + k % 3, 150) for k in range(64)),
            exceptions={f"w{k}": OrderPhase.HANG_WITH_QUIT for k in range(64)},
            masterAddr="10.0.0.1",
            masterPort=20000,
        ),
        recent=tuple(
            Transition(
                1_796_000_000_000 + n + k,
                Phase.RUN_COMMAND,
                Phase.TROUBLESHOOTING,
                n,
                n,
                3,
                "3:" * 15 + "3",
                "gpuLost",
                f"w{k}",
                "gpu-node-00001",
                "x" * 120,
                True,
            )
            for k in range(RECENT)
        ),
    )
    return JobState(head, empty_shards(workers), JobSpec("llama-70b", workers=workers, command=("python", "train.py")))


def dirty(state: JobState, n: int, shards: int) -> JobState:
    """A new round: the head changes, and every pod of the first `shards` shards."""
    new = tuple(
        tuple(full_pod(k * len(state.shards[0]) + i, n) for i in range(len(shard))) if k < shards else shard for k, shard in enumerate(state.shards)
    )
    return JobState(full_state(state.head.workerNum, n).head, new, state.spec)


async def measure(store: JobStore, loaded: Loaded, shards: int, rounds: int, n: int) -> tuple[dict[str, float], Loaded, int]:
    times: list[float] = []
    size = 0
    owner = loaded.state.head.owner
    for _ in range(rounds):
        n += 1
        new = dirty(loaded.state, n, shards)
        new = new.with_head(owner=owner)
        began = time.perf_counter()
        loaded = await store.commit(loaded, new)
        times.append((time.perf_counter() - began) * 1000)
        size = len(messages.encode(new.head)) + sum(len(encode_shard(shard)) for shard in new.shards[:shards])
    times.sort()
    row = {
        "shards": shards,
        "rounds": rounds,
        "p50_ms": round(times[len(times) // 2], 2),
        "p99_ms": round(times[min(len(times) - 1, int(len(times) * 0.99))], 2),
        "max_ms": round(times[-1], 2),
        "bytes_per_round": size,
    }
    return row, loaded, n


async def bench(workers: int, rounds: int, sync: str) -> dict[str, object]:
    with (
        tempfile.TemporaryDirectory(prefix="aegis-bench-") as folder,
        NatsServer(Path(folder) / "nats", sync_interval=sync, die_with_parent=True) as server,
    ):
        async with await Bus.connect(Identity.new(), [server.url], name="bench") as bus:
            for config in stream_configs():
                await bus.js_api(f"STREAM.CREATE.{config['name']}", config)
            store = JobStore(bus)
            loaded = await store.create(dirty(full_state(workers, 0), 0, -(-workers // 256)))
            rows, n = [], 0
            for shards in (0, 1, len(loaded.state.shards)):
                _, loaded, n = await measure(store, loaded, shards, 10, n)  # warm
                row, loaded, n = await measure(store, loaded, shards, rounds, n)
                rows.append(row)
            began = time.perf_counter()
            again = await store.load(loaded.state.head.job)
            load_ms = (time.perf_counter() - began) * 1000
            assert again is not None and again.state == loaded.state, "what was committed is not what is loaded"
            return {
                "workers": workers,
                "sync": sync,
                "bar_ms": BAR_MS,
                "head_bytes": len(messages.encode(loaded.state.head)),
                "shard_bytes": max(len(encode_shard(shard)) for shard in loaded.state.shards),
                "shard_json_bytes": max(len(messages.encode(shard)) for shard in loaded.state.shards),
                "load_ms": round(load_ms, 2),
                "rows": rows,
                "ok": rows[-1]["p99_ms"] <= BAR_MS,
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--sync", default="1s", choices=["1s", "always", "2m"])
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    result = asyncio.run(bench(options.workers, options.rounds, options.sync))
    print(
        f"{result['workers']} workers, sync {result['sync']}: head {result['head_bytes']} B, "
        f"largest shard {result['shard_bytes']} B ({result['shard_json_bytes']} B of JSON), load {result['load_ms']} ms"
    )
    print(f"{'dirty shards':>12} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'bytes/round':>12}")
    for row in result["rows"]:  # type: ignore[attr-defined]
        print(f"{row['shards']:>12} {row['p50_ms']:>8} {row['p99_ms']:>8} {row['max_ms']:>8} {row['bytes_per_round']:>12}")
    print(f"bar: all dirty, p99 <= {BAR_MS:.0f} ms: {'met' if result['ok'] else 'MISSED'}")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
