"""Argument vote and call-site vote: who calls something else than the majority of the group.

No rank is assumed innocent for its number: the majority of the members decides, and where there is none, all are named with low confidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aegis_lognexus.flight.table import FINISHED, Group, Table, majority

MAX_FINDINGS = 64
BEFORE, AFTER = 16, 64  # columns compared around a divergence of call sites
SEEN_LATE = 4  # operations one step apart, where the records begin after the divergence: fewer may be chance
SAMPLE = 64  # members that stand for the majority
# Which sizes must be equal on all members. Operations that are not here may differ legally (all-to-all, gather lists, coalesced).
_SIZES = {
    "allreduce": ("in", "out"),
    "broadcast": ("in",),
    "reduce": ("in",),
    "allgatherbase": ("in", "out"),
    "allgatherintotensor": ("in", "out"),
    "allgather": ("out",),
    "reducescatterbase": ("in", "out"),
    "reducescattertensor": ("in", "out"),
    "reducescatter": ("in",),
    "gather": ("in",),
    "scatter": ("out",),
}
_TYPES = frozenset({*_SIZES, "alltoall", "alltoallbase"})


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A column where members disagree. cause: op_mismatch, dtype_mismatch, size_mismatch, skipped_op, extra_op."""

    cause: str
    gid: int
    seq: int
    culprits: tuple[int, ...]
    sure: bool  # a clear majority of at least three
    open: bool  # not finished on some member
    evidence: str


def argument_mismatches(table: Table) -> list[Mismatch]:
    """The first disagreeing column of each group, by operation, then type, then size."""
    ops, types, sizes = (np.array(x, np.int32) for x in _codes(table))
    found: list[Mismatch] = []
    for g in table.groups:
        if g.kind.size == 0 or len(g.rows) < 2:
            continue
        for col in np.nonzero(_uneven(g.kind))[0].tolist():
            present = np.nonzero(g.kind[:, col] >= 0)[0]
            kinds = g.kind[present, col]
            for cause, codes in (("op_mismatch", ops), ("dtype_mismatch", types), ("size_mismatch", sizes)):
                values = codes[kinds].tolist()
                if len(set(values)) > 1:
                    found.append(_mismatch(table, g, (col, present), values, cause))
                    break
            else:
                continue
            break
        if len(found) >= MAX_FINDINGS:
            break
    return found


def _uneven(m: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Columns in which filled cells (>= 0) differ."""
    high = m.max(axis=0)
    low = np.where(m < 0, np.iinfo(np.int32).max, m).min(axis=0)
    uneven: npt.NDArray[np.bool_] = (high >= 0) & (high != low)
    return uneven


def _codes(table: Table) -> tuple[list[int], list[int], list[int]]:
    seen: dict[tuple[str, ...], int] = {}
    ops, types, sizes = [], [], []
    for k in table.kinds:
        ops.append(seen.setdefault(("op", k.op), len(seen)))
        types.append(seen.setdefault(("type", k.op, k.in_types if k.op in _TYPES else ""), len(seen)))
        rule = _SIZES.get(k.op, ())
        size = ("size", k.op, k.in_sizes if "in" in rule else "", k.out_sizes if "out" in rule else "")
        sizes.append(seen.setdefault(size, len(seen)))
    return ops, types, sizes


def _mismatch(table: Table, g: Group, cells: tuple[int, npt.NDArray[np.int64]], values: list[int], cause: str) -> Mismatch:
    """cells: a column and the rows that have an entry in it; values: what they call, in the same order."""
    col, present = cells
    best, odd = majority(values)
    ranks = g.rows[present[odd]].tolist()
    seq = g.base + col
    sample: dict[int, tuple[str, list[int]]] = {}
    for at, v in zip(present.tolist(), values, strict=True):
        k = table.kinds[int(g.kind[at, col])]
        told = {"op_mismatch": k.label, "dtype_mismatch": f"{k.label} of {k.in_types or 'no type'}"}.get(
            cause, f"{k.label} of {k.in_sizes or k.out_sizes}"
        )
        sample.setdefault(v, (told, []))[1].append(int(g.rows[at]))
    text = "; ".join(f"{_ranks(r)}: {told}" for told, r in list(sample.values())[:6])
    open_ = bool((g.state[present, col] != FINISHED).any())
    return Mismatch(cause, g.gid, seq, tuple(ranks), best >= 0 and len(present) >= 3, open_, f"{g.title} seq {seq}: {text}")


def call_site_shifts(table: Table) -> list[Mismatch]:
    """A rank whose calls come from other lines than the majority's, one step shifted from some seq on: it skipped or added an operation.

    Rank-dependent branches differ in the same way all the time and finish; a shift begins somewhere and stays.
    """
    found: list[Mismatch] = []
    for g in table.groups:
        if g.site.size == 0 or len(g.rows) < 3:
            continue
        cols = np.nonzero(_uneven(g.site))[0].tolist()
        for col in cols[:32]:
            present = np.nonzero(g.site[:, col] >= 0)[0]
            best, odd = majority(g.site[present, col].tolist())
            if best < 0 or len(odd) * 2 >= len(present) or len(present) < 3:
                continue
            rows = present[odd]
            usual = _usual(g, np.setdiff1d(present, rows)[:SAMPLE], col)
            kinds = {_shift(g, int(row), col, usual) for row in rows}
            if len(kinds) == 1 and (cause := kinds.pop()):
                seq = g.base + col
                ranks = tuple(g.rows[rows].tolist())
                here, there = table.sites[int(g.site[rows[0], col])], table.sites[best]
                what = "skipped an operation" if cause == "skipped_op" else "made one more call"
                text = f"{g.title} seq {seq}: {_ranks(list(ranks))} at {_top(here)}, the others at {_top(there)}; from there one step apart: {what}"
                found.append(Mismatch(cause, g.gid, seq, ranks, True, True, text))
                break
    return found


def _usual(g: Group, rows: npt.NDArray[np.int64], around: int) -> list[int]:
    """Per column the site that most of `rows` call from; -1 far from the column `around`."""
    usual = [-1] * g.site.shape[1]
    for col in range(max(0, around - BEFORE), min(g.site.shape[1], around + AFTER)):
        cells = g.site[rows, col]
        cells = cells[cells >= 0]
        usual[col] = majority(cells.tolist())[0] if cells.size else -1
    return usual


def _shift(g: Group, row: int, col: int, usual: list[int]) -> str:
    """skipped_op, extra_op or "": does the row follow the majority, one step apart, from col on, having agreed before?"""
    mine = g.site[row].tolist()
    before = [c for c in range(max(0, col - BEFORE), col) if mine[c] >= 0 and usual[c] >= 0]
    if any(mine[c] != usual[c] for c in before):
        return ""
    end = min(len(mine), col + AFTER)
    tail = [c for c in range(col, end) if mine[c] >= 0]
    ahead = [mine[c] == usual[c + 1] for c in tail if c + 1 < end and usual[c + 1] >= 0]
    behind = [mine[c] == usual[c - 1] for c in tail[1:] if usual[c - 1] >= 0]
    least = 1 if before else SEEN_LATE
    if len(ahead) >= least and all(ahead):
        return "skipped_op"
    return "extra_op" if len(behind) >= least and all(behind) else ""


def _top(site: str) -> str:
    return site.partition(" < ")[0] or "an unknown line"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(r) for r in sorted(ranks)[:8])
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{f' and {len(ranks) - 8} more' if len(ranks) > 8 else ''}"
