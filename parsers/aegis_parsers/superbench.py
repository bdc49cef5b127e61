"""SuperBench records, one JSON object per line: monitor samples ("metric:gpuindex") and results ("benchmark/metric:rank", return codes)."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

from . import jsontext
from .schema import Draft, Item

KEY = re.compile(r"^(?P<metric>.+?):(?P<index>\d{1,4})$")
MISSING_CODE = re.compile(r"(?:^|/)return_code$")


def looks(text: str) -> bool:
    return bool(re.search(r'^\s*\{[^\n]*"(?:gpu_\w+:\d+|[\w./:-]+/return_code(?::\d+)?|node|[\w.-]+/[\w./-]+(?::\d+)?)"\s*:', text))


def read(draft: Draft, text: str) -> None:
    for n, record in enumerate(jsontext.documents(draft, text)):
        if not isinstance(record, dict):
            draft.unread(f"record {n}: not an object")
            continue
        read_record(draft, n, record)


def read_record(draft: Draft, n: int, record: dict[str, Any]) -> None:
    node = str(record.get("node", ""))
    prefix = f"{node}/" if node else ""
    gpus: dict[str, Item] = {}
    general: Item = draft.item(f"{prefix}record{n}", "record", time=record.get("time"))
    for key, value in record.items():
        match = KEY.match(str(key))
        metric, index = (match["metric"], match["index"]) if match else (str(key), None)
        if MISSING_CODE.search(metric) and value not in (0, "0", 0.0):
            draft.finding("benchmark_failed", "warning", f"{prefix}{metric}", f"{key}: {value}")
        if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
            if value is None or isinstance(value, float):
                draft.unread(f"{prefix}{key} has no number")
            continue
        if index is None or not metric.startswith("gpu_"):
            if str(key) not in ("id", "kind"):
                general[str(key)] = value
            continue
        gpu = gpus.get(index) or gpus.setdefault(index, draft.item(f"{prefix}{index}", "gpu", time=record.get("time")))
        gpu[metric] = value
        if metric in ("gpu_uncorrected_ecc", "gpu_remap_failure") and value > 0:
            draft.finding(
                "ecc_uncorrected" if "ecc" in metric else "row_remap_failed",
                "warning" if "ecc" in metric else "fatal",
                f"{prefix}{index}",
                f"{key}: {value}",
            )
