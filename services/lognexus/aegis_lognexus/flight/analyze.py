"""From a set of dumps to one report: who, what, how sure, and what was missing. Pure: no clock, no files.

The rules, in the order in which they may decide:
1. argument and call-site vote on operations that are not finished;
2. a device that stopped completing in several groups at once;
3. roots of the wait-for graph: idle ranks, ranks without a dump, circles;
4. votes on finished operations (a failed operation is marked finished by some backends);
5. all are inside one operation;
6. nobody waits: entry skew, else healthy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from aegis_lognexus.flight import votes
from aegis_lognexus.flight.decode import CONFLICT
from aegis_lognexus.flight.dump import EMPTY, OK, Dump
from aegis_lognexus.flight.report import BadOp, Report, rank_list
from aegis_lognexus.flight.skew import first_of, lateness
from aegis_lognexus.flight.table import UNKNOWN, Group, Table, build
from aegis_lognexus.flight.waits import Op, Waits, wait_for

MAX_EVIDENCE = 24
STOPPED_GROUPS = 2  # lagging in one group is normal: the watchdog polls
STOPPED_MARGIN = 3.0  # x the median lag of the others
FEW = 8  # suspects that are still worth naming with low confidence


def analyze(dumps: Mapping[int, Dump]) -> Report:
    """One report for one set of dumps, {rank: Dump}. Partial and broken sets are welcome; nothing raises for content."""
    return analyze_table(build(dumps))


def analyze_table(table: Table) -> Report:
    missing = _missing(table)
    if not any(len(d) or any(e > 0 for e, _, _ in d.status.values()) for d in table.dumps.values() if d.readable):
        text = "no dump holds an operation: the backend records none of what this job does (gloo records no send or receive), or recording was off"
        if table.dumps and not any(d.readable for d in table.dumps.values()):
            text = "no dump could be read"
        return Report("no_evidence", cause="no_evidence", evidence=(text,), missing=missing)
    waits = wait_for(table)
    found = (
        _voted(table, waits, open_=True)
        or _stopped_devices(table, waits)
        or _idle_roots(table, waits)
        or _circle(table, waits)
        or _voted(table, waits, open_=False)
        or _inside(table, waits)
        or _quiet(table, waits)
    )
    extra = (
        [f"{rank_list({r for r, _ in table.failed})}: an operation is marked complete that a member never entered, so it failed"]
        if table.failed
        else []
    )
    confidence = _weaken(found.confidence, table)
    if found.culprits and table.accelerated and (early := _earlier(table) & set(found.culprits)):  # a device does not finish without a member
        confidence = "low"
        extra.append(
            f"{rank_list(early)}: others have finished what it had not entered; its record may be of an earlier moment, while the job went on"
        )
    evidence = (*found.evidence, *extra)[:MAX_EVIDENCE]
    return Report(
        found.verdict,
        found.culprits,
        found.cause,
        found.first_bad_op,
        confidence,
        evidence,
        missing,
        found.slow,
        _roles(table, waits, found),
    )


def _weaken(confidence: str, table: Table) -> str:
    """No high confidence when a tenth of the dumps or more is missing."""
    absent = sum(1 for r in table.world if r not in table.dumps or not table.dumps[r].readable)
    return "medium" if confidence == "high" and absent * 10 >= len(table.world) else confidence


def _earlier(table: Table) -> set[int]:
    """Ranks that had not entered what another has finished by its own word, in groups in which all take part in everything."""
    found: set[int] = set()
    for g in table.groups:
        known = g.enq != UNKNOWN
        if g.p2p or g.gid in table.one_sided or not known.any():
            continue
        found.update(g.rows[known & (g.enq < g.claims.max())].tolist())
    return found


def _missing(table: Table) -> tuple[str, ...]:
    out = []
    if absent := [r for r in table.world if r not in table.dumps]:
        out.append(f"no dump of {rank_list(absent)}")
    for rank, d in table.dumps.items():
        if not d.readable:
            out.append(f"dump of rank {rank} is {d.state}: {d.note}")
        elif d.note:
            out.append(f"dump of rank {rank}: {d.note}")
    if silent := [r for r, d in table.dumps.items() if d.state == EMPTY and not d.status]:
        out.append(f"dump of {rank_list(silent)} is empty")
    if unsure := [r for r, d in table.dumps.items() if len(d) and bool((d.columns["flags"] & CONFLICT).any())]:
        out.append(f"{rank_list(unsure)}: entries are completed but not retired; read as completed")
    if table.unmapped:
        out.append(f"status of {rank_list(table.unmapped)} names groups that no entry explains")
    if any(len(d) for d in table.dumps.values()) and not table.accelerated:
        out.append("this backend records no send or receive: a wait there cannot be seen")
    if any(d.state == OK for d in table.dumps.values()) and not table.sites:
        out.append("no stacks in the dumps: calls could not be compared by line")
    return tuple(out[:MAX_EVIDENCE])


def _bad(table: Table, gid: int, seq: int, label: str) -> BadOp:
    g = table.groups[gid]
    return BadOp(g.label, g.name, seq, label)


def _voted(table: Table, waits: Waits, open_: bool) -> Report | None:
    arguments = [m for m in votes.argument_mismatches(table) if m.open == open_ and not _excused(waits, m)]
    shifts = votes.call_site_shifts(table) if open_ and waits.head else []
    if not arguments and not shifts:
        return None
    # A skipped call explains whatever mismatches follow from it in the same group.
    first = min(shifts or arguments, key=lambda m: (not m.sure, table.groups[m.gid].p2p, _began(table, m)))
    if shifts and (earlier := [m for m in arguments if m.gid == first.gid and m.seq < first.seq]):
        first = earlier[0]
    same = [m for m in (shifts if first in shifts else arguments) if m.cause == first.cause and m.sure == first.sure]
    culprits = sorted({r for m in same for r in m.culprits}) if first.sure else list(first.culprits)
    g = table.groups[first.gid]
    cell = g.kind[:, first.seq - g.base]
    label = table.kinds[int(np.bincount(cell[cell >= 0]).argmax())].label
    evidence = tuple(m.evidence for m in same[:8])
    if not first.sure:
        evidence += ("no majority: all who disagree are named",)
    confidence = ("high" if first.cause != "extra_op" else "medium") if first.sure else "low"
    verdict = "hang" if first.cause in ("skipped_op", "extra_op") else "mismatch"
    return Report(verdict, tuple(culprits), first.cause, _bad(table, first.gid, first.seq, label), confidence, evidence)


def _began(table: Table, m: votes.Mismatch) -> int:
    g = table.groups[m.gid]
    col = g.created[:, m.seq - g.base]
    return int(col[col > 0].min()) if (col > 0).any() else 0


def _excused(waits: Waits, m: votes.Mismatch) -> bool:
    """Not the first trouble: the disagreeing operation is queued behind another one that waits for a rank outside the disagreement."""
    blocked = [waits.head[r] for r in m.culprits if r in waits.head]
    return bool(blocked) and all((op.gid, op.seq) != (m.gid, m.seq) and waits.targets[op.key] for op in blocked) and bool(waits.idle)


def _stopped_devices(table: Table, waits: Waits) -> Report | None:
    if not table.accelerated:
        return None
    lag: Counter[int] = Counter()
    groups: dict[int, list[str]] = {}
    first: dict[int, BadOp] = {}
    for g in table.groups:
        if g.p2p or not g.known or len(g.rows) < 2:
            continue
        top = int(g.done.max())
        for row in np.nonzero((g.done < top) & (g.done != UNKNOWN) & (g.enq > g.done))[0].tolist():
            rank, done = int(g.rows[row]), int(g.done[row])
            lag[rank] += top - done
            groups.setdefault(rank, []).append(f"{g.title} {done} of {top}")
            first.setdefault(rank, _bad(table, g.gid, done + 1, _label(table, g.gid, done + 1)))
    ranks = [r for r, d in table.dumps.items() if d.readable]
    usual = float(np.median([lag[r] for r in ranks])) if ranks else 0.0
    stopped = sorted(r for r in lag if len(groups[r]) >= STOPPED_GROUPS and lag[r] >= STOPPED_MARGIN * max(usual, 1.0))
    if not stopped or len(stopped) * 2 > len(ranks):
        return None
    evidence = [f"rank {r} entered but completes nothing more, peers saw it complete: {'; '.join(groups[r][:5])}" for r in stopped[:8]]
    late = sorted(set(waits.idle) & set(stopped))
    if late:
        evidence.append(f"{rank_list(late)} is also waited for by others")
    elif others := sorted(r for r in waits.idle if table.dumps.get(r) is not None):
        evidence.append(f"{rank_list(others)} waited for, waiting for nobody")
    return Report("hang", tuple(stopped), "gpu_error", first[stopped[0]], "high", tuple(evidence))


def _label(table: Table, gid: int, seq: int) -> str:
    g = table.groups[gid]
    col = seq - g.base
    if 0 <= col < g.kind.shape[1] and (g.kind[:, col] >= 0).any():
        return table.kinds[int(g.kind[:, col].max())].label
    return ""


def _idle_roots(table: Table, waits: Waits) -> Report | None:
    present = {r: ops for r, ops in waits.idle.items() if table.dumps.get(r) is not None and table.dumps[r].readable}
    absent = {r: ops for r, ops in waits.idle.items() if r not in present}
    roots = present or absent
    if not roots:
        return None
    keys = {k for ops in roots.values() for k in ops}
    key = min(keys, key=lambda k: (min((waits.since.get(r, 1 << 62) for r, op in waits.head.items() if op.key == k), default=1 << 62), k))
    op = waits.ops[key]
    bad = _bad(table, op.gid, op.seq, op.label or _label(table, op.gid, op.seq))
    evidence = [_waiting(table, waits, k, set(roots)) for k in sorted(keys, key=lambda k: (k != key, k))[:6]]
    culprits = tuple(sorted(roots))
    if absent and present:
        evidence.append(f"{rank_list(absent)} left no readable dump and may have ended as well")
    if not present:
        few = len(absent) * 10 <= len(table.world) or len(absent) == 1
        evidence.append(f"{rank_list(absent)} left no readable dump: read its last output and exit code")
        return Report("hang", culprits, "rank_died", bad, "medium" if few else "low", tuple(evidence))
    ahead = _alone_ahead(table, waits, op, culprits)
    if ahead:
        evidence.append("nearly all members agree on having ended before this operation: the few in it made a call the others did not")
        return Report("hang", ahead, "extra_op", bad, "low", tuple(evidence))
    cause = _root_cause(table, waits, keys, culprits)
    evidence.append(f"{rank_list(culprits)}: everything entered is finished, and nothing is waited for")
    unknown_p2p = not table.accelerated
    free = set(_unseen(table, waits, culprits))  # not waited for either
    if unknown_p2p and (len(culprits) > 1 or free):
        whom = "another" if not free else f"another, or for {rank_list(free)}"
        evidence.append(f"one of them may wait for {whom} in a send or receive, which this backend does not record")
    confidence = "high"
    if unknown_p2p:
        confidence = "medium" if len(culprits) == 1 and not free else "low"
    elif len(culprits) * 3 > len(table.world) or any(r in waits.behind for r in culprits):
        confidence = "medium"
    return Report("hang", culprits, cause, bad, confidence, tuple(evidence))


def _waiting(table: Table, waits: Waits, key: tuple[int, int, int, int], roots: set[int]) -> str:
    op = waits.ops[key]
    waiters = [r for r, o in waits.head.items() if o.key == key]
    aimed = sorted(roots & set(waits.targets[key]))
    where = f"{table.groups[op.gid].title} seq {op.seq} {op.label or _label(table, op.gid, op.seq)}".rstrip()
    if op.p2p:
        wait = "waits" if len(waiters) == 1 else "wait"
        return f"{rank_list(waiters)} {wait} in {where} for {rank_list(aimed)}, which {_has(aimed)} not posted the other half"
    return f"{rank_list(waiters)} in {where}; {rank_list(aimed)} {_has(aimed)} not entered it"


def _has(ranks: list[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _alone_ahead(table: Table, waits: Waits, op: Op, culprits: tuple[int, ...]) -> tuple[int, ...]:
    if op.p2p:
        return ()
    g = table.groups[op.gid]
    waiters = sorted(r for r, o in waits.head.items() if o.key == op.key)
    others = g.enq[~np.isin(g.rows, waiters)]
    if len(g.rows) < 4 or len(waiters) * 4 > len(g.rows) or (others != op.seq - 1).any() or len(culprits) < len(others):
        return ()
    made = {_made(table, r) for r in g.rows.tolist() if r not in waiters}
    return tuple(waiters) if len(made) == 1 and op.seq > 1 else ()  # who stopped here and there, or has not begun, did not end together


def _made(table: Table, rank: int) -> int:
    """Collectives that a rank has entered, in all its groups."""
    return sum(int(g.enq[row]) for g in table.groups if (row := g.row(rank)) >= 0)


def _root_cause(table: Table, waits: Waits, keys: set[tuple[int, int, int, int]], culprits: tuple[int, ...]) -> str:
    halves = {waits.ops[k].p2p for k in keys}
    if halves == {"send"}:
        return "p2p_no_recv"
    if halves == {"recv"}:
        return "p2p_no_send"
    if not table.accelerated:
        return "not_joined"
    several = all(sum(1 for g in table.groups if g.row(r) >= 0 and len(g.rows) > 1 and g.enq[g.row(r)] > 0) >= 2 for r in culprits)
    quiet = all(r not in waits.behind and not (r in table.entries and table.entries[r].pending.size) for r in culprits)
    return "host_hang_gil" if several and quiet else "not_joined"


def _circle(table: Table, waits: Waits) -> Report | None:
    if not waits.cycles:
        return None
    ranks = min(waits.cycles, key=len)
    if table.accelerated and (lagging := _behind_in_circle(waits, ranks)):
        keys = {k for k in waits.unentered if set(waits.targets[k]) & set(lagging)}
        first = waits.ops[min(keys)]
        text = f"{rank_list(lagging)}: waits only for members that are queued behind it, and a device queue does not stop the host from entering more"
        evidence = (*(_waiting(table, waits, k, set(lagging)) for k in sorted(keys)[:6]), text)
        return Report("hang", lagging, "not_joined", _bad(table, first.gid, first.seq, first.label), "medium", evidence)
    heads = {r: waits.head[r] for r in ranks}
    descs = Counter(table.groups[op.gid].label for op in heads.values())
    names = {r: table.groups[op.gid].label for r, op in heads.items()}
    if len(descs) < 2:  # one kind of group: tell the operations apart instead
        names = {r: f"{table.groups[op.gid].name} {op.seq}" for r, op in heads.items()}
        descs = Counter(names.values())
    ordered = descs.most_common()
    clear = len(ordered) > 1 and ordered[0][1] > ordered[1][1]
    culprits = tuple(r for r in ranks if not clear or names[r] != ordered[0][0])
    shown = [
        f"rank {r} waits in {table.groups[op.gid].title} seq {op.seq} {op.label} for {rank_list(waits.targets[op.key])}"
        for r, op in list(heads.items())[:8]
    ]
    shown.append("they wait for each other: these operations are called in different orders" + ("" if clear else ", and no order has the majority"))
    first = min(heads.items(), key=lambda x: waits.since.get(x[0], 0))[1]
    bad = _bad(table, first.gid, first.seq, first.label)
    return Report("hang", culprits, "order_deadlock", bad, "medium" if clear else "low", tuple(shown))


def _behind_in_circle(waits: Waits, ranks: list[int]) -> tuple[int, ...]:
    """Members of a circle that others wait for to enter something, while they themselves wait for nobody's entering."""
    aimed = {t for r in ranks if waits.head[r].key in waits.unentered for t in waits.targets[waits.head[r].key]}
    return tuple(r for r in ranks if r in aimed and not waits.head[r].p2p and waits.head[r].key not in waits.unentered)


