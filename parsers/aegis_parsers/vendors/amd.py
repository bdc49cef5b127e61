"""amd-smi (static, metric, list; text or JSON) and rocm-smi (table, lists or JSON).

N/A and DISABLED are normal. A JSON call that prints only a warning has given no data: unknown.
"""

from __future__ import annotations

import re
from typing import Any

from .. import jsontext
from ..schema import Draft, Item, number

GPU = re.compile(r"^(?:GPU: |GPU\[)(?P<gpu>\d+)\]?\s*$")
FIELD = re.compile(r"^(?P<indent>\s*)(?P<key>[A-Za-z][\w /.()-]*?):(?:\s+(?P<value>.*?))?\s*$")
KEPT = ("MARKET_NAME", "BDF", "UUID", "VBIOS", "VERSION", "TARGET_GRAPHICS_VERSION", "OAM_ID")
UNCORRECTED = re.compile(r"uncorrect\w*(?:_count)?|deferred_count", re.IGNORECASE)
YES = ("yes", "true", "enabled", "1")
HEADER = re.compile(r"^(?:Device|GPU)\s+(?:Node\s+|Temp)")
ROW = re.compile(r"^(?P<gpu>\d+)\s+\S+.*(?:\d+(?:\.\d+)?°?[CW%]|N/A)")
LISTED = re.compile(r"^GPU\[(?P<gpu>\d+)\]\s*:\s*(?P<key>[^:]+):\s*(?P<value>.*)$")
FAILED = re.compile(r"not (?:respond|found)|unable to|lost from bus|failed", re.IGNORECASE)
FURNITURE = re.compile(r"^\s*$|^=+|^-+$|^\s*\(.*\)\s*$|^WARNING|^Concise Info|End of ROCm|ROCm System Management|^\s+\(")


def looks_amd_smi(text: str) -> bool:
    return bool(
        re.search(r"^GPU: \d+\s*$|^\s+(?:MARKET_NAME|BAD_PAGE_THRESHOLD\w*|TARGET_GRAPHICS_VERSION): ", text, re.M)
        or re.search(r'^\s*\[?\s*\{\s*"(?:gpu|gpu_data)"\s*:', text)
    )


def read_amd_smi(draft: Draft, text: str) -> None:
    if re.search(r"^\s*[\[{]", text):
        for document in jsontext.documents(draft, text):
            inner = document.get("gpu_data") if isinstance(document, dict) else document
            for entry in inner if isinstance(inner, list) else [document]:
                name = str(entry.get("gpu", "?")) if isinstance(entry, dict) else "?"
                judge(draft, name, {"/".join(leaf).upper(): str(value) for leaf, value in jsontext.walk(entry)})
        return
    gpu: str | None = None
    path: list[tuple[int, str]] = []
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        if match := GPU.match(line.rstrip()):
            if gpu is not None:
                judge(draft, gpu, fields)
            gpu, path, fields = match["gpu"], [], {}
        elif match := FIELD.match(line.rstrip()):
            indent = len(match["indent"])
            while path and path[-1][0] >= indent:
                path.pop()
            if match["value"]:
                fields["/".join([*(name for _, name in path), match["key"]])] = match["value"]
            else:
                path.append((indent, match["key"]))
        elif line.strip():
            draft.unread("line not understood", line)
    if gpu is not None or fields:
        judge(draft, gpu or "gpu", fields)


def judge(draft: Draft, gpu: str, fields: dict[str, str]) -> None:
    if not fields or set(fields) == {"GPU"}:
        draft.unread(f"GPU {gpu}: nothing in it")
    item: Item = draft.item(gpu, "gpu")
    for path, value in fields.items():
        key = path.rsplit("/", 1)[-1]
        if key in KEPT:
            item[key.lower()] = value
        count = number(value) or 0
        if key == "BAD_PAGE_THRESHOLD_EXCEEDED" and value.lower() in YES:
            draft.finding("bad_pages_limit", "critical", gpu, f"{path}: {value}")
        elif UNCORRECTED.search(key) and count > 0:
            draft.finding("ecc_uncorrected", "warning", gpu, f"{path}: {value}")
        elif re.search(r"THERMAL_VIOLATION_(?:STATUS|ACTIVITY)|(?:HOTSPOT|SOCKET|VR)_THERMAL\w*STATUS", key) and value.lower() in ("active", "true"):
            draft.finding("throttle_thermal", "warning", gpu, f"{path}: {value}")
    width, widest = (next((number(v) for k, v in fields.items() if k.endswith(name)), None) for name in ("PCIE/WIDTH", "MAX_PCIE_WIDTH"))
    if width and widest and width < widest:
        draft.finding("pcie_width", "warning", gpu, f"PCIe x{width} of x{widest}")


def looks_rocm_smi(text: str) -> bool:
    return bool(re.search(r'ROCm System Management Interface|^GPU\[\d+\]\s*:|"card\d+"\s*:|^WARNING: AMD GPU device', text, re.M))


def read_rocm_smi(draft: Draft, text: str) -> None:
    if re.search(r"^\s*\{", text, re.M):
        for document in jsontext.documents(draft, text):
            read_cards(draft, document)
        return
    header = False
    gpus: dict[str, Item] = {}
    for line in text.split("\n"):
        if match := LISTED.match(line.strip()):
            gpu = gpus.get(match["gpu"]) or gpus.setdefault(match["gpu"], draft.item(match["gpu"], "gpu", fields={}))
            fields = gpu["fields"]
            if isinstance(fields, dict):
                fields[match["key"].strip()] = match["value"]
            judge_rocm(draft, match["gpu"], match["key"], match["value"])
        elif HEADER.match(line):
            header = True
        elif header and (row := ROW.match(line)):
            draft.item(row["gpu"], "gpu", row=line.strip())
        elif FAILED.search(line):
            draft.finding("gpu_unreachable", "critical", "gpu", line)
        elif not FURNITURE.search(line):
            draft.unread("line not understood", line)
    if not draft.items:
        draft.unread("no GPU in the output")


def read_cards(draft: Draft, document: Any) -> None:
    if not isinstance(document, dict):
        draft.unread("not an object")
        return
    for card, fields in document.items():
        if isinstance(fields, dict) and (match := re.match(r"card(\d+)$", str(card))):
            draft.item(match[1], "gpu", fields={str(k): str(v) for k, v in fields.items()})
            for key, value in fields.items():
                judge_rocm(draft, match[1], str(key), str(value))
    if not draft.items:
        draft.unread("no card in the JSON")


def judge_rocm(draft: Draft, gpu: str, key: str, value: str) -> None:
    if UNCORRECTED.search(key) and (number(value) or 0) > 0:
        draft.finding("ecc_uncorrected", "warning", gpu, f"{key}: {value}")
    elif re.search(r"(?:pending|unreservable) pages?", key, re.I) and (number(value) or 0) > 0:
        draft.finding("bad_pages_pending", "warning", gpu, f"{key}: {value}")
