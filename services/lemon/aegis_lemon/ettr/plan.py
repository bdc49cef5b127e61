"""What interval to use now, and what a target still needs: from a job's measured save time, restart time and failures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

from .expected import ceiling, exact, first_order, need_rf, need_write
from .intervals import interval_of
from .setting import DAY, Setting, SettingError


@dataclass(frozen=True)
class Plan:
    """What to do now. Seconds; rates per 1000 node-days.

    interval         the one to use; `low` and `high` are those at the ends of what the failure count leaves open
    expected, now    exact ETTR with it, and with the present interval
    need_rf          failure rate at which the target would hold; `need_write` the save time
    notes            what bounds any of it
    """

    interval: float
    low: float
    high: float
    expected: float
    first_order: float
    now: float | None
    ceiling: float
    mttf: float
    rf: float
    rf_low: float
    rf_high: float
    need_rf: float
    need_write: float
    notes: tuple[str, ...]


def rate_interval(failures: int, node_days: float, level: float = 0.95) -> tuple[float, float, float]:
    """Failures per 1000 node-days with a Poisson interval (Wilson-Hilferty, good to 3 % from three failures on): (estimate, low, high)."""
    if failures < 0 or not node_days > 0:
        raise SettingError(f"{failures} failures in {node_days:g} node-days: expected a count, and more than 0 node-days")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    low = failures * (1 - 1 / (9 * failures) - z / (3 * math.sqrt(failures))) ** 3 if failures else 0.0
    above = failures + 1
    high = above * (1 - 1 / (9 * above) + z / (3 * math.sqrt(above))) ** 3
    return failures / node_days * 1000, low / node_days * 1000, high / node_days * 1000


def plan(
    setting: Setting, target: float = 0.9, interval_now: float | None = None, rf_range: tuple[float, float] | None = None, latency: float = 0.0
) -> Plan:
    """The exact minimiser for the setting; `rf_range` is what the failure count leaves open, `latency` the seconds until a bad run is noticed."""
    notes = []
    rf_low, rf_high = rf_range or (setting.rf, setting.rf)
    chosen = setting
    if setting.rf == 0:
        chosen = replace(setting, rf=rf_high)
        notes.append("no failure was seen yet: the interval comes from the upper end of the rate")
    best = interval_of(chosen, "exact")
    if math.isinf(best):
        best = DAY
        notes.append("without failures no save is needed: the interval is capped at a day")
    if chosen.persist and best <= chosen.persist:
        notes.append(f"bounded by the {chosen.persist:g} s that a snapshot takes to be durable")
    if latency > best:
        notes.append(f"shorter than the {latency:g} s until a hang or corruption is noticed: keep checkpoints that reach back further than that")
    top = ceiling(chosen)
    if top < target:
        notes.append(
            f"no save is fast enough for {target:g}: a restart of {chosen.restart:g} s and a queue of {chosen.queue:g} s cap it at {top:.3f}"
        )
    ends = [min(DAY, interval_of(replace(setting, rf=rf), "exact")) for rf in (rf_high, rf_low)]
    return Plan(
        best, ends[0], ends[1], exact(chosen, best), first_order(chosen, best), None if interval_now is None else exact(chosen, interval_now), top,
        chosen.mttf, setting.rf, rf_low, rf_high, need_rf(setting, target, method="exact"), need_write(chosen, target, method="exact"), tuple(notes),
    )  # fmt: skip
