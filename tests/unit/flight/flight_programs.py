"""Programs of collectives and transfers over groups, run until nothing moves: who stopped is known, and each rank's record is as it would write it.

A host enters its calls in order, at most `ahead` of its device; a device takes them in order and finishes one when all who take part have reached it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flight_jobs import call, raw

Call = tuple[str, ...]
"""("group",) is a collective of the caller's group; ("group", "send" | "recv", peer as its place in the group) a transfer."""


@dataclass(frozen=True, slots=True)
class Program:
    """`calls`: of each rank. `stops`: {rank: how many calls it makes}; the others make all."""

    groups: Mapping[str, list[int]]
    calls: list[list[Call]]
    stops: Mapping[int, int] = field(default_factory=dict)
    ahead: int = 1


@dataclass(frozen=True, slots=True)
class Stood:
    """How far each rank came, in calls, and the ranks that stopped with nothing left to finish, and are waited for."""

    entered: list[int]
    done: list[int]
    culprits: tuple[int, ...]


def run(p: Program) -> Stood:
    world = len(p.calls)
    limit = [min(p.stops.get(r, len(p.calls[r])), len(p.calls[r])) for r in range(world)]
    partners = [[_partners(p, r, i) for i in range(len(p.calls[r]))] for r in range(world)]
    entered, done = [0] * world, [0] * world
    moved = True
    while moved:
        moved = False
        for r in range(world):
            reach = min(limit[r], done[r] + p.ahead)
            moved |= reach > entered[r]
            entered[r] = max(entered[r], reach)
        for r in range(world):
            while done[r] < entered[r] and all(done[m] >= i and entered[m] > i for m, i in partners[r][done[r]]):
                done[r] += 1
                moved = True
    waited = {m for r in range(world) if done[r] < entered[r] for m, i in partners[r][done[r]] if entered[m] <= i}
    stopped = {r for r in waited if entered[r] == limit[r] < len(p.calls[r]) and (done[r] == entered[r] or p.ahead > 1)}
    return Stood(entered, done, tuple(sorted(stopped)))


def records(p: Program, stood: Stood, backend: str, told: bool = True) -> dict[int, dict[str, Any]]:
    """What each rank writes. gloo records no transfers, and calls what it entered "scheduled" for ever."""
    out = {}
    for r, calls in enumerate(p.calls):
        made = [
            call(group=c[0], op=_name(p, r, c), line=10 + i, done=i < stood.done[r], at=(r * 37 + i * 11) % 50 / 1e4)
            for i, c in enumerate(calls[: stood.entered[r]])
            if not (backend == "gloo" and len(c) > 1)
        ]
        out[r] = raw(r, made, dict(p.groups), backend, told)
    return out


# --- the ways in which a record may come --------------------------------------------------------------------------------------------


def active_only(raw: dict[str, Any]) -> dict[str, Any]:
    return raw | {"entries": [e for e in raw["entries"] if not e["retired"]]}


def wrapped(raw: dict[str, Any]) -> dict[str, Any]:
    """The last entries of a small ring."""
    return raw | {"entries": raw["entries"][-12:]}


def as_json(raw: dict[str, Any]) -> dict[str, Any]:
    """As the JSON form has it: lists for tuples, 0 for None, text for the numbers of the status."""
    found: dict[str, Any] = json.loads(json.dumps(raw))
    found["pg_status"] = {k: {name: str(n) for name, n in v.items()} for k, v in found["pg_status"].items()}
    for e in found["entries"]:
        e.pop("frames")
        e.update({k: 0 for k, v in e.items() if v is None})
    return found


def of_a_later_schema(raw: dict[str, Any]) -> dict[str, Any]:
    new = [e | {"a_new_field": [1], "state": "scheduled"} for e in raw["entries"]]
    return raw | {"version": "2.14", "entries": new, "hook_recorder": {"on": True}, "comm_lib_version": "9"}


def of_an_earlier_schema(raw: dict[str, Any]) -> dict[str, Any]:
    """Before there were operation ids, types and threads."""
    kept = [{k: v for k, v in e.items() if k not in ("input_dtypes", "output_dtypes", "op_id", "timeout_ms")} for e in raw["entries"]]
    return raw | {"version": "2.2", "nccl_version": "2.20.5", "entries": kept}


def without_members(raw: dict[str, Any]) -> dict[str, Any]:
    """gloo's configuration: one entry, and often not even its ranks."""
    return raw | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}


FORMS = (dict, active_only, wrapped, as_json, of_a_later_schema, of_an_earlier_schema)


def mesh(world: int, side: int) -> dict[str, list[int]]:
    """The group of all, rows of `side` neighbours, and columns."""
    groups = {"0": list(range(world))}
    for i in range(world // side):
        groups[str(len(groups))] = list(range(i * side, (i + 1) * side))
    for i in range(side):
        groups[str(len(groups))] = list(range(i, world, side))
    return groups


def own(groups: Mapping[str, list[int]], rank: int, kind: str, side: int) -> str:
    """The name of the rank's group: "all", "row" or "column"."""
    rows = len(groups["0"]) // side
    return {"all": "0", "row": str(1 + rank // side), "column": str(1 + rows + rank % side)}[kind]


def _partners(p: Program, rank: int, at: int) -> list[tuple[int, int]]:
    """(rank, which call of its) of everybody whom a call takes."""
    c = p.calls[rank][at]
    members = p.groups[c[0]]
    if len(c) == 1:
        n = sum(each == c for each in p.calls[rank][:at])
        return [(m, _nth(p.calls[m], c, n)) for m in members if m != rank]
    peer = members[int(c[2])]
    mine, theirs = c, (c[0], "recv" if c[1] == "send" else "send", str(members.index(rank)))
    n = sum(each == mine for each in p.calls[rank][:at])
    return [(peer, _nth(p.calls[peer], theirs, n))]


def _nth(calls: list[Call], wanted: Call, n: int) -> int:
    found = [i for i, c in enumerate(calls) if c == wanted]
    return found[n] if n < len(found) else len(calls)


def _name(p: Program, rank: int, c: Call) -> str:
    if len(c) == 1:
        return "all_reduce"
    me = p.groups[c[0]].index(rank)
    return f"send {me}->{c[2]}" if c[1] == "send" else f"recv {me}<-{c[2]}"


def pipeline(stages: int, replicas: int, micro: int, steps: int) -> tuple[dict[str, list[int]], list[list[Call]]]:
    """Groups and calls of a pipeline: stage s of replica d is rank s * replicas + d; forward, backward, the replicas' sum, the sum of all."""
    world = stages * replicas
    groups = {"0": list(range(world))}
    groups |= {str(1 + d): [s * replicas + d for s in range(stages)] for d in range(replicas)}
    groups |= {str(1 + replicas + s): list(range(s * replicas, (s + 1) * replicas)) for s in range(stages)}
    calls: list[list[Call]] = []
    for r in range(world):
        s, d = divmod(r, replicas)
        line, before, after = str(1 + d), str(s - 1), str(s + 1)
        forward = [*([(line, "recv", before)] if s else []), *([(line, "send", after)] if s < stages - 1 else [])]
        backward = [*([(line, "recv", after)] if s < stages - 1 else []), *([(line, "send", before)] if s else [])]
        sums: list[Call] = [*([(str(1 + replicas + s),)] if replicas > 1 else []), ("0",)]
        calls.append([*forward * micro, *backward * micro, *sums] * steps)
    return groups, calls
