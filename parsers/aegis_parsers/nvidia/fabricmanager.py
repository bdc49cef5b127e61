"""The log of NVIDIA's fabric manager: NVSwitch and NVLink errors, and the manager's own end.

"Nothing to do" is what a host without NVSwitch says: no fault.
"""

from __future__ import annotations

import re

from ..schema import Draft

LINE = re.compile(r"^\[(?P<time>[A-Z][a-z]{2} +\d+ \d{4} [\d:]+)\] \[(?P<level>\w+)\] \[tid \d+\] (?P<text>.*)$")
SWITCH = re.compile(
    r"detected (?P<part>NVSwitch|NVLink) (?P<grade>fatal"
    r"|non-fatal) error (?P<number>\d+).*?(?:pci bus id (?P<pci>[0-9A-Fa-f:.]+))?(?: physical id (?P<id>\d+))?(?: port (?P<port>\d+))?\s*$"
)
ABORT = re.compile(
    r"aborting fabric manager|don'?t match with any supported system topology"
    r"|fabric manager (?:failed|is exiting)|failed to (?:initialize|configure)",
    re.I,
)
NOTHING = re.compile(r"NV_WARN_NOTHING_TO_DO|WARNING Nothing to do", re.I)
LINK = re.compile(r"(?:NVLink|link) .*(?:training|failed|failure)", re.I)


def looks(text: str) -> bool:
    return bool(re.search(r"^\[[A-Z][a-z]{2} +\d+ \d{4} [\d:]+\] \[\w+\] \[tid \d+\]|aborting fabric manager|NV_WARN_NOTHING_TO_DO", text, re.M))


def read(draft: Draft, text: str) -> None:
    levels: dict[str, int] = {}
    for raw in text.split("\n"):
        line = raw.strip()
        if not line:
            continue
        match = LINE.match(line)
        level, body = (match["level"].upper(), match["text"]) if match else ("", line)
        levels[level or "PLAIN"] = levels.get(level or "PLAIN", 0) + 1
        if NOTHING.search(body):
            continue
        if event := SWITCH.search(body):
            item = event["pci"] or "nvswitch"
            if event["port"]:
                item += f"/port{event['port']}"
            fatal = event["grade"] == "fatal"
            draft.finding(f"{event['part'].lower()}_{'fatal' if fatal else 'nonfatal'}", "fatal" if fatal else "warning", item, line)
        elif ABORT.search(body):
            draft.finding("fabric_manager_stopped", "critical", "fabric-manager", line)
        elif level in ("ERROR", "CRITICAL", "FATAL"):
            draft.finding("nvlink_training" if LINK.search(body) else "fabric_manager_error", "warning", "fabric-manager", line)
        elif not match:
            draft.unread("line not understood", line)
    if levels:
        draft.item("log", "log", lines=dict(levels.items()))
