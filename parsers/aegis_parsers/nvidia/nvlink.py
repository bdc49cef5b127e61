"""`nvidia-smi nvlink -s` (and `-e`), and `nvidia-smi -L`: links per GPU; a dead link prints <inactive>."""

from __future__ import annotations

import re
from collections import Counter

from ..schema import Draft, number
from .messages import read_markers, read_message

GPU = re.compile(r"^\s*GPU (?P<index>\d+):\s*(?P<name>.*?)\s*\(UUID:\s*(?P<uuid>[^)]*)\)?")
SPEED = re.compile(r"^\s+Link (?P<link>\d+):\s*(?P<speed>[\d.]+)\s*GB/s\s*$")
INACTIVE = re.compile(r"^\s+Link (?P<link>\d+):\s*<?in-?active>?\s*$", re.IGNORECASE)
ERRORS = re.compile(
    r"^\s+Link (?P<link>\d+):\s*(?P<what>[A-Za-z ]*(?:Error|Errors|CRC|Replay|Recovery)[A-Za-z ]*?)(?: Counter)?:\s*(?P<count>\d+)\s*$"
)
ALL_DOWN = re.compile(r"all links are in-?active", re.IGNORECASE)
ERROR_LIMIT = 5
"""Errors of one link before it is named (the limit that imbue-ai/cluster-health uses)."""


def looks(text: str) -> bool:
    return bool(re.search(r"^\s*GPU \d+: [^\n]*\(UUID: |^\s+Link \d+: (?:[\d.]+ GB/s|<inactive>)", text, re.M))


def read(draft: Draft, text: str) -> None:
    links: dict[str, dict[int, float | None]] = {}
    item = "gpu"
    for line in text.split("\n"):
        if match := GPU.match(line):
            item = match["index"]
            links[item] = {}
            draft.item(item, "gpu", name=match["name"], uuid=match["uuid"])
        elif match := SPEED.match(line):
            links.setdefault(item, {})[int(match["link"])] = float(match["speed"])
        elif match := INACTIVE.match(line):
            links.setdefault(item, {})[int(match["link"])] = None
        elif match := ERRORS.match(line):
            if (number(match["count"]) or 0) >= ERROR_LIMIT:
                draft.finding("nvlink_errors", "warning", f"{item}/link{match['link']}", line)
        elif ALL_DOWN.search(line):
            draft.finding("nvlink_inactive", "critical", item, line)
        elif line.strip() and not read_message(draft, line) and not read_markers(draft, item, line):
            draft.unread("line not understood", line)
    judge(draft, links)


def judge(draft: Draft, links: dict[str, dict[int, float | None]]) -> None:
    for item in draft.items:
        if item["kind"] == "gpu":
            mine = links.get(str(item["id"]), {})
            item["links"] = {str(n): speed for n, speed in mine.items()}
    normal = Counter(len(mine) for mine in links.values() if mine).most_common(1)
    speeds = Counter(speed for mine in links.values() for speed in mine.values() if speed).most_common(1)
    for gpu, mine in links.items():
        dead = [n for n, speed in mine.items() if speed is None]
        if dead:
            draft.finding("nvlink_inactive", "critical", gpu, f"GPU {gpu}: link {', '.join(map(str, dead))} inactive")
        slow = [n for n, speed in mine.items() if speed and speeds and speed < 0.95 * speeds[0][0]]
        if slow:
            draft.finding("nvlink_slow", "warning", gpu, f"GPU {gpu}: link {', '.join(map(str, slow))} below {speeds[0][0]} GB/s")
        if normal and len(links) > 2 and len(mine) < normal[0][0]:
            draft.unread(f"GPU {gpu}: lists {len(mine)} links, the others {normal[0][0]}")
