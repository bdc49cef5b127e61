"""The budget of one Slurm job over all its starts, and the nodes it must not use again. Pure: a record in, a record out.

A requeued job is the same job: what it has used of its budget stays used. A start that ended without a word (its first node died, Slurm killed it
with a failed node) counts as one fault, so that no job is requeued for ever; one that ended by a notice (time limit, preemption) counts nothing.
"""

from __future__ import annotations

import msgspec

STARTS = 64
"""Starts kept one by one; of older ones the sum."""
OPEN = ""


class Start(msgspec.Struct, frozen=True, omit_defaults=True):
    """One start of the job by Slurm. `used`: counted faults so far. `end`: "" while nobody has said how it ended."""

    restart: int
    at: int  # ms since 1970
    nodes: tuple[str, ...] = ()
    used: int = 0
    end: str = OPEN
    code: int = 0
    job: str = ""


class Avoided(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that this job must not use again, by Slurm's name."""

    node: str
    reason: str
    at: int = 0


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `ledger.json` holds."""

    before: int = 0
    starts: tuple[Start, ...] = ()
    avoided: tuple[Avoided, ...] = ()

    @property
    def spent(self) -> int:
        """Faults of all starts that have ended, or that nobody knows the end of."""
        return self.before + sum(start.used + (start.end == OPEN) for start in self.starts)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.node for item in self.avoided)


def begin(ledger: Ledger, start: Start) -> Ledger:
    """The same start begins once, whoever says so."""
    starts = (*(old for old in ledger.starts if old.restart != start.restart), start)
    old, kept = starts[:-STARTS], starts[-STARTS:]
    gone = sum(item.used + (item.end == OPEN) for item in old)
    return msgspec.structs.replace(ledger, before=ledger.before + gone, starts=kept)


def update(ledger: Ledger, restart: int, **changes: object) -> Ledger:
    """The start number `restart` with other fields."""
    starts = tuple(msgspec.structs.replace(start, **changes) if start.restart == restart else start for start in ledger.starts)
    return msgspec.structs.replace(ledger, starts=starts)


def avoid(ledger: Ledger, *nodes: Avoided) -> Ledger:
    """With these nodes; one that is there already stays as it is."""
    fresh = {node.node: node for node in reversed(nodes) if node.node not in ledger.names}
    return msgspec.structs.replace(ledger, avoided=(*ledger.avoided, *reversed(fresh.values())))
