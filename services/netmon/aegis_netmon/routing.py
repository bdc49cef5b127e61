"""Adaptive routing: is it on, does the job let it work, does it work, and what does it hide. Pure.

A state comes with its source and age, or it is unknown with a reason; nothing is assumed from a default.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Literal, NamedTuple

import msgspec
from aegis_parsers.schema import Parsed

from aegis_netmon.flaps import retry_seconds
from aegis_netmon.limits import Spread, default
from aegis_netmon.topology import guid

Switch3 = Literal["on", "off", "unknown"]


class AdaptiveState(msgspec.Struct, frozen=True):
    """Of the fabric: `switches` of `of` have it on. `state` is that of every switch; where only some have it, `on` would be wrong, so it is unknown
    for each of them. `masks`: host GUID and port -> service levels that may come out of order; `off`: switches that have it off, by GUID; `levels`:
    of switches that have it on for some service levels only, which."""

    state: Switch3
    switches: int | None
    of: int | None
    source: str
    at: float
    reason: str
    masks: Mapping[str, int] = {}
    off: tuple[str, ...] = ()
    levels: Mapping[str, int] = {}


class Note(msgspec.Struct, frozen=True):
    """A remark on a setting: `level` is info or warning."""

    name: str
    level: Literal["info", "warning"]
    text: str


class SettingRow(NamedTuple):
    """A row of data/nccl.csv: default on InfiniBand and on RoCE."""

    name: str
    infiniband: str
    roce: str
    meaning: str
    source: str


def read(parsed: Parsed, switches: int | None, at: float, engine: str | None = None) -> AdaptiveState:
    """From ibdiagnet's text (and its EXTENDED_PORT_INFO). `switches`: how many the fabric has; `engine`: the subnet manager's routing engine."""
    masks = {}
    for item in parsed.items:
        columns = item.get("columns")
        if item.get("kind") == "extended_port_info" and isinstance(columns, dict):
            row = {str(name).lower(): value for name, value in columns.items()}
            mask = mask_of(row.get("oooslmask"))
            if mask is not None:
                masks[f"{row.get('nodeguid')}/{row.get('portnum')}"] = mask
    told = by_switch(parsed)
    if told:
        return of_switches(told, switches, parsed.tool, at, masks)
    count = next((item["switches_enabled"] for item in parsed.items if item.get("id") == "adaptive_routing"), None)
    on = count if isinstance(count, int) else None
    if on is None:
        if engine is not None and not engine.startswith("ar_"):
            return AdaptiveState("off", 0, switches, f"routing engine {engine}", at, "the subnet manager's engine sets no adaptive routing", masks)
        why = "ibdiagnet printed no line on adaptive routing (it needs -r and rights to read the switches)"
        return AdaptiveState("unknown", None, switches, parsed.tool, at, why, masks)
    if switches is None:
        return AdaptiveState("unknown", on, None, parsed.tool, at, f"on for {on} switches, of how many is not known", masks)
    if on >= switches:
        return AdaptiveState("on", on, switches, parsed.tool, at, f"on for {on} of {switches} switches", masks)
    if on == 0:
        return AdaptiveState("off", 0, switches, parsed.tool, at, f"on for none of {switches} switches", masks)
    return AdaptiveState("unknown", on, switches, parsed.tool, at, f"on for {on} of {switches} switches; which are off is in ibdiagnet2.far", masks)


def by_switch(parsed: Parsed) -> dict[str, tuple[bool, int | None]]:
    """Section AR_INFO of ibdiagnet2.db_csv: switch GUID -> whether it is on, and the mask of service levels where only some have it."""
    found: dict[str, tuple[bool, int | None]] = {}
    for item in parsed.items:
        columns = item.get("columns")
        if item.get("kind") != "ar_info" or not isinstance(columns, dict):
            continue
        row = {str(name).lower(): value for name, value in columns.items()}
        on, some = mask_of(row.get("e")), mask_of(row.get("by_sl_en"))
        if on is not None and row.get("nodeguid"):
            found[guid(str(row["nodeguid"]))] = (bool(on), mask_of(row.get("enable_by_sl_mask")) if some else None)
    return found


def of_switches(told: Mapping[str, tuple[bool, int | None]], switches: int | None, tool: str, at: float, masks: Mapping[str, int]) -> AdaptiveState:
    """The fabric's state from each switch's own. Switches that the report does not know are not assumed to be as the others."""
    off = tuple(sorted(switch for switch, (on, _) in told.items() if not on))
    levels = {switch: mask for switch, (on, mask) in told.items() if on and mask is not None}
    on, of = len(told) - len(off), max(switches or 0, len(told))
    state: Switch3 = "on" if on == of else "off" if not on and len(told) == of else "unknown"
    reason = f"on for {on} of {of} switches" + (f", off on {', '.join(off[:8])}" if off and on else "")
    if len(told) < of:
        reason += f"; {of - len(told)} are not in the report"
    return AdaptiveState(state, on, of, tool, at, reason, masks, off, levels)


def mask_of(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        return int(str(value), 0)
    except ValueError:
        return None


@cache
def settings() -> dict[str, SettingRow]:
    """NCCL's settings that matter here."""
    text = resources.files("aegis_netmon.data").joinpath("nccl.csv").read_text()
    return {row["name"]: SettingRow(**row) for row in csv.DictReader(text.splitlines())}


