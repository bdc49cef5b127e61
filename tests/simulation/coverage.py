"""What worlds have exercised: faults that happened, rows of the table that were taken, kinds of events that were stepped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import get_args

from aegis_master.events import Event
from aegis_master.transitions import EDGES, Edge


def name_of(edge: Edge) -> str:
    return f"{edge.source or '-'}->{edge.target} {edge.trigger}"


ROWS = tuple(name_of(edge) for edge in EDGES)
EVENTS = tuple(kind.__name__ for kind in get_args(Event))


@dataclass
class Coverage:
    """Counts by name."""

    faults: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)

    def merge(self, other: Coverage) -> None:
        self.faults += other.faults
        self.rows += other.rows
        self.events += other.events

    def lines(self, faults: tuple[str, ...]) -> list[str]:
        """For people: how often each was, and what never was."""
        told = []
        for title, counted, known in (("faults", self.faults, faults), ("rows of the table", self.rows, ROWS), ("events", self.events, EVENTS)):
            never = [name for name in known if not counted[name]]
            told.append(f"  {title} ({len(known) - len(never)} of {len(known)}): " + ", ".join(f"{name} {n}" for name, n in counted.most_common()))
            if never:
                told.append(f"  {title} NEVER: " + ", ".join(never))
        return told
