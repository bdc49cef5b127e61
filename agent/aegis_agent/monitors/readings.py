"""What processes and a machine use, read from /proc and /sys: cumulative counters and gauges. Reads only, a few files each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aegis_agent.procs import contents

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
MOST = 512
"""Processes of a worker that are read."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Cumulative: `cpu` in seconds, the rest in bytes. Gauges: `memory` in bytes, `memory_limit`."""

    at: float  # monotonic seconds
    cpu: float = 0.0
    memory: float = 0.0
    memory_limit: float = 0.0
    read: float = 0.0
    written: float = 0.0
    network: float = 0.0


def network_bytes(root: str = "/") -> float:
    """Sent and received over every interface but lo, and over RDMA ports (their counters are in units of four bytes)."""
    total = 0
    for line in contents(f"{root}proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(b":")
        fields = rest.split()
        if name.strip() != b"lo" and len(fields) >= 9:
            total += int(fields[0]) + int(fields[8])
    devices = Path(root, "sys/class/infiniband")
    try:
        ports = [port for device in devices.iterdir() for port in (device / "ports").iterdir()]
    except OSError:
        ports = []
    for port in ports:
        for counter in ("port_xmit_data", "port_rcv_data"):
            text = contents(f"{port}/counters/{counter}", 64).strip()
            total += 4 * int(text) if text.isdigit() else 0
    return float(total)


def memory_limit(root: str = "/") -> float:
    """Bytes that this machine, or the container, has."""
    total = 0.0
    for line in contents(f"{root}proc/meminfo").splitlines():
        if line.startswith(b"MemTotal:"):
            total = int(line.split()[1]) * 1024.0
    text = contents(f"{root}sys/fs/cgroup/memory.max", 64).strip()
    return min(total, float(text)) if text.isdigit() else total


def of_processes(pids: Iterable[int], root: str = "/") -> Counted:
    """The sum over `pids`; what cannot be read counts nothing."""
    ticks = pages = read = written = 0
    for pid, _ in zip(pids, range(MOST), strict=False):
        text = contents(f"{root}proc/{pid}/stat", 1024)
        fields = text[text.rfind(b")") + 2 :].split()
        if len(fields) > 21:
            ticks += int(fields[11]) + int(fields[12])
            pages += int(fields[21])
        for line in contents(f"{root}proc/{pid}/io", 1024).splitlines():
            name, _, value = line.partition(b": ")
            if name == b"read_bytes":
                read += int(value)
            elif name == b"write_bytes":
                written += int(value)
    return Counted(time.monotonic(), ticks / _TICK, pages * _PAGE, memory_limit(root), read, written, network_bytes(root))


def of_machine(root: str = "/") -> Counted:
    first = contents(f"{root}proc/stat", 4096).splitlines()[:1]
    fields = [int(word) for word in first[0].split()[1:9]] if first else [0] * 8
    busy = sum(fields) - fields[3] - fields[4]
    used = total = 0
    for line in contents(f"{root}proc/meminfo").splitlines():
        name, _, rest = line.partition(b":")
        if name == b"MemTotal":
            total = int(rest.split()[0]) * 1024
        elif name == b"MemAvailable":
            used = total - int(rest.split()[0]) * 1024
    read = written = 0
    for line in contents(f"{root}proc/diskstats").splitlines():
        words = line.split()
        if len(words) > 9 and os.path.isdir(f"{root}sys/block/{words[2].decode()}") and not words[2].startswith((b"loop", b"ram", b"dm-", b"md")):
            read += int(words[5]) * 512
            written += int(words[9]) * 512
    return Counted(time.monotonic(), busy / _TICK, used, total, read, written, network_bytes(root))
