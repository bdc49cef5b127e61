"""`npu-smi info`: two lines per chip between bars. Widths differ by version, so cells are split at the bars and not by column.

Health is OK, Warning, Alarm, Critical or UNKNOWN. Two dies may share one NPU id: an item is one chip.
"""

from __future__ import annotations

import re

from ..schema import Draft, Item, Severity, lines_of, number

HEALTH: dict[str, Severity] = {
    "warning": "warning",
    "alarm": "critical",
    "critical": "critical",
    "offline": "critical",
    "fault": "critical",
    "abnormal": "critical",
}
ADDRESS = re.compile(r"^[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d$")
PAIR = re.compile(r"(\d+)\s*/\s*(\d+)")
FURNITURE = re.compile(
    r"^\s*$|^[+=\-|\s]+$|NPU\s+(?:Name|Chip)|Chip\s+|npu-smi\s|No running processes|Process (?:id|name)|^\|\s*\d+\s+\d+\s*\|\s*\d+\s*\|"
)


def looks(text: str) -> bool:
    return bool(re.search(r"^\|\s*NPU\s+(?:Name|Chip)|npu-smi [\dv]|^\|\s*\d+\s+(?:Ascend|[39]\d\d)\w*\s*\|\s*[A-Za-z]+\s*\|", text, re.M))


def read(draft: Draft, text: str) -> None:
    chip: Item | None = None
    for line in lines_of(text):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 3 and line.lstrip().startswith("|") and (ADDRESS.match(cells[1]) or (chip is not None and cells[1] in ("NA", "N/A", "-"))):
            second(draft, chip, cells, line)
            chip = None
        elif len(cells) >= 3 and re.match(r"^\d+\s+\S", cells[0]) and re.fullmatch(r"[A-Za-z_ ]{2,20}", cells[1]):
            unfinished(draft, chip)
            chip = first_line(draft, cells, line)
        elif not FURNITURE.search(line):
            draft.unread("line not understood", line)
    unfinished(draft, chip)


def unfinished(draft: Draft, chip: Item | None) -> None:
    if chip is not None:
        draft.unread(f"NPU {chip['id']}: its second line is missing")


def first_line(draft: Draft, cells: list[str], line: str) -> Item:
    npu, name = cells[0].split(None, 1)
    health = cells[1]
    numbers = cells[2].split()
    chip = draft.item(
        npu,
        "npu",
        npu=npu,
        name=name,
        health=health,
        power_w=number(numbers[0]) if numbers else None,
        temperature_c=number(numbers[1]) if len(numbers) > 1 else None,
    )
    chip["line"] = line
    return chip


def second(draft: Draft, chip: Item | None, cells: list[str], line: str) -> None:
    if chip is None:
        draft.unread("a second line without its first", line)
        return
    ids = cells[0].split()
    pairs = PAIR.findall(cells[2])
    text = str(chip.pop("line", ""))
    if ids:
        chip |= {"id": f"{chip['npu']}/{ids[0]}", "chip": ids[0], "phy_id": ids[1] if len(ids) > 1 else None}
    chip["bus"] = cells[1]
    chip["aicore_percent"] = number(cells[2].split()[0]) if cells[2].split() else None
    if pairs:
        chip |= {"hbm_used_mb": int(pairs[-1][0][:12]), "hbm_total_mb": int(pairs[-1][1][:12])}
    judge(draft, str(chip["id"]), str(chip["health"]), text)


def judge(draft: Draft, item: str, health: str, line: str) -> None:
    word = health.lower()
    if word in HEALTH:
        draft.finding(f"npu_health_{word}", HEALTH[word], item, line)
    elif word != "ok":
        draft.unread(f"NPU {item}: health {health}")
