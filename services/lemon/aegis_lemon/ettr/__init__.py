"""ETTR, the share of a run's wall-clock time that is training which counts: expected, simulated, measured, planned.

Units are seconds everywhere, except r_f: failures per 1000 node-days, as the literature prints it (RSC-1 6.50, RSC-2 2.34, Llama 3 3.79).
`expected` and `intervals` need nothing but the standard library; `montecarlo` and `contour` need numpy and are imported by name.
"""

from .against import Against, Seen, against, seen
from .expected import ceiling, exact, first_order, lower_bound, need_rf, need_write
from .intervals import daly_exact, daly_first, daly_higher, interval_of, young
from .ledger import Ledgers, read_ledgers
from .measured import Measured, Run, Span, by, measure
from .plan import Plan, plan, rate_interval
from .setting import LLAMA3, RSC1, RSC2, Setting, SettingError

__all__ = [
    "LLAMA3",
    "RSC1",
    "RSC2",
    "Against",
    "Ledgers",
    "Measured",
    "Plan",
    "Run",
    "Seen",
    "Setting",
    "SettingError",
    "Span",
    "against",
    "by",
    "ceiling",
    "daly_exact",
    "daly_first",
    "daly_higher",
    "exact",
    "first_order",
    "interval_of",
    "lower_bound",
    "measure",
    "need_rf",
    "need_write",
    "plan",
    "rate_interval",
    "read_ledgers",
    "seen",
    "young",
]
