"""Port counters under one name, with their width.

Names are those of sysfs. Classic counters clamp at all ones and never wrap (IBTA PortCounters; perfquery does the same), so a value at the cap says
only "at least". Limits for a lifetime count are the samples of rdma-core's infiniband-diags (error_thresholds): a hint, since a count since nobody
knows when proves nothing; rates are judged by whoever reads twice.
"""

from __future__ import annotations

import csv
from functools import cache
from typing import NamedTuple

from .. import tables
from ..schema import Draft


class Counter(NamedTuple):
    """One row of data/counters.csv. `kind`: damage, elsewhere, congestion, configuration, harmless, traffic; of hw_counters also order,
    retransmit, timeout, dead, host and gauge (a value, not a count)."""

    name: str
    perfquery: str
    bits: int
    kind: str
    lifetime_warning: int | None
    unit: str
    meaning: str

    @property
    def cap(self) -> int:
        return int(2**self.bits - 1)


@cache
def table() -> dict[str, Counter]:
    """Every counter by its sysfs name and by perfquery's."""
    text = tables.text("data/counters.csv")
    rows = [
        Counter(r["name"], r["perfquery"], int(r["bits"]), r["kind"], int(r["lifetime_warning"] or 0) or None, r["unit"], r["meaning"])
        for r in csv.DictReader(text.splitlines())
    ]
    return {name.lower(): row for row in rows for name in (row.name, row.perfquery, row.perfquery.removesuffix("Counter")) if name}


def known(name: str) -> Counter | None:
    """The counter of that name in any tool's spelling ("SymbolErrorCounter", "LinkDownedCounterExt", "symbol_error")."""
    low = name.lower()
    return table().get(low) or table().get(low.removesuffix("ext")) or table().get(low.removesuffix("extended"))


def octets(words: int) -> int:
    """Octets of a data counter: it counts octets divided by 4, whatever the number of lanes. The only place where that factor stands."""
    return 4 * words


def saturated(name: str, value: int) -> bool:
    """Whether a classic counter stands at its cap. One above it is wider here than the classic field, and does not clamp there."""
    counter = known(name)
    return counter is not None and counter.bits < 64 and value == counter.cap


def note_saturation(draft: Draft, port: str, counters: dict[str, int]) -> list[str]:
    """An info finding per counter at its cap: further errors of it are invisible. Gives their names."""
    names = [name for name, value in counters.items() if saturated(name, value)]
    for name in names:
        counter = known(name)
        if counter is not None:
            draft.finding(
                "counter_saturated", "info", f"{port}/{name}", f"{name} {counters[name]} is the cap of {counter.bits} bits: at least that many"
            )
    return names