def level_state(state: AdaptiveState, level: int) -> Switch3:
    """Whether traffic of a service level is routed adaptively: the switches' state, and every host's mask of levels that may be reordered."""
    if state.state != "on":
        return state.state
    return "on" if all(mask >> level & 1 for mask in (*state.masks.values(), *state.levels.values())) else "off"


def check_nccl(environ: Mapping[str, str], state: AdaptiveState, layer: Literal["infiniband", "roce"] = "infiniband") -> list[Note]:
    """A job's NCCL settings against the fabric. What is not set has NCCL's default."""
    notes: list[Note] = []
    values = {name: environ.get(name, row.infiniband if layer == "infiniband" else row.roce) for name, row in settings().items()}
    told = integer(values["NCCL_IB_ADAPTIVE_ROUTING"])
    if told is None:
        notes.append(Note("NCCL_IB_ADAPTIVE_ROUTING", "warning", f"{values['NCCL_IB_ADAPTIVE_ROUTING']!r} is no number"))
    elif told == 0 and state.state == "on":
        text = "0 while the fabric routes adaptively: a message may be signalled before its last packet is there; set 1"
        notes.append(Note("NCCL_IB_ADAPTIVE_ROUTING", "warning", text))
    elif told == 1 and state.state == "off":
        text = "1 does not switch adaptive routing on: that is the subnet manager's; it only sends one more small message per transfer"
        notes.append(Note("NCCL_IB_ADAPTIVE_ROUTING", "info", text))
    level = integer(values["NCCL_IB_SL"])
    level = 0 if level is None or level < 0 else level
    if state.state == "on" and level_state(state, level) == "off":
        ports = sum(not mask >> level & 1 for mask in state.masks.values())
        switches = sum(not mask >> level & 1 for mask in state.levels.values())
        where = [f"{n} {kind}" for n, kind in ((ports, f"of {len(state.masks)} ports"), (switches, "switches")) if n]
        text = f"service level {level} is outside the mask of {' and of '.join(where)}: static there although adaptive routing is on"
        notes.append(Note("NCCL_IB_SL", "warning", text))
    timeout, retries = integer(values["NCCL_IB_TIMEOUT"]), integer(values["NCCL_IB_RETRY_CNT"])
    if timeout is not None and retries is not None:
        seconds = retry_seconds(timeout, retries)
        if seconds < 10:
            notes.append(Note("NCCL_IB_TIMEOUT", "warning", f"{timeout} with {retries} retries gives up after {seconds:.1f} s: a flap ends the job"))
    for name in environ:
        if name.startswith("NCCL_IB_") and name not in settings():
            notes.append(Note(name, "info", "not known to this table"))
    return notes


def integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


