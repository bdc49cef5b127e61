"""`nvidia-smi --query-gpu=... --format=csv`, with or without its header, and columns alone.

A GPU that is lost says so field by field while `nvidia-smi -L` may still list it. One bad field in a live row is a bad field.
"""

from __future__ import annotations

import re

from ..schema import Draft, bare_lines_of, number
from .messages import LOST, RESET, is_broken, is_no_value, read_message

NAME = re.compile(r"^[a-z_]+(?:\.[a-z0-9_]+)*(?: \[[^\]]+\])?$")
MARKER = re.compile(
    r"^\s*(?:\[(?:N/A|Not Supported|Unknown Error|GPU is lost|GPU requires reset|Insufficient Permissions)\]|N/A|ERR!)\s*$", re.IGNORECASE
)
NAMED = re.compile(r"GPU-[0-9a-f]{8}-|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d$")
"""A cell that only a GPU has: its UUID, or its address."""
LISTED = ("index", "name", "uuid", "gpu_uuid", "gpu_name", "pci.bus_id", "gpu_bus_id", "timestamp", "serial", "gpu_serial", "driver_version", "count")
YES = ("yes", "active", "1", "enabled")


def looks(text: str) -> bool:
    lines = [line for line in text.split("\n") if line.strip()][:20]
    if not lines:
        return False
    if all(MARKER.match(line) for line in lines):
        return True
    first = [cell.strip() for cell in lines[0].lstrip("# ").split(",")]
    return len(first) > 1 and all(NAME.match(cell) for cell in first) and any(c.split(".")[0].split(" ")[0] in KNOWN for c in first)


KNOWN = frozenset(
    (
        "index",
        "name",
        "uuid",
        "gpu_name",
        "gpu_uuid",
        "pci",
        "utilization",
        "temperature",
        "power",
        "memory",
        "clocks",
        "fan",
        "ecc",
        "pstate",
        "timestamp",
        "driver_version",
        "remapped_rows",
        "retired_pages",
        "clocks_throttle_reasons",
        "clocks_event_reasons",
        "pcie",
    )
)


def read(draft: Draft, text: str) -> None:
    header: list[str] = []
    row = 0
    for line in bare_lines_of(text):
        if not line:
            continue
        cells = [cell.strip() for cell in line.lstrip("# ").split(",")]
        if len(cells) > 1 and all(NAME.match(cell) for cell in cells) and any(c.split(".")[0].split(" ")[0] in KNOWN for c in cells):
            header = [cell.split(" ")[0] for cell in cells]
        elif line.startswith("#"):
            header = []
        elif read_message(draft, line):
            continue
        elif header and len(cells) != len(header):
            draft.unread(f"row of {len(cells)} cells under {len(header)} names", line)
        elif (
            not header
            and not all(is_no_value(cell) or number(cell) is not None or LOST.search(cell) or RESET.search(cell) for cell in cells)
            and (len(cells) < 3 or not any(number(cell) is not None or is_no_value(cell) or NAMED.match(cell) for cell in cells))
        ):
            draft.unread("line not understood", line)
        else:
            judge(draft, row, dict(zip(header or [f"column{n}" for n in range(len(cells))], cells, strict=True)), line)
            row += 1


def judge(draft: Draft, row: int, fields: dict[str, str], line: str) -> None:
    item = next(
        (fields[key] for key in ("pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid", "index") if key in fields and not is_no_value(fields[key])), str(row)
    )
    values = {
        key: None if is_no_value(value) else number(value) if key not in LISTED and number(value) is not None else value
        for key, value in fields.items()
    }
    draft.item(item, "gpu", **{("row" if key in ("id", "kind") else key): value for key, value in values.items()})
    if LOST.search(line):
        draft.finding("gpu_lost", "fatal", item, line)
        return
    if RESET.search(line):
        draft.finding("gpu_requires_reset", "critical", item, line)
        return
    measured = [value for key, value in fields.items() if key not in LISTED]
    broken = sum(is_broken(value) for value in measured)
    if broken >= 3 and 2 * broken > len(measured):
        draft.finding("gpu_unresponsive", "critical", item, line)
    for key, value in fields.items():
        count, low = number(value) or 0, value.lower()
        if "ecc.errors.uncorrected.volatile" in key and count > 0:
            draft.finding("ecc_uncorrected", "warning", item, f"{key}: {value}")
        elif key == "remapped_rows.failure" and low in YES:
            draft.finding("row_remap_failed", "fatal", item, f"{key}: {value}")
        elif key in ("remapped_rows.pending", "retired_pages.pending") and low in YES:
            draft.finding("row_remap_pending" if "rows" in key else "retired_pages_pending", "warning", item, f"{key}: {value}")
        elif re.match(r"clocks_(?:event|throttle)_reasons\.(?:hw_\w+|sw_thermal_slowdown)$", key) and low == "active":
            draft.finding("throttle_" + key.split(".")[1], "warning", item, f"{key}: {value}")
    width, widest = number(fields.get("pcie.link.width.current")), number(fields.get("pcie.link.width.max"))
    if width is not None and widest is not None and width < widest:
        draft.finding("pcie_width", "warning", item, f"PCIe x{width} of x{widest}")
