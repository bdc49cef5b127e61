"""`nvidia-smi -q`: an indented tree, one per GPU.

"Unknown Error" and N/A are normal in many places of a healthy machine; findings come only from fields that mean one. Correctable and already
remapped errors are no finding: the state of the remapping decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..schema import Draft, Severity, lines_of, number
from .messages import is_broken, read_markers, read_message

GPU = re.compile(r"^GPU\s+(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
KEPT = ("Product Name", "GPU UUID", "Serial Number", "VBIOS Version", "Performance State")
RECOVERY: dict[str, Severity] = {
    "gpu reset": "critical",
    "reset": "critical",
    "node reboot": "fatal",
    "reboot": "fatal",
    "drain p2p": "warning",
    "drain and reset": "critical",
}
UNWELL = ("unhealthy", "degraded", "limited capacity", "failure")
RETIRED_LIMIT = 60
"""Pages retired before a pre-A100 board is due for replacement (64 is the table's size)."""
MEASURED = ("Temperature", "ECC Errors", "Utilization", "FB Memory Usage", "Remapped Rows", "Retired Pages", "Power Readings", "GPU Power", "Clocks")
"""Sections of a whole listing, one of which every GPU has: without any, it was cut off."""
Fields = dict[str, str]


def looks(text: str) -> bool:
    return bool(
        re.search(
            r"=+NVSMI LOG=+|^Attached GPUs\s*:|^\s+(GPU (Current Temp|T\.Limit Temp"
            r"|Shutdown (T\.Limit )?Temp)|Reset Required|Remapping Failure Occurred)\s*:",
            text,
            re.M,
        )
    )


def read(draft: Draft, text: str) -> None:
    attached: int | float | None = None
    gpus = 0
    for bus, lines in blocks(text):
        fields, loose = tree(lines)
        if bus is None:
            attached = number(fields.get("Attached GPUs"))
            for line in loose:
                read_message(draft, line)
            if driver := fields.get("Driver Version"):
                draft.item("driver", "driver", version=driver, cuda=fields.get("CUDA Version"))
            if not any("/" in key or key.startswith("GPU ") for key in fields):
                for line in loose:
                    if line.strip() and "NVSMI LOG" not in line and not read_message(draft, line):
                        draft.unread("no value", line)
                continue
        gpus += bus is not None
        judge(draft, bus or "gpu", fields)
        for line in loose:
            if line.strip() and "NVSMI LOG" not in line and not read_message(draft, line) and not read_markers(draft, bus or "gpu", line):
                draft.unread(f"GPU {bus or '?'}: no value", line)
    if attached is not None and attached > gpus:
        draft.unread(f"says {attached} attached GPUs, lists {gpus}")


def blocks(text: str) -> Iterator[tuple[str | None, list[str]]]:
    bus: str | None = None
    lines: list[str] = []
    for line in lines_of(text):
        if match := GPU.match(line):
            yield bus, lines
            bus, lines = match["bus"], []
        else:
            lines.append(line)
    yield bus, lines


def tree(lines: list[str]) -> tuple[Fields, list[str]]:
    """Fields by their path ("ECC Errors/Volatile/Double Bit/Total"), and the lines that hold neither a value nor children."""
    fields: Fields = {}
    loose: list[str] = []
    path: list[tuple[int, str]] = []
    solid = [line for line in lines if line.strip()]
    for at, line in enumerate(solid):
        indent = len(line) - len(line.lstrip())
        while path and path[-1][0] >= indent:
            path.pop()
        key, colon, value = (part.strip() for part in line.partition(":"))
        if key and colon and value:
            fields["/".join([*(name for _, name in path), key])] = value
            continue
        path.append((indent, line.strip().rstrip(":").strip()))
        following = solid[at + 1] if at + 1 < len(solid) else ""
        if len(following) - len(following.lstrip()) <= indent:
            loose.append(line)
    return fields, loose


def judge(draft: Draft, item: str, fields: Fields) -> None:
    def say(code: str, severity: Severity, path: str) -> None:
        draft.finding(code, severity, item, f"{path}: {fields[path]}")

    draft.item(
        item,
        "gpu",
        **{key.lower().replace(" ", "_"): fields[key] for key in KEPT if key in fields},
        temperature_c=pick(fields, "GPU Current Temp"),
        temperature_margin_c=pick(fields, "GPU T.Limit Temp"),
        power_w=pick(fields, "Power Draw"),
        pcie_width=pick(fields, "Link Width/Current"),
        pcie_generation=pick(fields, "PCIe Generation/Current"),
    )
    broken = [path for path, value in fields.items() if is_broken(value) and not path.endswith("Host Max")]
    if len(broken) >= 3 and 2 * len(broken) > sum(number(value) is not None for value in fields.values()):
        draft.finding("gpu_unresponsive", "critical", item, ", ".join(broken))
    for path, value in fields.items():
        name, low = path.rsplit("/", 1)[-1], value.lower()
        count = number(value)
        if path.startswith("Processes/") or read_markers(draft, item, value):  # a process may be called anything
            continue
        if name in ("Reset Required", "Drain and Reset Recommended") and low == "yes":
            say("gpu_requires_reset", "critical" if name == "Reset Required" else "warning", path)
        elif name == "GPU Recovery Action" and low in RECOVERY:
            say("gpu_recovery_action", RECOVERY[low], path)
        elif "Volatile/" in path and count and ("Double Bit" in path or "Uncorrectable" in name):
            say("ecc_uncorrected", "warning", path)
        elif name == "SRAM Threshold Exceeded" and low == "yes":
            say("ecc_sram_threshold", "critical", path)
        elif path.startswith("Remapped Rows/") and name == "Pending" and low == "yes":
            say("row_remap_pending", "warning", path)
        elif name == "Remapping Failure Occurred" and low == "yes":
            say("row_remap_failed", "fatal", path)
        elif path.startswith("Retired Pages/") and low == "yes":
            say("retired_pages_pending", "warning", path)
        elif name in ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown") and low == "active":
            say("throttle_" + name.lower().replace(" ", "_"), "warning", path)
        elif path.startswith("Fabric/") and (low in UNWELL or (name == "Route Unhealthy" and low == "true")):
            say("fabric_unhealthy", "critical", path)
        elif path == "Fabric/State" and low in ("in progress", "not started"):
            say("fabric_not_ready", "warning", path)
    if "Product Name" in fields and not any(path.startswith(MEASURED) for path in fields):
        draft.unread(f"GPU {item}: nothing but its name and settings")
    judge_numbers(draft, item, fields)


def judge_numbers(draft: Draft, item: str, fields: Fields) -> None:
    retired = [pick(fields, f"Retired Pages/{kind} Bit ECC") or 0 for kind in ("Single", "Double")]
    if sum(retired) >= RETIRED_LIMIT:
        draft.finding("retired_pages_limit", "critical", item, f"{sum(retired)} retired pages")
    width, widest = pick(fields, "Link Width/Current"), pick(fields, "Link Width/Max")
    if width is not None and widest is not None and width < widest:
        draft.finding("pcie_width", "warning", item, f"PCIe x{width} of x{widest}")
    busy = (pick(fields, "Utilization/Gpu") or pick(fields, "Utilization/GPU") or 0) > 10 and fields.get("Performance State") == "P0"
    speed = pick(fields, "PCIe Generation/Current") or 0
    fastest = min((v for v in (pick(fields, f"PCIe Generation/{k}Max") for k in ("", "Device ", "Host ")) if v), default=0)
    if busy and 0 < speed < fastest:
        draft.finding("pcie_speed", "warning", item, f"PCIe generation {speed} of {fastest} under load")
    margin = pick(fields, "GPU T.Limit Temp")
    if margin is not None and margin <= 0:
        draft.finding(
            "gpu_hot", "critical" if margin <= (pick(fields, "GPU Shutdown T.Limit Temp") or -5) else "warning", item, f"{margin} C below the limit"
        )
    for part, limits in (("GPU", ("GPU Slowdown Temp", "GPU Shutdown Temp")), ("Memory", ("Memory Max Operating Temp",))):
        now = pick(fields, f"{part} Current Temp")
        reached = [limit for limit in limits if now is not None and (top := pick(fields, limit)) and now >= top]
        if reached:
            draft.finding("gpu_hot", "critical" if "GPU Shutdown Temp" in reached else "warning", item, f"{part} {now} C, {reached[-1]} reached")


def pick(fields: Fields, tail: str) -> int | float | None:
    """The number of the first field whose path ends so."""
    return next((number(value) for path, value in fields.items() if path == tail or path.endswith("/" + tail)), None)
