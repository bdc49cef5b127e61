"""nccl-tests tables (all_reduce_perf and its family): a row per size, out of place and in place.

NCCL's own lines are mixed into the table. "N/A" and "0 OK" are fine. The average is over all sizes and says little: bandwidth is given per size.
"""

from __future__ import annotations

import re

from .schema import Draft, Value, lines_of

ROW = re.compile(r"^\s*(?P<size>\d+)\s+(?P<count>\d+)\s+(?P<type>[a-z]\w*)\s+(?P<rest>\S.*)$")
BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(?P<count>\d+)\s+(?P<verdict>OK|FAILED)$")
AVERAGE = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*(?P<gbps>[\d.]+)")
RANK = re.compile(
    r"^#\s+Rank\s+(?P<rank>\d+).*?(?:Pid\s+(?P<pid>\d+))? on\s+(?P<host>\S+)\s+device\s+(?P<device>\d+)\s+\[(?P<bus>[^\]]*)\]\s*(?P<name>.*)$"
)
FAILURE = re.compile(
    r"Test (?:NCCL|CUDA|COMMON) failure|Test failure|unhandled (?:system|cuda) error|ncclInternalError|ncclSystemError|ncclRemoteError|Cuda failure"
)
HEADER = re.compile(r"^#\s+size\s+count\s+type\s+(?P<names>.*)$")
SINGLE, DOUBLE = 4, 8
"""Cells after type, redop and root: time, algbw, busbw and #wrong, once or twice; the header says which."""


def looks(text: str) -> bool:
    return bool(re.search(r"^#\s+size\s+count\s+type\b|^# Avg bus bandwidth|^#\s*nThread \d+ nGpus|^# Out of bounds values", text, re.M))


def read(draft: Draft, text: str) -> None:
    rows = 0
    before, cells = 0, DOUBLE
    for line in lines_of(text):
        if match := ROW.match(line):
            rows += add_row(draft, match["size"], match["type"], match["rest"].split(), (before, cells))
        elif match := HEADER.match(line):
            names = match["names"].split()
            before, cells = names.index("time") if "time" in names else 0, SINGLE * max(1, names.count("busbw"))
        elif match := BOUNDS.match(line):
            if match["verdict"] == "FAILED":
                draft.finding("nccl_wrong_data", "critical", "all", line)
        elif match := AVERAGE.match(line):
            draft.item("average", "average", busbw_gbps=to_float(match["gbps"]))
        elif match := RANK.match(line):
            draft.item(
                f"rank{match['rank']}", "rank", host=match["host"], device=int(match["device"][:6]), bus=match["bus"], name=match["name"] or None
            )
        elif FAILURE.search(line):
            draft.finding("nccl_test_failed", "critical", "all", line)
    if not rows:
        draft.unread("no row of results")


def add_row(draft: Draft, size: str, type: str, words: list[str], shape: tuple[int, int]) -> int:
    """1 when the row was read; `shape`: words before the time (redop, root), and cells from there on."""
    before, cells = shape
    if not before:  # no header came: redop is a word, root an integer, where the test has them
        before = max(0, len(words) - cells)
    words = words[before:]
    if len(words) != cells:
        draft.unread(f"row of {size} bytes not understood", " ".join(words))
        return 0
    values: dict[str, Value] = {"type": type}
    for name, part in zip(("out", "in"), (words[:SINGLE], words[SINGLE:]), strict=True):
        if not part:
            continue
        time, algbw, busbw = (to_float(cell) for cell in part[:3])
        if None in (time, algbw, busbw) or (part[3] != "N/A" and to_float(part[3]) is None):
            draft.unread(f"row of {size} bytes not understood", " ".join(words))
            return 0
        values |= {f"{name}_time_us": time, f"{name}_algbw_gbps": algbw, f"{name}_busbw_gbps": busbw, f"{name}_wrong": part[3]}
        if (wrong := to_float(part[3])) is not None and wrong > 1e-3:
            draft.finding("nccl_wrong_data", "critical", size, f"{size} bytes: {part[3]} wrong")
    draft.item(size, "size", bytes=int(size[:20]), **values)
    return 1


def to_float(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?\d{1,20}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?", text) else None
