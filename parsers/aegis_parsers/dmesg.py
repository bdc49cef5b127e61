"""The kernel log (and journal lines of network services): Xid, SXid, GPUs that left the bus, and the kernel rules of causes/patterns.toml.

A line may carry any stamp; a message about a GPU off the bus may stretch over three lines. Equal findings are one. Xid 45 next to another Xid of the
same GPU is its cleanup. A server that answered again ("OK") is not "not responding".
"""

from __future__ import annotations

import re

from . import kernel
from .causes.classify import Rules, load_rules
from .schema import Draft

ADDRESS = re.compile(r"(?:PCI:|GPU )?\b(?P<pci>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)\b", re.IGNORECASE)
OFF_BUS = re.compile(r"fallen off the bus|device lost from bus", re.IGNORECASE)
NFS_OK = re.compile(r"nfs4?: server (?P<server>\S+) OK", re.IGNORECASE)
NFS_AWAY = re.compile(r"nfs4?: server (?P<server>\S+?),? not responding", re.IGNORECASE)
PORT = re.compile(r"\b(?P<port>ib\w+|mlx5_\d+|nvme\d+|(?:en|eth|bond)\w+|md\d+|dm-\d+|sd[a-z]+)\b")
STAMPED = re.compile(
    r"^(?:<\d+>|\[ *\d+\.\d+\]|\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\]|\w+ +:\w+ *:|[A-Z][a-z]{2} +\d+ [\d:]{8} \S+ |\d{4}-\d\d-\d\dT[\d:]+)"
)
DRIVER = re.compile(
    r"NVRM: |nvidia-nvswitch|SXid \(|mlx5_core |amdgpu |nvme nvme\d|EXT4-fs|XFS \(|\bkernel: |mlx5_\w+:\d+:|\b(?:lost|gained) carrier", re.IGNORECASE
)


def looks(text: str) -> bool:
    return any(STAMPED.match(line) or DRIVER.search(line) for line in text.split("\n")[:200])


def read(draft: Draft, text: str) -> None:
    rules = load_rules()
    lines = text.split("\n")
    known = 0
    others: dict[str, int] = {}
    for n, line in enumerate(lines):
        known += bool(STAMPED.match(line) or DRIVER.search(line))
        if event := kernel.read_event(line):
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
        elif OFF_BUS.search(line):
            message = " ".join(lines[max(0, n - 2) : n + 1])
            where = ADDRESS.search(line) or ADDRESS.search(message)
            draft.finding("gpu_fallen_off_bus", "fatal", where["pci"] if where else "gpu", message if not ADDRESS.search(line) else line)
        elif match := NFS_OK.search(line):
            draft.drop("nfs_not_responding", match["server"])
        else:
            judge(draft, rules, line)
    for pci in others:
        draft.drop("xid_45", pci)
    draft.item("log", "log", lines=sum(bool(line.strip()) for line in lines))
    if not known:
        draft.unread("no line of a kernel log was recognised")


def judge(draft: Draft, rules: Rules, line: str) -> None:
    found = rules.match(line)
    if found is None or found.scope != "kernel" or not found.severity:
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
