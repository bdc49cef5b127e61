"""ibswinfo: inventory, power supplies, temperature and fans of a switch, as its table (`key | value`) or as its vitals (`key : value`)."""

from __future__ import annotations

import re
from statistics import median

from ..schema import Draft, Item, number

FAN = re.compile(r"^fan#(?P<n>\d+)(?:\.speed)? \(rpm\)$")
HEAD = re.compile(r"^\s*(?:Device|Current node description)\s*: *(?P<name>.*)$")
PSU = re.compile(r"^PSU(?P<n>\d+) status$")
FINE = ("ok", "", "n/a", "-")
SLOW = 0.7
"""Share of the median of the fans in the same position (rotors of a pair differ by design) below which one is slow."""


def looks(text: str) -> bool:
    return bool(re.search(r"^(?:fan#\d+ \(rpm\)|PSU\d+ status|firmware version|part number)\s*\||^cur\.temp \(C\)\s*:", text, re.M))


def read(draft: Draft, text: str) -> None:
    switch: Item = draft.item("switch", "switch")
    fans: dict[int, float] = {}
    psu = ""
    rows = 0
    for line in text.split("\n"):
        left, mark, value = line.partition("|") if "|" in line else line.partition(" : ")
        key, value = left.strip(), value.strip()
        if not rows and (head := HEAD.match(line)):
            switch["name"] = head["name"].strip()
            continue
        if not (mark and key):
            if line.strip() and not re.match(r"^[=\-\s]+$", line):
                if "name" in switch or rows:
                    draft.unread("line not understood", line)
                switch.setdefault("name", line.strip())
            continue
        rows += 1
        if found := FAN.match(key):
            rpm = number(value)
            if rpm is None:
                draft.unread(f"fan {found['n']}", value)
            else:
                fans[int(found["n"][:6])] = float(rpm)
        elif found := PSU.match(key):
            psu = f"psu{found['n']}"
            if value.lower() not in FINE:
                draft.finding("switch_psu", "warning", psu, line.strip())
        elif left.startswith(" ") and psu:
            if key in ("DC power", "fan status") and value.lower() not in FINE:
                draft.finding("switch_psu", "warning", psu, f"{psu} {key}: {value}")
        elif key == "fan status":
            psu = ""
            if value.lower() not in FINE:
                draft.finding("switch_fan", "warning", "fans", line.strip())
        else:
            psu = ""
            switch[re.sub(r"\W+", "_", key.lower()).strip("_")] = value
    if not rows:
        draft.items.remove(switch)
        return
    if guid := switch.get("guid"):
        switch["id"] = guid
    chip = switch.get("temperature_c", switch.get("cur_temp_c"))
    switch |= {"temperature_c": number(str(chip)), "fans_rpm": {str(n): rpm for n, rpm in fans.items()}}
    for parity in (0, 1):
        side = {n: rpm for n, rpm in fans.items() if n % 2 == parity}
        usual = median(side.values()) if len(side) >= 3 else 0
        for n, rpm in side.items():
            if rpm <= 0 or rpm < SLOW * usual:
                draft.finding("switch_fan_slow", "warning", f"fan{n}", f"fan#{n} {rpm:.0f} rpm, the others {usual:.0f}")
