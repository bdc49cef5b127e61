"""The kernel log (and journal lines of network services): Xid, SXid, GPUs that left the bus, and the kernel rules of causes/patterns.toml.

A line may carry any stamp; a message about a GPU off the bus may stretch over three lines. Equal findings are one. Xid 45 next to another Xid of the
same GPU is its cleanup. A server that answered again ("OK") is not "not responding".
"""

from __future__ import annotations

import re

from . import kernel
from .causes.classify import Line, classify_lines, load_rules
from .causes.context import NFS_AWAY, NFS_OK
from .schema import Draft

ADDRESS = re.compile(r"(?:PCI:|GPU )?\b(?P<pci>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)\b", re.IGNORECASE)
PORT = re.compile(r"\b(?P<port>ib\w+|mlx5_\d+|nvme\d+|(?:en|eth|bond)\w+|md\d+|dm-\d+|sd[a-z]+)\b")
STAMPED = re.compile(
    r"^(?:<\d+>|\[ *\d+\.\d+\]|\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\]|\w+ +:\w+ *:|[A-Z][a-z]{2} +\d+ [\d:]{8} \S+ |\d{4}-\d\d-\d\dT[\d:]+)"
)
DRIVER = re.compile(
    r"NVRM: |nvidia-nvswitch|SXid \(|mlx5_core |amdgpu |nvme nvme\d|EXT4-fs|XFS \(|\bkernel: |mlx5_\w+:\d+:|\b(?:lost|gained) carrier", re.IGNORECASE
)


CLOCK = re.compile(r"^(?:[A-Z][a-z]{2} +(?P<day>\d+)|\[\w{3} \w{3} +(?P<cday>\d+)|\d{4}-\d\d-(?P<iday>\d\d)T) ?(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)")
UPTIME = re.compile(r"^\[ *(?P<seconds>\d{1,12}\.\d+)\]")
MERGE_S = 10.0
"""Lost-carrier lines of one port this close are one event: a single loss may print five."""


def looks(text: str) -> bool:
    return any(STAMPED.match(line) or DRIVER.search(line) for line in text.split("\n")[:200])


def read(draft: Draft, text: str) -> None:
    lines = text.split("\n")
    named = {line.n - 1: line for line in classify_lines(lines)}
    known = 0
    others: dict[str, int] = {}
    carrier: dict[str, list[float | None]] = {}
    for n, line in enumerate(lines):
        known += bool(STAMPED.match(line) or DRIVER.search(line))
        if "Xid (" in line and (event := kernel.read_event(line)):
            if event.label == "xid_154" and event.source == "text":  # what is advised from now on: the latest counts
                draft.drop(event.label, event.pci)
                draft.items = [item for item in draft.items if item["id"] != f"{event.label} {event.pci}"]
            if not draft.has(event.label, event.pci):
                draft.item(
                    f"{event.label} {event.pci}",
                    event.kind,
                    code=event.code,
                    pci=event.pci,
                    pid=event.pid,
                    severity=event.severity,
                    action=event.action,
                    source=event.source,
                    hardware=event.cause == "gpu_hw",
                )
            draft.finding(event.label, event.severity, event.pci, line)
            if event.kind == "xid" and event.code != 45:
                others[event.pci] = event.code
        elif n in named and named[n].label == "gpu_fallen_off_bus":
            message = " ".join(lines[max(0, n - 2) : n + 1])
            where = ADDRESS.search(line) or ADDRESS.search(message)
            draft.finding("gpu_fallen_off_bus", "fatal", where["pci"] if where else "gpu", message if not ADDRESS.search(line) else line)
        elif match := NFS_OK.search(line):
            draft.drop("nfs_not_responding", match["server"])
        elif n in named:
            judge(draft, named[n], line, carrier)
    for port, times in carrier.items():
        draft.item(port, "carrier", lines=len(times), events=events(times))
    for pci in others:
        draft.drop("xid_45", pci)
    draft.item("log", "log", lines=sum(bool(line.strip()) for line in lines))
    if not known:
        draft.unread("no line of a kernel log was recognised")


def judge(draft: Draft, named: Line, line: str, carrier: dict[str, list[float | None]]) -> None:
    found = next((pattern for pattern in load_rules().patterns if pattern.label == named.label), None)
    if found is None or not found.severity:
        return
    server, where = NFS_AWAY.search(line), ADDRESS.search(kernel.strip_prefix(line))
    port = PORT.search(kernel.strip_prefix(line))
    item = (
        server["server"]
        if server
        else port["port"]
        if port and found.label.endswith("carrier")
        else where["pci"]
        if where
        else port["port"]
        if port
        else "node"
    )
    draft.finding(found.label, found.severity, item, line)
    if found.label.endswith("carrier"):
        carrier.setdefault(item, []).append(seconds(line))


def seconds(line: str) -> float | None:
    """A time that only differences are taken of: since boot, or within the month."""
    if match := UPTIME.match(line):
        return float(match["seconds"])
    if match := CLOCK.match(line):
        day = int((match["day"] or match["cday"] or match["iday"])[:2])
        return ((day * 24 + int(match["h"])) * 60 + int(match["m"])) * 60.0 + int(match["s"])
    return None


def events(times: list[float | None]) -> int:
    """How often it happened, lines within MERGE_S of the one before being the same; lines without a time are one event together."""
    known = sorted(time for time in times if time is not None)
    return sum(n == 0 or time - known[n - 1] > MERGE_S for n, time in enumerate(known)) if known else 1
