"""The table of plain `nvidia-smi`.

A dead GPU may keep its row: everything ERR!, or name and temperature shown with power N/A and ERR! in fan and MIG. A sensor alone (fan, power,
temperature) that says ERR! in a row which still shows utilisation is a broken sensor, not a lost GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..schema import Draft, lines_of, number
from .messages import is_broken, is_no_value, read_markers, read_message

HEAD = re.compile(
    r"^\|\s*(?P<index>\d{1,3})\s+(?P<name>\S.*?)\s+\|\s*(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d"
    r"|ERR!|N/A)\s+(?P<display>\S+)?\s*\|\s*(?P<ecc>[^|]*?)\s*\|?\s*$"
)
BODY = re.compile(
    r"^\|\s*(?P<left>[^|]*?)\s*\|\s*(?P<memory>[^|]*?MiB\s*/[^|]*?|ERR!|N/A|ERR!\s*/\s*ERR!)\s*\|\s*(?P<util>\S+)\s+(?P<mode>[^|]*?)\s*\|?\s*$"
)
SENSORS = re.compile(r"^(?P<fan>\d+%|N/A|ERR!|\[?N/A\]?)\s+(?P<temp>-?\d+C|N/A|ERR!)\s+(?P<perf>P\d+|N/A|ERR!)\s+(?P<draw>\S+)\s*/\s*(?P<cap>\S+)$")
TAIL = re.compile(r"^\|\s*\|\s*\|\s*(?P<mig>[^|\s][^|]*?)\s*\|?\s*$")
VERSION = re.compile(r"NVIDIA-SMI\s+(?P<smi>[\d.]+).*?(?:Driver|KMD) Version:\s*(?P<driver>[\d.]+)")
PROCESS = re.compile(r"^\|\s*(?:\d+\s+)?(?:\S+\s+\S+\s+)?\d+\s+[CGM+]+\s+\S|No running processes found|PID\s+Type\s+Process", re.I)
FURNITURE = re.compile(
    r"^[\s|+=\-]*$|Persistence-M|(?:TCC/WDDM|Driver-Model)\s*\||Fan\s+Temp\s+Perf|MIG M\.|Processes|GPU\s+GI\s+CI"
    r"|^\|\s+ID\s+ID|GPU Memory|MIG devices|Compute M\.|^\w{3} \w{3} +\d+ |^\|\s*\|\s*\|\s*ECC\|\s*\|?$"
)

MIG = re.compile(
    r"^\|\s*(?P<gpu>\d{1,3})\s+(?P<gi>\d{1,3}|N/A)\s+(?P<ci>\d{1,3}|N/A)\s+(?P<dev>\d{1,3})\s*\|\s*(?P<memory>\d+MiB\s*/\s*\d+MiB)\s*\|"
    r"\s*(?P<sm>\d+)\s+(?P<ecc>\d+|N/A)\s*\|"
)
"""First line of a MIG device; the second, with the size of its BAR1, says nothing."""
MIG_BAR = re.compile(r"^\|\s*\|\s*\d+MiB\s*/\s*\d+MiB\s*\|\s*\|\s*\|?\s*$")

WIDTH = 400
"""Characters; no version prints a wider table."""


@dataclass
class Row:
    """The three lines of one GPU, as far as they came."""

    index: str = ""
    name: str = ""
    bus: str = ""
    ecc: str = ""
    cells: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    headless: bool = False


def looks(text: str) -> bool:
    return bool(
        re.search(
            r"^\|[^\n]*\bNVIDIA-SMI\b|^\|[^\n|]*\|[^\n|]*(?:\dMiB\s*/\s*\d+MiB"
            r"|ERR!)\s*\|\s*\S+\s+(?:Default|E\. ?Process|Exclusive|Prohibited|ERR!|N/A)",
            text,
            re.M,
        )
    )


def read(draft: Draft, text: str) -> None:
    row: Row | None = None
    for line in lines_of(text):
        if len(line) > WIDTH:
            draft.unread("line too wide for the table", line)
        elif MIG_BAR.match(line):
            continue
        elif match := MIG.match(line):
            item = f"{match['gpu']}/mig{match['dev']}"
            draft.item(item, "mig", memory=match["memory"], ecc_uncorrected=number(match["ecc"]))
            if errors := number(match["ecc"]):
                draft.finding("ecc_uncorrected", "warning", item, f"{errors} on MIG device {match['dev']} of GPU {match['gpu']}: {line}")
        elif match := HEAD.match(line):
            judge(draft, row)
            row = Row(match["index"], match["name"], match["bus"], match["ecc"], lines=[line])
        elif match := BODY.match(line):
            if row is None or "memory" in row.cells:
                judge(draft, row)
                row = Row(headless=True)
            row.lines.append(line)
            row.cells |= {"memory": match["memory"], "util": match["util"]}
            if sensors := SENSORS.match(match["left"]):
                row.cells |= sensors.groupdict()
            else:
                draft.unread("sensor cells not understood", line)
        elif row is not None and "memory" in row.cells and (match := TAIL.match(line)):
            row.lines.append(line)
            row.cells["mig"] = match["mig"]
            judge(draft, row)
            row = None
        elif match := VERSION.search(line):
            draft.item("driver", "driver", version=match["driver"], smi=match["smi"])
        elif read_message(draft, line) or PROCESS.search(line) or FURNITURE.search(line):
            continue
        elif not read_markers(draft, row.index if row else "gpu", line):
            draft.unread("line not understood", line)
    judge(draft, row)


def judge(draft: Draft, row: Row | None) -> None:
    if row is None:
        return
    cells = row.cells
    item = row.bus if row.bus and not is_no_value(row.bus) else row.index or "gpu"
    name, persistence = ([*row.name.rsplit(None, 1), ""])[:2] if row.name else ("", "")
    draft.item(
        item,
        "gpu",
        index=number(row.index or None),
        name=None if is_no_value(name) else name or None,
        persistence=persistence or None,
        temperature_c=number(cells.get("temp")),
        power_w=number(cells.get("draw")),
        util_percent=number(cells.get("util")),
        memory=cells.get("memory"),
        ecc_uncorrected=number(row.ecc or None),
        mig=cells.get("mig"),
    )
    evidence = " ".join(row.lines)
    if read_markers(draft, item, evidence):
        return
    broken = {key for key, value in {**cells, "name": name, "ecc": row.ecc, "bus": row.bus}.items() if value and is_broken(value.split("/")[0])}
    alive = number(cells.get("util")) is not None and number(cells.get("memory")) is not None
    if "name" in broken or ("temp" in broken and "memory" in broken):
        draft.finding("gpu_lost", "fatal", item, evidence)
    elif broken - {"fan", "temp", "draw", "cap"} or (broken - {"fan"} and not alive) or len(broken) >= 3:
        draft.finding("gpu_unresponsive", "critical", item, evidence)
    elif broken and not alive:
        draft.unread(f"GPU {item}: an error and no use of it", evidence)
    if "memory" not in cells and not row.headless:
        draft.unread(f"GPU {item}: its second line is missing")
    if (errors := number(row.ecc or None)) and errors > 0:
        draft.finding("ecc_uncorrected", "warning", item, evidence)