def _inside(table: Table, waits: Waits) -> Report | None:
    if not waits.inside:
        return None
    key = min(waits.inside, key=lambda k: (min(waits.since.get(r, 1 << 62) for r, op in waits.head.items() if op.key == k), k))
    op = waits.ops[key]
    g = table.groups[op.gid]
    bad = _bad(table, op.gid, op.seq, op.label)
    evidence = [f"all known members entered {g.title} seq {op.seq} {op.label} and it is not finished: nobody is missing"]
    col = op.seq - g.base
    if not op.p2p and g.state.size and 0 <= col < g.state.shape[1]:
        state = g.state[:, col]
        late = g.rows[state == 1].tolist()
        if (state == 2).any() and 0 < len(late) * 2 < len(g.rows):
            evidence.append(f"{rank_list(late)} has only scheduled it, the others run it: its device does not reach it")
            return Report("hang", tuple(late), "gpu_hang", bad, "medium", tuple(evidence))
    evidence.append("the device or the network holds it, or it simply still runs: compare a second sample, and look at port and device errors")
    small = not op.p2p and table.accelerated and len(waits.inside) == 1 and len(g.rows) * 2 <= len(table.world) and len(g.rows) <= FEW
    if not g.known and len(unseen := _unseen(table, waits, g.rows.tolist())) == 1:  # a member that never called it is in no record of it
        evidence.append(f"who else is in this group is not recorded, and {rank_list(unseen)} alone waits for nothing")
        return Report("hang", unseen, "not_joined", bad, "medium" if not table.accelerated else "low", tuple(evidence))
    suspects = tuple(g.rows.tolist()) if small else ()
    if suspects:
        evidence.append(f"all other waits lead to this group: {rank_list(suspects)}, not told apart")
    return Report("hang" if suspects else "undecided", suspects, "stuck_inside", bad, "low", tuple(evidence))


