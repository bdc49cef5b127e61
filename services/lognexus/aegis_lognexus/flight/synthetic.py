"""Dumps of a job that never ran: any size, several groups, one known culprit. For tests, the bench and the demonstration.

The schema is the one torch 2.13 writes for NCCL (pickle without stacks). Nothing here is used to analyze.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_NS = 1_795_976_700_000_000_000


@dataclass(frozen=True, slots=True)
class Job:
    """`world` ranks in one group of all, and, where `side` > 0, in world/side groups of neighbours ("tp") and world/side of equal remainder ("dp").

    Each step calls tp (tp_calls times), dp and, every fourth step, the group of all. entries: entries per rank. culprit: this rank stops its
    host `at` operations before the end (-1: nobody). backend: prefix of the names.
    """

    world: int = 64
    side: int = 8
    entries: int = 2000
    culprit: int = -1
    at: int = 3
    backend: str = "nccl"
    step_ns: int = 20_000_000

    def groups(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """(name, description, members), the group of all first."""
        out: list[tuple[str, str, tuple[int, ...]]] = [("0", "default_pg", tuple(range(self.world)))]
        if self.side > 0:
            n = self.world // self.side
            out += [(str(1 + i), "tp", tuple(range(i * self.side, (i + 1) * self.side))) for i in range(n)]
            out += [(str(1 + n + i), "dp", tuple(range(i, self.world, n))) for i in range(n)]
        return out

    def calls(self) -> list[str]:
        """The kinds of group a rank calls, in order."""
        if self.side <= 0:
            return ["default_pg"] * self.entries
        cycle = ["tp", "tp", "tp", "dp"] * 3 + ["tp", "tp", "dp", "default_pg"]
        return (cycle * (self.entries // len(cycle) + 1))[: self.entries]


_SHAPES = {
    "tp": ("_all_gather_base", [[4096, 1, 5120]], [[32768, 1, 5120]], ["BFloat16"]),
    "dp": ("_reduce_scatter_base", [[8388608]], [[1048576]], ["Float"]),
    "default_pg": ("all_reduce", [[1024]], [[1024]], ["Float"]),
}


def dumps(job: Job) -> Iterator[tuple[int, dict[str, Any]]]:
    """(rank, dump) for each rank. The state is settled by running the schedule: who cannot enter waits, and so does whoever needs it."""
    groups = job.groups()
    calls = job.calls()
    own = [_own(groups, rank) for rank in range(job.world)]
    entered, done = _run(job, calls, own)
    config = {name: {"name": name, "desc": desc, "ranks": str(list(members))} for name, desc, members in groups}
    for rank in range(job.world):
        mine = own[rank]
        last: dict[str, list[int]] = {}
        seqs = dict.fromkeys(mine, 0)
        entries = []
        for i in range(entered[rank]):
            desc = calls[i]
            name, local = mine[desc]
            seqs[desc] += 1
            op, ins, outs, types = _SHAPES[desc]
            finished = i < done[rank]
            created = START_NS + i * job.step_ns + (rank * 7919 + i * 104729) % 200_000
            entries.append(
                {
                    "record_id": i,
                    "pg_id": local,
                    "process_group": (name, desc),
                    "collective_seq_id": seqs[desc],
                    "p2p_seq_id": 0,
                    "op_id": seqs[desc],
                    "profiling_name": f"{job.backend}:{op}",
                    "time_created_ns": created,
                    "input_sizes": ins,
                    "input_dtypes": types,
                    "output_sizes": outs,
                    "output_dtypes": types,
                    "state": "completed" if finished else "scheduled",
                    "time_discovered_started_ns": created + 50_000 if finished else None,
                    "time_discovered_completed_ns": created + 900_000 if finished else None,
                    "retired": finished,
                    "timeout_ms": 600_000,
                    "is_p2p": False,
                    "thread_id": "23456244340032",
                    "thread_name": "python3",
                }
            )
            told = last.setdefault(str(local), [0, 0, 0])
            told[0] = seqs[desc]
            if finished:
                told[1] = told[2] = seqs[desc]
        status = {k: {"last_enqueued_collective": v[0], "last_started_collective": v[1], "last_completed_collective": v[2]} for k, v in last.items()}
        held = {mine[d][0]: config[mine[d][0]] for d in mine}
        yield rank, {"version": "2.10", "pg_config": held, "pg_status": status, "comm_lib_version": "2.27.3", "entries": entries}


def write(job: Job, folder: Path, prefix: str = "nccl_trace_rank_") -> int:
    """One pickle per rank; returns the bytes written."""
    total = 0
    for rank, dump in dumps(job):
        data = pickle.dumps(dump, protocol=2)
        (folder / f"{prefix}{rank}").write_bytes(data)
        total += len(data)
    return total


def _own(groups: Sequence[tuple[str, str, tuple[int, ...]]], rank: int) -> dict[str, tuple[str, int]]:
    """{description: (group name, local id)} of one rank."""
    held = [
        (name, desc)
        for name, desc, members in groups
        if rank in (members if len(members) < 64 else range(members[0], members[-1] + 1, _step(members)))
    ]
    return {desc: (name, local) for local, (name, desc) in enumerate(held)}


def _step(members: tuple[int, ...]) -> int:
    return members[1] - members[0]


def _run(job: Job, calls: list[str], own: list[dict[str, tuple[str, int]]]) -> tuple[list[int], list[int]]:
    """([operations entered], [operations done]) per rank; every host waits for its operation before the next call."""
    stop = [len(calls)] * job.world
    if job.culprit < 0:
        return stop, stop
    stop[job.culprit] = len(calls) - job.at
    members: dict[str, list[int]] = {}
    for rank, mine in enumerate(own):
        for name, _ in mine.values():
            members.setdefault(name, []).append(rank)
    done = list(stop)
    while True:  # a rank finishes call i only if all members of its group entered it; entering needs everything before to be finished
        before = list(done)
        entered = [min(stop[r], done[r] + 1) if r != job.culprit else done[r] for r in range(job.world)]
        reach = {name: min(entered[r] for r in ranks) for name, ranks in members.items()}
        low = min(done)
        for r in range(job.world):
            for i in range(low, done[r]):
                if reach[own[r][calls[i]][0]] <= i:
                    done[r] = i
                    break
        if done == before:
            return [min(stop[r], done[r] + 1) if r != job.culprit else done[r] for r in range(job.world)], done
