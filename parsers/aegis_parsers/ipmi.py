"""ipmitool sdr elist: fans, power supplies, temperatures and voltages as the board's own controller sees them.

`name | id | status | entity | reading`. Status: ok; ns (no reading: the part is not there); nc, cr, nr (beyond a non-critical, critical,
non-recoverable threshold), with a letter for the side (lcr, unc). A discrete sensor is always "ok": what it says stands in the reading
("Presence detected, Failure detected").
"""

from __future__ import annotations

import re

from .schema import Draft, Severity, number

ROW = re.compile(
    r"^(?P<name>[^|]{1,64}?)\s*\|\s*(?P<id>[0-9A-Fa-f]{1,4}h)\s*\|\s*(?P<status>[a-z]{2,4})\s*\|\s*(?P<entity>[\d.]*)\s*\|\s*(?P<reading>.*)$"
)
BEYOND: dict[str, Severity] = {"nc": "warning", "cr": "critical", "nr": "critical"}
"""Last two letters of the status -> severity."""
SUPPLY_LOST = re.compile(r"failure detected|ac lost|dc lost|input lost|input out of range|config(?:uration)? error|predictive failure", re.I)
REDUNDANCY_LOST = re.compile(r"redundancy lost|non-redundant: insufficient|redundancy degraded", re.I)
FAN = re.compile(r"\bRPM\b|\bfan", re.I)
SUPPLY_ENTITY = "10."
"""Entity ids of power supplies (IPMI 2.0, table 43-13)."""


def looks(text: str) -> bool:
    return sum(ROW.match(line) is not None for line in text.split("\n")[:40]) >= 2


def read(draft: Draft, text: str) -> None:
    supplies: dict[str, bool] = {}  # well?
    for line in text.split("\n"):
        if not line.strip():
            continue
        row = ROW.match(line.strip())
        if row is None:
            draft.unread("line", line)
            continue
        name, status, reading = row["name"].strip(), row["status"], row["reading"].strip()
        item = f"{name} {row['entity']}".strip()
        fan = bool(FAN.search(f"{reading} {name}"))
        supply = row["entity"].startswith(SUPPLY_ENTITY)
        draft.item(item, "fan" if fan else "power_supply" if supply else "sensor", status=status, reading=reading, value=number(reading))
        severity = BEYOND.get(status[-2:])
        if severity is not None:
            draft.finding("fan_failed" if fan else "power_supply_failed" if supply else "sensor_limit", severity, item, line)
        elif status not in ("ok", "ns", "na"):
            draft.unread(f"{item}: status {status}", line)
        elif REDUNDANCY_LOST.search(reading):
            draft.finding("power_redundancy_lost" if not fan else "fan_redundancy_lost", "warning", item, line)
        elif supply and reading and status == "ok":
            supplies[item] = supplies.get(item, True) and not SUPPLY_LOST.search(reading)
    for item, well in supplies.items():
        if not well:  # the others carry the node as long as one of them is well
            draft.finding("power_supply_failed", "warning" if any(supplies.values()) else "critical", item, "failed, or without input")
