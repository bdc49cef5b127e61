"""`mx-smi`: two lines per GPU between bars. GPU-State is "Available" only when it is that word alone: "Not Available(...)" contains it."""

from __future__ import annotations

import re

from ..schema import Draft, Item, lines_of, number

HEAD = re.compile(
    r"^\|\s*(?P<index>\d{1,4})\s+(?P<name>[A-Za-z].*?)\s*\|\s*(?P<bus>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d"
    r"|N/?A)\s*\|\s*(?P<util>[^|]*?)\s*\|"
)
BODY = re.compile(
    r"^\|\s*(?P<temp>-?\d+C|N/?A|ERR!?)\s+(?P<draw>\S+)\s*/\s*(?P<cap>\S+)[^|]*\|\s*(?P<memory>[^|]*?)\s*\|\s*(?P<state>[^|]*?)\s*\|?\s*$"
)
BAD = re.compile(r"\bnot\b|unavail|\berr|fault|lost|fail|abnormal", re.IGNORECASE)
FURNITURE = re.compile(
    r"^\s*$|^[|+=\-\s]+$|GPU\s+NAME|Pwr:Usage/Cap|mx-smi|MX-SMI|System Management Interface|Usage\(MiB\)|Process|PID"
    r"|no process found|Attached GPUs|Timestamp|End of Log|Version|^\|\s*\d+\s+\d+\s+\S+",
    re.IGNORECASE,
)


def looks(text: str) -> bool:
    return bool(re.search(r"^\|\s*\d+\s+MetaX |^\|[^\n]*GPU-State|mx-smi\s+version", text, re.M | re.I))


def read(draft: Draft, text: str) -> None:
    gpu: Item | None = None
    for line in lines_of(text):
        if match := HEAD.match(line):
            unfinished(draft, gpu)
            gpu = draft.item(match["index"], "gpu", name=match["name"], bus=match["bus"], util_percent=number(match["util"]))
        elif match := BODY.match(line):
            if gpu is None:
                gpu = draft.item("gpu", "gpu")
            state = match["state"]
            gpu |= {"temperature_c": number(match["temp"]), "power_w": number(match["draw"]), "memory": match["memory"], "state": state}
            if state.lower() in ("", "n/a", "unknown"):
                draft.unread(f"GPU {gpu['id']}: no state", line)
            elif BAD.search(state):
                draft.finding("mx_gpu_not_available", "critical", str(gpu["id"]), line)
            elif state.lower() != "available":
                draft.unread(f"GPU {gpu['id']}: state not understood", line)
            gpu = None
        elif not FURNITURE.search(line):
            draft.unread("line not understood", line)
    unfinished(draft, gpu)


def unfinished(draft: Draft, gpu: Item | None) -> None:
    if gpu is not None:
        draft.unread(f"GPU {gpu['id']}: its second line is missing")
