"""The limits as data: `data/limits.toml`, read once. Reads that file (or a site's own), writes nothing.

Every row names its source. A site's file replaces whole tables and, of `counter`, rows by (name, per).
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Literal

import msgspec
from aegis_parsers.schema import Severity

from aegis_netmon.series import Step

Per = Literal["second", "line_bits", "rcv_bits", "xmit_bits", "xmit_packets", "rcv_packets"]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str = ""


class Ber(_Table, frozen=True, kw_only=True):
    """Bit error rates; `raw_trend` and `lane_spread` are factors."""

    watch: float
    bad: float
    raw_trend: float
    lane_spread: float


class Fec(_Table, frozen=True, kw_only=True):
    """Bins are symbols corrected in a code word."""

    last_bin: int
    margin_watch: int
    margin_bad: int
    tail_ratio: float
    tail_least: int


class Flap(_Table, frozen=True, kw_only=True):
    """Seconds, and dips."""

    merge_s: float
    drop_s: float
    count: int
    window_s: float
    hold_s: float
    recovery_s: float
    boot_grace_s: float


class Down(_Table, frozen=True, kw_only=True):
    """Share of peers, and how many there must be; seconds."""

    peer_share: float
    least_peers: int
    forget_s: float


class Slow(_Table, frozen=True, kw_only=True):
    """Seconds."""

    forget_s: float


class Burst(_Table, frozen=True, kw_only=True):
    """Share of a window's count."""

    share: float


class Spread(_Table, frozen=True, kw_only=True):
    """Maximum over mean of the uplinks' traffic; `least_load` is a share of capacity."""

    even: float
    uneven: float
    least_load: float


class Common(_Table, frozen=True, kw_only=True):
    """What incidents have in common. Seconds; `sure` is a probability, `slow_fan` a share of the usual speed, `hot_c` degrees above the usual."""

    least: int
    settle_s: float
    slack_s: float
    lag_s: float
    sure: float
    slow_fan: float
    hot_c: float


class CounterLimit(_Table, frozen=True, kw_only=True):
    """One row: `any` is the severity of a single event, `severity` that of reaching `warn` (reaching `bad` is critical);
    `event`: a rise within one poll that is an event of the port, to be held against failures of jobs (where `any` and `burst` do not say);
    `after_reset`: whether what was counted since the counter was cleared is an event as well."""

    name: str
    code: str
    per: Per
    warn: float | None = None
    bad: float | None = None
    any: Severity | None = None
    burst: int | None = None
    event: int | None = None
    steady: bool = False
    after_reset: bool = True
    severity: Severity = "warning"

    def counts_in(self, step: Step) -> bool:
        """Whether the counter rose in this step, and the rise says something."""
        return self.name in step.counts and (self.after_reset or self.name not in step.reset)


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it."""

    ber: Ber
    fec: Fec
    flap: Flap
    down: Down
    slow: Slow
    burst: Burst
    spread: Spread
    common: Common
    counter: tuple[CounterLimit, ...]


class BadLimits(ValueError):
    """A file of limits that does not read; the message names key and what was expected."""


@cache
def default() -> Limits:
    """The limits that come with Aegis."""
    return msgspec.convert(_shipped(), Limits)


def _shipped() -> dict[str, object]:
    return tomllib.loads(resources.files("aegis_netmon.data").joinpath("limits.toml").read_text())


def of_site(text: str) -> Limits:
    """The shipped limits with those of a site's TOML over them."""
    try:
        own = tomllib.loads(text)
        whole = _shipped()
        rows = msgspec.convert(own.pop("counter", []), list[CounterLimit])
        whole |= {key: {**_table(whole, key), **_table(own, key)} for key in own}
        limits = msgspec.convert(whole, Limits)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadLimits(f"limits of the network monitor: {error}") from None
    new = {(row.name, row.per): row for row in rows}
    kept = [row for row in limits.counter if (row.name, row.per) not in new]
    return msgspec.structs.replace(limits, counter=(*kept, *rows))


def _table(whole: dict[str, object], key: str) -> dict[str, object]:
    found = whole.get(key, {})
    if not isinstance(found, dict):
        raise BadLimits(f"limits of the network monitor: [{key}] must be a table")
    return found
