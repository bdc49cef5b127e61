"""What one step of the phase machine costs: microseconds per event, at 3, 1,536 and 10,000 pods. No network, one core.

    python bench/machine_step.py [--json]

Claim: a report of a worker costs <= 50 us typical, whatever the size of the job; a round (all pods rewritten, order rendered) is paid once per round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import msgspec
from aegis_master import events as ev
from aegis_master import machine
from aegis_proto.state import JobSpec, JobState

SIZES = (3, 1_536, 10_000)
CLAIM_US = 50.0


def report(state: JobState, index: int) -> ev.Finished:
    pod, head = state.pod(index), state.head
    return ev.Finished(index, pod.attempt, pod.boot, head.incarnation, head.seqNum)


def timed(state: JobState, events: list[ev.Event]) -> tuple[JobState, list[float]]:
    """Microseconds of each event, stepped one after the other."""
    spent = []
    for event in events:
        start = time.perf_counter()
        state, _ = machine.step(state, event, 1_000_000)
        spent.append((time.perf_counter() - start) * 1e6)
    return state, spent


def measure(workers: int) -> dict[str, float]:
    """p50 and p99 of reports, and the cost of a round, for one size of job."""
    state = machine.create("bench-1", JobSpec("bench", workers=workers, maxRetry=1000), "uid", "era", 0)
    state, here = timed(state, [ev.PodReady(i, 1, f"b{i}", "10.0.0.1", f"node{i}") for i in range(workers)])
    reports: list[float] = []
    rounds: list[float] = [here[-1]]
    acks: list[float] = []
    while len(reports) < 2_000 and len(rounds) < 1_000:
        state, spent = timed(state, [ev.Acked(i, 1, f"b{i}", state.head.seqNum) for i in range(workers)])
        acks += spent
        state, spent = timed(state, [report(state, i) for i in range(workers)])
        reports, rounds = reports + spent[:-1], [*rounds, spent[-1]]
        failed = ev.Errored(1, 1, "b1", state.head.incarnation, state.head.seqNum, exit_code=1, at=1)
        state, spent = timed(state, [failed])
        rounds += spent
    stale = ev.Errored(1, 0, "b1", 0, 0)
    _, dropped = timed(state, [stale] * 2_000)
    return {
        "workers": workers,
        "report_p50_us": round(statistics.median(reports), 1),
        "report_p99_us": round(statistics.quantiles(reports, n=100)[98], 1),
        "ack_p50_us": round(statistics.median(acks), 1),
        "stale_p50_us": round(statistics.median(dropped), 1),
        "round_p50_ms": round(statistics.median(rounds) / 1000, 2),
        "head_bytes": len(msgspec.json.encode(state.head)),
        "shard_bytes": len(msgspec.json.encode(state.shards[0])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    rows = [measure(workers) for workers in SIZES]
    if parser.parse_args().json:
        print(json.dumps(rows))
        return
    print(*rows[0], sep="  ")
    for row in rows:
        print(*row.values(), sep="  ")
    worst = max(row["report_p50_us"] for row in rows)
    print(f"claim: a report <= {CLAIM_US:g} us typical: {'holds' if worst <= CLAIM_US else 'does not hold'} ({worst} us)")


if __name__ == "__main__":
    main()
