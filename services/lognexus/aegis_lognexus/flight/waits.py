"""The wait-for graph across groups: who is blocked on what, and who is waited for but waits for nobody.

Nodes are ranks and operations. A rank points to the operation that blocks it; the operation points to the members that have not entered it,
or, if all have, to those that still hang before it. Roots are what the chains end in: idle ranks, ranks without a dump, an operation in
which all are, or a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from aegis_lognexus.flight.table import UNKNOWN, Entries, Group, Table

OpKey = tuple[int, int, int, int]  # gid, seq (p2p_seq for p2p), src, dst as ranks; -1, -1 for a collective


@dataclass(frozen=True, slots=True)
class Op:
    key: OpKey
    label: str
    p2p: str = ""  # "send" or "recv" as the waiter sees it

    @property
    def gid(self) -> int:
        return self.key[0]

    @property
    def seq(self) -> int:
        return self.key[1]


@dataclass(slots=True)
class Waits:
    head: dict[int, Op] = field(default_factory=dict)  # rank -> the operation it is blocked on
    since: dict[int, int] = field(default_factory=dict)  # rank -> ns at which it entered that
    targets: dict[OpKey, list[int]] = field(default_factory=dict)
    ops: dict[OpKey, Op] = field(default_factory=dict)
    unentered: set[OpKey] = field(default_factory=set)  # operations whose targets have not entered them at all
    behind: set[int] = field(default_factory=set)  # blocked only on what a peer has finished
    idle: dict[int, list[OpKey]] = field(default_factory=dict)  # root rank -> operations that wait for it
    inside: list[OpKey] = field(default_factory=list)  # root operations: all members are in
    cycles: list[list[int]] = field(default_factory=list)  # ranks of each closed circle


def wait_for(table: Table) -> Waits:
    w = Waits()
    first = {r: int(e.pending[0]) for r, e in table.entries.items() if e.pending.size}
    for rank, e in table.entries.items():
        _head(table, w, first, rank, e)
    _heads_without_entries(table, w)
    _roots(table, w)
    return w


def _head(table: Table, w: Waits, first: dict[int, int], rank: int, e: Entries) -> None:
    """The first unfinished operation, in recording order, that says something about others."""
    seen: set[int] = set()
    for i in e.pending.tolist():
        gid = int(e.gid[i])
        if gid in seen:
            continue  # later operations of a group wait behind its first
        seen.add(gid)
        op = _op(table, rank, e, i)
        if op is None:
            continue
        if op.key not in w.ops:
            w.ops[op.key] = op
            w.targets[op.key] = _p2p_targets(table, first, op, rank) if op.p2p else _targets(table, first, op)
            if not op.p2p and (table.groups[gid].enq < op.seq).any():
                w.unentered.add(op.key)
        if not w.targets[op.key] and _finished_by_a_peer(table, op, rank):
            continue
        w.head[rank] = op
        w.since[rank] = int(e.created[i])
        return
    if e.pending.size:
        w.behind.add(rank)


def _heads_without_entries(table: Table, w: Waits) -> None:
    """A rank whose entries are lost but whose status says "entered, not completed" waits as well."""
    for g in table.groups:
        if g.p2p:
            continue
        for row in np.nonzero((g.enq > g.claims) & (g.claims != UNKNOWN))[0].tolist():
            rank = int(g.rows[row])
            e = table.entries.get(rank)
            if rank in w.head or (e is not None and e.pending.size):
                continue
            op = Op((g.gid, int(g.done[row]) + 1, -1, -1), "")
            targets = g.rows[(g.enq < op.seq) & (g.enq != UNKNOWN)].tolist()
            if targets:
                w.ops.setdefault(op.key, op)
                w.targets.setdefault(op.key, targets)
                w.head[rank] = op


def _op(table: Table, rank: int, e: Entries, i: int) -> Op | None:
    gid, k = int(e.gid[i]), table.kinds[int(e.kind[i])]
    if not e.p2p[i]:
        return Op((gid, int(e.seq[i]), -1, -1), k.label)
    members = table.groups[gid].members
    if not (0 <= k.src < len(members) and 0 <= k.dst < len(members)):
        return None
    src, dst = members[k.src], members[k.dst]
    if rank not in (src, dst):
        return None
    return Op((gid, int(e.p2p_seq[i]), src, dst), k.label, k.op)


def _targets(table: Table, first: dict[int, int], op: Op) -> list[int]:
    g = table.groups[op.gid]
    missing: list[int] = g.rows[(g.enq < op.seq) & (g.enq != UNKNOWN)].tolist()
    gone = [r for r in g.rows[g.enq == UNKNOWN].tolist() if not _has_dump(table, r)]
    if not g.known and not missing:  # a member that left no dump is in no inferred member set
        gone = [r for r in table.world if not _has_dump(table, r)]
    if missing or gone:
        return missing + gone
    members: list[int] = g.rows.tolist()
    return [r for r in members if _blocked_before(table, first, r, op)]


def _has_dump(table: Table, rank: int) -> bool:
    return rank in table.dumps and table.dumps[rank].readable


def _blocked_before(table: Table, first: dict[int, int], rank: int, op: Op) -> bool:
    """The member has entered `op` too, but something it recorded earlier is unfinished."""
    e = table.entries.get(rank)
    if e is None or rank not in first:
        return False
    i = first[rank]
    if int(e.gid[i]) == op.gid and int(e.seq[i]) == op.seq and not e.p2p[i]:
        return False
    at = e.pending[(e.gid[e.pending] == op.gid) & (e.seq[e.pending] == op.seq) & ~e.p2p[e.pending]]
    return bool(at.size) and i < int(at[0])


def _p2p_targets(table: Table, first: dict[int, int], op: Op, rank: int) -> list[int]:
    gid, seq, src, dst = op.key
    peer = dst if rank == src else src
    if peer == rank:
        return []
    if not _has_dump(table, peer):
        return [peer]
    g, e = table.groups[gid], table.entries[peer]
    mine = np.nonzero((e.gid == gid) & e.p2p)[0]
    matching = []
    for i in mine[::-1][:4096].tolist():
        k = table.kinds[int(e.kind[i])]
        if 0 <= k.src < len(g.members) and 0 <= k.dst < len(g.members) and (g.members[k.src], g.members[k.dst]) == (src, dst):
            if len(g.members) == 2 and int(e.p2p_seq[i]) == seq and e.done[i]:
                return []
            if not e.done[i]:
                matching.append(i)
    if not matching:
        told = _status_of(table, peer, gid)
        return [] if len(g.members) == 2 and told >= seq else [peer]
    return [peer] if first[peer] < min(matching) else []


def _status_of(table: Table, rank: int, gid: int) -> int:
    dump = table.dumps[rank]
    name = table.groups[gid].name
    for local, g in dump.local.items():
        if dump.groups[g][0] == name and local in dump.status:
            return dump.status[local][0]
    return UNKNOWN


def _finished_by_a_peer(table: Table, op: Op, rank: int) -> bool:
    if op.p2p:
        return False
    g: Group = table.groups[op.gid]
    return bool((g.done[g.rows != rank] >= op.seq).any())


def _roots(table: Table, w: Waits) -> None:
    """Sinks of the graph, one visit per node and edge."""
    waited: dict[int, list[OpKey]] = {}
    for key, targets in w.targets.items():
        for r in targets:
            waited.setdefault(r, []).append(key)
    blocked = set(w.head)
    for rank, keys in waited.items():
        if rank not in blocked:
            w.idle[rank] = keys
    used = {op.key for op in w.head.values()}
    w.inside = [key for key in used if not w.targets[key]]
    # What cannot reach a sink runs in circles: walk the edges backwards from the sinks.
    reached = set(w.idle)
    safe_ops = set(w.inside)
    users: dict[OpKey, list[int]] = {}
    for rank, op in w.head.items():
        users.setdefault(op.key, []).append(rank)
    todo: list[int] = list(reached)
    for key in w.inside:
        for r in users[key]:
            if r not in reached:
                reached.add(r)
                todo.append(r)
    while todo:
        for key in waited.get(todo.pop(), ()):
            if key in safe_ops:
                continue
            safe_ops.add(key)
            for r in users.get(key, ()):
                if r not in reached:
                    reached.add(r)
                    todo.append(r)
    circle = blocked - reached
    if circle:
        w.cycles = _circles(w, circle)


def _circles(w: Waits, ranks: set[int]) -> list[list[int]]:
    """Drop ranks that only lead into a circle; what is left, grouped by connection."""
    core = set(ranks)
    while True:
        aimed = {r for key in {w.head[rank].key for rank in core} for r in w.targets[key]}
        smaller = core & aimed
        if smaller == core:
            break
        core = smaller
    found: list[list[int]] = []
    left = set(core)
    while left:
        todo = [min(left)]
        part: set[int] = set()
        while todo:
            r = todo.pop()
            if r in part:
                continue
            part.add(r)
            todo.extend(t for t in w.targets[w.head[r].key] if t in core)
        found.append(sorted(part))
        left -= part
    return found
