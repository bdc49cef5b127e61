"""Small hand-made dump sets: each rank's calls as a list, everything else filled in as gloo or NCCL would."""

from __future__ import annotations

from typing import Any

from aegis_lognexus.flight import Dump, from_mapping

START = 1_795_976_700_000_000_000


def call(
    *, group: str = "0", op: str = "all_reduce", size: int = 256, dtype: str = "Float", line: int = 10, done: bool = True, at: float = 0.0
) -> dict[str, Any]:
    return {"group": group, "op": op, "size": size, "dtype": dtype, "line": line, "done": done, "at": at}


def raw(rank: int, calls: list[dict[str, Any]], groups: dict[str, list[int]], backend: str = "gloo", told: bool = True) -> dict[str, Any]:
    """What a rank writes. told: the configuration lists the members of every group (NCCL); else only of the group of all (gloo)."""
    seqs: dict[str, int] = {}
    entries = []
    own = [name for name, ranks in groups.items() if rank in ranks]  # numbered as this rank came to know them
    status = {str(i): {"last_enqueued_collective": 0, "last_started_collective": -1, "last_completed_collective": 0} for i in range(len(own)) if told}
    p2p = 0
    for i, c in enumerate(calls):
        g = c["group"]
        is_p2p = "->" in c["op"] or "<-" in c["op"]
        if is_p2p:
            p2p += 1
        else:
            seqs[g] = seqs.get(g, 0) + 1
        sizes = [] if c["op"] == "barrier" else [[c["size"]]]
        entries.append(
            {
                "frames": [
                    {"name": "all_reduce", "filename": "torch/distributed/distributed_c10d.py", "line": 3245},
                    {"name": "train", "filename": "train.py", "line": c["line"]},
                ],
                "record_id": i,
                "pg_id": own.index(g),
                "process_group": (g, "default_pg" if g == "0" else "undefined"),
                "collective_seq_id": seqs.get(g, 0),
                "p2p_seq_id": p2p if is_p2p else 0,
                "profiling_name": f"{backend}:{c['op']}",
                "time_created_ns": START + int((i + c["at"]) * 1e9),
                "input_sizes": sizes,
                "input_dtypes": [c["dtype"]] if sizes else [],
                "output_sizes": sizes,
                "output_dtypes": [c["dtype"]] if sizes else [],
                "state": "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": c["done"],
                "is_p2p": is_p2p,
            }
        )
        s = status.setdefault(str(own.index(g)), {"last_enqueued_collective": 0, "last_started_collective": -1, "last_completed_collective": 0})
        s["last_enqueued_collective"] = max(seqs.get(g, 0), p2p if is_p2p else 0)
        if c["done"]:
            s["last_completed_collective"] = s["last_enqueued_collective"]
    config = {n: {"name": n, "desc": "", "ranks": str(m)} for n, m in groups.items() if rank in m} if told else {"": {"ranks": str(groups["0"])}}
    return {"version": "2.10", "pg_config": config, "pg_status": status, "entries": entries}


def job(
    calls: dict[int, list[dict[str, Any]]], groups: dict[str, list[int]] | None = None, backend: str = "gloo", told: bool = True
) -> dict[int, Dump]:
    members = groups or {"0": list(range(max(calls) + 1))}
    return {rank: from_mapping(rank, raw(rank, c, members, backend, told)) for rank, c in calls.items()}
