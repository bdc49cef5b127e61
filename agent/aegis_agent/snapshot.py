"""`python -m aegis_agent.snapshot`: this machine as it is now, and what its kernel said in the last minutes, as one JSON object on stdout.

A program of its own, so that a driver or a file that hangs takes nobody along. Reads /proc, /sys, /dev/kmsg and nvidia-smi; writes nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from aegis_parsers.causes import classify_lines
from aegis_proto.messages import encode
from aegis_proto.snapshots import KernelLine, Snapshot

from aegis_agent.checks import kernellog

MINUTES = 15.0
MOST_LINES = 40
MOST_TEXT = 300
GPU_FIELDS = "index,pci.bus_id,temperature.gpu,utilization.gpu,power.draw,clocks_event_reasons.active,ecc.errors.uncorrected.volatile.total"
GPU_TIMEOUT = 6.0
MOST_GPUS, MOST_PORTS = 16, 32
COUNTERS = (
    "counters/link_downed",
    "counters/link_error_recovery",
    "counters/symbol_error",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "counters/local_link_integrity_errors",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/packet_seq_err",
    "hw_counters/out_of_sequence",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/np_cnp_sent",
)
"""What tells of a link: names and meaning in docs/netmon.md."""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def pressure(text: str) -> float | None:
    """avg10 of "some" in a file of /proc/pressure."""
    found = re.search(r"^some avg10=([\d.]+)", text, re.M)
    return float(found[1]) if found else None


def available(text: str) -> float:
    """Share of memory that is available, of /proc/meminfo; -1 where it does not say."""
    fields = {name: int(value) for name, value in re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", text, re.M)}
    return round(fields["MemAvailable"] / fields["MemTotal"], 3) if fields.get("MemTotal") and "MemAvailable" in fields else -1.0


def kernel(path: str, now: float) -> tuple[tuple[KernelLine, ...], str]:
    """(lines of the last MINUTES that say something, why there are none)."""
    log = kernellog.read(path)
    if log.why:
        return (), log.why
    recent = [(age, line) for line in log.lines if (age := kernellog.age(line)) is not None and age <= MINUTES * 60]
    found = classify_lines([line for _, line in recent], engine="re")  # few lines: the fast engine takes longer to get ready
    return tuple(
        KernelLine(round((now - recent[line.n - 1][0]) * 1000), line.text[:MOST_TEXT], line.label, line.cause) for line in found[-MOST_LINES:]
    ), ""


def gpus() -> tuple[tuple[str, ...], str]:
    """(one line per GPU, why there are none)."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), "" if not os.path.exists("/proc/driver/nvidia") else "GPUs: nvidia-smi is not there"
    try:
        done = subprocess.run([program, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader"], capture_output=True, timeout=GPU_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"GPUs: {error}"[:MOST_TEXT]
    lines = done.stdout.decode(errors="replace").splitlines()
    return tuple(line[:MOST_TEXT] for line in lines[:MOST_GPUS]), ""


def ports(root: Path) -> dict[str, dict[str, int]]:
    """Port -> its error counters that are not 0; what cannot be read is left out."""
    out: dict[str, dict[str, int]] = {}
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*"))[:MOST_PORTS]:
        found: dict[str, int] = {}
        for name in COUNTERS:
            text = _text(port / name).strip()
            if text.isdecimal() and int(text):
                found[name.rpartition("/")[2]] = int(text)
        state = _text(port / "state").strip()
        out[f"{port.parts[-3]}/{port.name}{'' if 'ACTIVE' in state or not state else f' {state}'}"] = found
    return out


def take(root: Path = Path("/")) -> Snapshot:
    """Everything, of the machine whose files lie below `root`."""
    now = time.time()
    lines, no_kernel = kernel(str(root / "dev/kmsg"), now)
    cards, no_gpus = gpus()
    load = _text(root / "proc/loadavg").split()
    uptime = _text(root / "proc/uptime").split()
    waits = {name: share for name in ("cpu", "io", "memory") if (share := pressure(_text(root / "proc/pressure" / name))) is not None}
    return Snapshot(
        round(now * 1000),
        float(uptime[0]) if uptime else 0.0,
        float(load[0]) if load else 0.0,
        os.cpu_count() or 0,
        available(_text(root / "proc/meminfo")),
        waits,
        lines,
        cards,
        ports(root),
        tuple(filter(None, (no_kernel, no_gpus))),
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(encode(take(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("/"))))
