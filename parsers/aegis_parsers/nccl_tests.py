"""nccl-tests tables (all_reduce_perf and its family): a row per size, out of place and in place.

NCCL's own lines are mixed into the table. "N/A" and "0 OK" are fine. The average is over all sizes and says little: bandwidth is given per size.
"""

from __future__ import annotations

import re

from .schema import Draft, Value

ROW = re.compile(r"^\s*(?P<size>\d+)\s+(?P<count>\d+)\s+(?P<type>[a-z]\w*)\s+(?P<rest>\S.*)$")
BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(?P<count>\d+)\s+(?P<verdict>\w+)")
AVERAGE = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*(?P<gbps>[\d.]+)")
RANK = re.compile(
    r"^#\s+Rank\s+(?P<rank>\d+).*?(?:Pid\s+(?P<pid>\d+))? on\s+(?P<host>\S+)\s+device\s+(?P<device>\d+)\s+\[(?P<bus>[^\]]*)\]\s*(?P<name>.*)$"
)
FAILURE = re.compile(
    r"Test (?:NCCL|CUDA|COMMON) failure|Test failure|unhandled (?:system|cuda) error|ncclInternalError|ncclSystemError|ncclRemoteError|Cuda failure"
)
SINGLE, DOUBLE = 4, 8
"""Cells after type, redop and root: time, algbw, busbw and #wrong, once or twice."""


def looks(text: str) -> bool:
    return bool(re.search(r"^#\s+size\s+count\s+type\b|^# Avg bus bandwidth|^#\s*nThread \d+ nGpus|^# Out of bounds values", text, re.M))


def read(draft: Draft, text: str) -> None:
    rows = 0
    for line in text.split("\n"):
        if match := ROW.match(line):
            rows += add_row(draft, match["size"], match["type"], match["rest"].split(), line)
        elif match := BOUNDS.match(line):
            if match["verdict"] != "OK":
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


def add_row(draft: Draft, size: str, type: str, words: list[str], line: str) -> int:
    """1 when the row was read. Between type and the numbers stand redop (a word) and root (an integer), where the test has them."""
    if words and not re.match(r"^[\d.-]", words[0]) and words[0] != "N/A":
        words = words[1:]
    if len(words) in (SINGLE + 1, DOUBLE + 1):
        words = words[1:]
    if len(words) not in (SINGLE, DOUBLE):
        draft.unread("row not understood", line)
        return 0
    values: dict[str, Value] = {"type": type}
    for name, part in zip(("out", "in"), (words[:SINGLE], words[SINGLE:]), strict=True):
        if not part:
            continue
        time, algbw, busbw = (to_float(cell) for cell in part[:3])
        if busbw is None and part[2] != "N/A":
            draft.unread("row not understood", line)
            return 0
        values |= {f"{name}_time_us": time, f"{name}_algbw_gbps": algbw, f"{name}_busbw_gbps": busbw, f"{name}_wrong": part[3]}
        if (wrong := to_float(part[3])) is not None and wrong > 1e-3:
            draft.finding("nccl_wrong_data", "critical", size, line)
    draft.item(size, "size", bytes=int(size[:20]), **values)
    return 1


def to_float(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?\d{1,20}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?", text) else None
