"""What the analyzer says. `cause` names what the dumps prove about the culprits, never more.

verdict: healthy | slow | hang | mismatch | undecided | no_evidence
cause: none            nothing is unfinished, nobody is late
       slow_not_hung   all finished, some rank comes late to most operations (`slow` names it; it is no culprit of a hang)
       not_joined      the culprits have not entered an operation in which others wait, and wait for nobody themselves
       host_hang_gil   as not_joined, in a process that lives (its native watchdog dumped), whose device has finished everything and whose
                       Python side enqueues nothing in any of several groups: a held interpreter lock or a blocked main thread
       rank_died       waited for, and left no readable dump
       gpu_error       the device completes nothing more in several groups at once, while peers have seen the same operations complete
       op_mismatch, dtype_mismatch, size_mismatch, skipped_op, extra_op   the culprits call something else than the majority
       p2p_no_recv, p2p_no_send   only sends (receives) wait for the culprits
       order_deadlock  ranks wait for each other in a circle
       gpu_hang        most members run an operation that the culprits have only scheduled: their devices do not reach it
       stuck_inside    all members are in the operation and none comes out: device, network, or simply still running; a second sample tells
       no_evidence     nothing in the dumps bears on the question
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class BadOp:
    """The first operation that went wrong: group description and name, sequence number, what it is."""

    pg: str
    name: str
    seq: int
    op: str


@dataclass(frozen=True, slots=True)
class Report:
    """confidence: high | medium | low | none. missing: what was not there to read, one sentence each. roles: {rank: (op, seq, state, role)}."""

    verdict: str
    culprits: tuple[int, ...] = ()
    cause: str = "none"
    first_bad_op: BadOp | None = None
    confidence: str = "none"
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    slow: tuple[int, ...] = ()
    roles: dict[int, tuple[str, int, str, str]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        op = self.first_bad_op
        return {
            "verdict": self.verdict,
            "culprits": list(self.culprits),
            "cause": self.cause,
            "first_bad_op": None if op is None else {"pg": op.pg, "name": op.name, "seq": op.seq, "op": op.op},
            "confidence": self.confidence,
            "evidence": list(self.evidence),
            "missing": list(self.missing),
            "slow": list(self.slow),
        }


def rank_list(ranks: Any, limit: int = 8) -> str:
    """ "rank 3" or "ranks 0, 1, 2 and 13 more" """
    all_ = sorted(ranks)
    shown = ", ".join(str(r) for r in all_[:limit])
    return f"{'rank' if len(all_) == 1 else 'ranks'} {shown}{f' and {len(all_) - limit} more' if len(all_) > limit else ''}"