def _unseen(table: Table, waits: Waits, others: Iterable[int]) -> tuple[int, ...]:
    """Ranks with a dump that wait for nothing recorded, without these others."""
    left = {*others, *waits.head, *waits.behind}
    return tuple(r for r, d in table.dumps.items() if d.readable and r not in left)


def _quiet(table: Table, waits: Waits) -> Report:
    if waits.head or waits.behind:
        lagging = rank_list(set(waits.head) | waits.behind)
        text = f"{lagging} still lists operations that peers saw complete; a lag of one group is normal"
        return Report("undecided", cause="none", confidence="low", evidence=(text,))
    entered = [(g, late) for g in table.groups if (late := lateness(g)) is not None]
    slow, evidence = _slow(table, [(g, late.late()) for g, late in entered], "own clock offset removed")
    if slow:
        return Report("slow", cause="slow_not_hung", confidence="medium", evidence=tuple(evidence), slow=slow)
    slow, evidence = _slow(table, [(g, late.steady()) for g, late in entered], "always so: the others do nothing but wait, or its clock is off")
    if slow:
        return Report("slow", cause="slow_not_hung", confidence="low", evidence=tuple(evidence), slow=slow)
    return Report("healthy", cause="none", confidence="medium", evidence=("every recorded operation is finished on every rank",))


