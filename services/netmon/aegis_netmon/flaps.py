"""Links that go down and come back. Pure; time is an argument.

Changes within a few seconds are one dip (one loss of carrier may print five lines). A dip stays visible for a while after the link is back, and a
flapping link is called well again only after a time without a dip: neither vanishes at once nor waits to be cleared by hand. Dips right after a boot
are the boot.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from aegis_netmon.limits import Flap, default

State = Literal["up", "down", "was_down", "flapping", "dropped", "unknown"]
KEPT = 64
SET_BACK = 60.0
"""Seconds that a reading is older than the one before it, from which on the clock was set back."""


class Dip(msgspec.Struct, frozen=True):
    """Down from `start` to `end` (None: still). `seen`: by its state; else only link_downed rose. `downs`: how often it went down, more than once
    since `back`, when it had come back for the first time: only changes soon after that are the same dip, or a link that never rests has one."""

    start: float
    end: float | None = None
    seen: bool = True
    downs: int = 1
    back: float | None = None


class History(msgspec.Struct, frozen=True):
    """The dips of one port since `boot` (seconds), the newest last."""

    up: bool | None = None
    dips: tuple[Dip, ...] = ()
    boot: float | None = None
    at: float = 0.0


class FlapVerdict(msgspec.Struct, frozen=True):
    """`dips`: within the window; `longest` seconds of them; `clears_at`: when it is called up again if nothing happens."""

    state: State
    dips: int = 0
    longest: float = 0.0
    since: float | None = None
    clears_at: float | None = None


def observe(old: History, at: float, up: bool | None, downed: int = 0, *, boot: float | None = None, limits: Flap | None = None) -> History:
    """What one poll saw: state (None: unknown) and how much link_downed rose since the poll before."""
    limits = limits or default().flap
    boot = old.boot if boot is None else boot
    dips = old.dips
    down_now = up is False
    if down_now and old.up is not False:
        dips = _begin(dips, Dip(at, None, True, max(downed, 1)), limits)
    elif downed and not (old.up is False or down_now):
        dips = _begin(dips, Dip(at, at, False, downed), limits)
    elif downed and dips:
        dips = (*dips[:-1], msgspec.structs.replace(dips[-1], downs=dips[-1].downs + downed))
    if up and old.up is False and dips and dips[-1].end is None:
        dips = (*dips[:-1], msgspec.structs.replace(dips[-1], end=at))
    return History(old.up if up is None else up, dips[-KEPT:], boot, at)


def _begin(dips: tuple[Dip, ...], new: Dip, limits: Flap) -> tuple[Dip, ...]:
    last = dips[-1] if dips else None
    if last is not None:
        back = last.back if last.back is not None else last.start if last.end is None else last.end
        if new.start - back <= limits.merge_s:
            return (*dips[:-1], Dip(last.start, new.end, last.seen or new.seen, last.downs + new.downs, back))
    return (*dips, new)


def insert(old: History, dip: Dip, limits: Flap | None = None) -> History:
    """A dip that somebody else saw, after the fact; one that is known already changes nothing."""
    merge = (limits or default().flap).merge_s
    end = dip.start if dip.end is None else dip.end
    if any(one.start - merge <= end and dip.start <= (old.at if one.end is None else one.end) + merge for one in old.dips):
        return old
    dips = tuple(sorted((*old.dips, dip), key=lambda one: one.start))
    return History(old.up, dips[-KEPT:], old.boot, old.at)


def moved(old: History, by: float) -> History:
    """The same in another clock, which is so many seconds ahead."""
    dips = tuple(Dip(dip.start + by, None if dip.end is None else dip.end + by, dip.seen, dip.downs) for dip in old.dips)
    return History(old.up, dips, old.boot, old.at + by)


def judge(history: History, now: float, limits: Flap | None = None) -> FlapVerdict:
    """The state of the link as a person should see it."""
    limits = limits or default().flap
    if history.up is None:
        return FlapVerdict("unknown")
    ends = [(dip, now if dip.end is None else dip.end) for dip in history.dips]
    counted = [(dip, end) for dip, end in ends if end > now - limits.window_s and not _booting(dip, history.boot, limits)]
    longest = max((end - dip.start for dip, end in counted), default=0.0)
    last_end = max((end for _, end in counted), default=None)
    if history.up is False:
        start = history.dips[-1].start if history.dips else now
        if len(counted) >= limits.count:
            return FlapVerdict("flapping", len(counted), longest, start)
        return FlapVerdict("dropped" if now - start >= limits.drop_s else "down", len(counted), longest, start)
    if last_end is not None:
        if len(counted) >= limits.count and now - last_end < limits.recovery_s:
            return FlapVerdict("flapping", len(counted), longest, counted[0][0].start, last_end + limits.recovery_s)
        if now - last_end < limits.hold_s:
            return FlapVerdict("was_down", len(counted), longest, counted[-1][0].start, last_end + limits.hold_s)
    return FlapVerdict("up", len(counted), longest)


def _booting(dip: Dip, boot: float | None, limits: Flap) -> bool:
    return boot is not None and boot - limits.merge_s <= dip.start <= boot + limits.boot_grace_s


def retry_seconds(timeout: int = 20, retries: int = 7) -> float:
    """How long a queue pair bears silence before it dies: NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT (4.096 us x 2^timeout x retries; InfiniBand's local
    ack timeout). The defaults are NCCL's: about 30 s.

    >>> round(retry_seconds())
    30
    """
    return float(4.096e-6 * 2**timeout * retries)


def survives(dip: Dip, now: float, timeout: int = 20, retries: int = 7) -> bool:
    """Whether a job outlives this dip: it ended before the retries did."""
    return (now if dip.end is None else dip.end) - dip.start < retry_seconds(timeout, retries)