class SpreadVerdict(msgspec.Struct, frozen=True):
    """`ratio`: maximum over mean of the uplinks' traffic; `lost`: uplinks that carry nothing or are down, of `uplinks`."""

    state: Literal["even", "uneven", "between", "too_little", "unknown"]
    ratio: float | None
    uplinks: int
    lost: tuple[str, ...] = ()
    warning: str = ""


def spread(
    bits: Mapping[str, float], seconds: float, gbps: float, down: Sequence[str] = (), *, adaptive: bool | None = None, limits: Spread | None = None
) -> SpreadVerdict:
    """How evenly one leaf's uplinks were used: bits sent per uplink in so many seconds. Near 1 proves adaptive routing, 2 to 4 is what static gives.

    A dead uplink under even traffic is hidden by adaptive routing: bandwidth is fine and the redundancy is gone; that is a warning of its own. An
    uplink that is up and silent counts as dead only where adaptive routing is known to be on: static routes leave some unused.
    """
    limits = limits or default().spread
    alive = {name: sent for name, sent in bits.items() if name not in down}
    if not alive or seconds <= 0:
        return SpreadVerdict("unknown", None, len(bits), tuple(sorted(down)))
    mean = fmean(alive.values())
    if mean < limits.least_load * gbps * 1e9 * seconds:
        return SpreadVerdict("too_little", None, len(bits), tuple(sorted(down)))
    ratio = max(alive.values()) / mean
    state: Literal["even", "uneven", "between"] = "even" if ratio <= limits.even else "uneven" if ratio >= limits.uneven else "between"
    silent = [name for name, sent in alive.items() if adaptive and sent < 0.1 * mean]
    lost = tuple(sorted({*down, *silent}))
    warning = ""
    if lost and len(alive) > len(silent):
        rest = fmean(sent for name, sent in alive.items() if name not in silent)
        even = max(alive.values()) / rest <= limits.even
        if even:
            gone = len(lost) / len({*bits, *down})
            warning = f"adaptive routing hides {len(lost)} dead uplinks ({', '.join(lost)}): traffic is even, {gone:.0%} of the capacity is gone"
            state = "even"
    return SpreadVerdict(state, round(ratio, 3), len({*bits, *down}), lost, warning)


class FirmwareRow(NamedTuple):
    """A row of data/firmware.csv: a family of devices by the head of its firmware's version."""

    family: str
    prefix: str
    adaptive: str
    source: str


@cache
def families() -> tuple[FirmwareRow, ...]:
    """Families of devices, and whether they are known to route (or to take) packets adaptively."""
    text = resources.files("aegis_netmon.data").joinpath("firmware.csv").read_text()
    return tuple(FirmwareRow(**row) for row in csv.DictReader(text.splitlines()))


class Inventory(msgspec.Struct, frozen=True):
    """Per family: versions with their count. `odd`: devices that run another version than most of their family; `without`: not known to support
    adaptive routing."""

    versions: Mapping[str, Mapping[str, int]]
    odd: tuple[str, ...]
    without: tuple[str, ...]


def inventory(firmware: Mapping[str, str]) -> Inventory:
    """Device -> firmware version ("28.41.1000", "11.2008.2102")."""
    rows = {device: (family_of(version), version) for device, version in firmware.items()}
    counts: dict[str, Counter[str]] = {}
    for family, version in rows.values():
        counts.setdefault(family.family, Counter())[version] += 1
    usual = {name: versions.most_common(1)[0][0] for name, versions in counts.items()}
    odd = [f"{device}: {version}, most have {usual[family.family]}" for device, (family, version) in rows.items() if version != usual[family.family]]
    without = [f"{device}: {family.family} {version}, {family.adaptive}" for device, (family, version) in rows.items() if family.adaptive != "yes"]
    return Inventory({name: dict(versions) for name, versions in counts.items()}, tuple(sorted(odd)), tuple(sorted(without)))


def family_of(version: str) -> FirmwareRow:
    head = version.strip().split(".")[0]
    return next((row for row in families() if row.prefix == head), FirmwareRow(f"unknown ({head or '?'}.x)", head, "not known", ""))