def _slow(table: Table, found: list[tuple[Group, dict[int, float]]], how: str) -> tuple[tuple[int, ...], list[str]]:
    """Who enters late by itself, and how much in which group; who is late because it waits for another of these is left out."""
    slow: dict[int, float] = {}
    for _, late in found:
        for rank, seconds in late.items():
            slow[rank] = max(seconds, slow.get(rank, 0.0))
    waiting = {rank for g in table.groups for rank in first_of(g, slow)} if len(slow) > 1 else set()
    told = [
        f"rank {rank} enters {g.title} usually {seconds * 1000:.0f} ms after the others ({how})"
        for g, late in found
        for rank, seconds in late.items()
        if rank not in waiting
    ]
    return tuple(sorted(set(slow) - waiting)), told


def _roles(table: Table, waits: Waits, found: Report) -> dict[int, tuple[str, int, str, str]]:
    roles: dict[int, tuple[str, int, str, str]] = {}
    culprits, slow = set(found.culprits), set(found.slow)
    for rank in table.world:
        role = "culprit" if rank in culprits else "slow" if rank in slow else ""
        dump = table.dumps.get(rank)
        if dump is None or not dump.readable:
            roles[rank] = ("", -1, "no dump" if dump is None else dump.state, role)
            continue
        e = table.entries[rank]
        if op := waits.head.get(rank):
            roles[rank] = (f"{table.groups[op.gid].title} {op.label}", op.seq, "unfinished", role or "waits")
        elif len(e.seq):
            i = int(e.pending[0]) if e.pending.size else len(e.seq) - 1
            seq = int(e.p2p_seq[i] if e.p2p[i] else e.seq[i])
            label = f"{table.groups[int(e.gid[i])].title} {table.kinds[int(e.kind[i])].label}"
            roles[rank] = (label, seq, "unfinished" if e.pending.size else "finished", role)
        else:
            roles[rank] = ("", -1, "nothing unfinished" if dump.status else "empty", role)
    return roles
