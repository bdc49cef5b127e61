"""Reading the ports of one node: CPU per port and poll, beside prometheus-node-exporter's infiniband collector, on the same false sysfs in one run.

python bench/port_reading.py [--ports 8] [--polls 200]

The exporter (Debian package prometheus-node-exporter) is started on loopback and scraped as often as ours polls; its CPU is that of its process
between the first and the last scrape. It reads `counters` only; ours reads `hw_counters` as well, and is also measured without them. JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from aegis_agent.daemon.ports import Ports, PortSettings, message
from aegis_parsers.ib import counters
from aegis_proto.messages import encode

EXPORTER = "prometheus-node-exporter"
FACTS = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand", "lid": "0x4"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", type=int, default=8)
    parser.add_argument("--polls", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aegis-bench-") as folder:
        root = Path(folder) / "class/infiniband"
        files = tree(root, given.ports)
        for name, hidden in (("aegis, all counters", False), ("aegis, counters only", True)):
            if hidden:
                for port in root.glob("*/ports/1/hw_counters"):
                    port.rename(port.with_name("hidden"))
            print(json.dumps({"who": name, **ours(root, given.polls, given.ports)}), flush=True)
        path = shutil.which(EXPORTER)
        if path is None:
            print(json.dumps({"who": EXPORTER, "missing": "apt install prometheus-node-exporter"}))
            return
        print(json.dumps({"who": EXPORTER, **theirs(path, Path(folder), given.polls, given.ports), "files_per_port": files}), flush=True)


def tree(root: Path, ports: int) -> int:
    """A false /sys/class/infiniband; gives the number of classic counter files per port."""
    rows = sorted({row.name: row for row in counters.table().values()}.values())
    classic = [row.name for row in rows if row.perfquery and not row.name.startswith("qp1")]
    hardware = [row.name for row in rows if not row.perfquery]
    for n in range(ports):
        device = root / f"mlx5_{n}"
        port = device / "ports/1"
        texts = {f"counters/{name}": "123456" for name in classic} | {f"hw_counters/{name}": "7" for name in hardware} | FACTS
        texts |= {"gids/0": f"fe80:0000:0000:0000:0000:0000:0010:{n:04x}"}
        for name, text in texts.items():
            (port / name).parent.mkdir(parents=True, exist_ok=True)
            (port / name).write_text(text + "\n")
        for name, text in {"fw_ver": "28.41.1000", "board_id": "MT_0000000838", "hca_type": "MT4129"}.items():
            (device / name).write_text(text + "\n")
    return len(classic)


def ours(root: Path, polls: int, ports: int) -> dict[str, float]:
    reader = Ports(PortSettings(root=str(root)))
    begun = time.process_time()
    for n in range(polls):
        made = message("boot", n, reader.read())
        told = encode(made)
        assert len(made.ports) == ports
    used = time.process_time() - begun
    return {"cpu_us_per_port": round(1e6 * used / polls / ports, 1), "counters_per_port": len(made.names), "message_bytes": len(told)}


def theirs(path: str, sysfs: Path, polls: int, ports: int) -> dict[str, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [path, f"--path.sysfs={sysfs}", "--collector.disable-defaults", "--collector.infiniband", f"--web.listen-address=127.0.0.1:{port}"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        text = ""
        deadline = time.monotonic() + 10
        while not text and time.monotonic() < deadline:
            try:
                text = scrape(port)
            except OSError:
                time.sleep(0.05)
        begun = cpu(running.pid)
        for _ in range(polls):
            scrape(port)
        used = cpu(running.pid) - begun
        lines = sum(line.startswith("node_infiniband_port_") for line in text.split("\n"))
        return {"cpu_us_per_port": round(1e6 * used / polls / ports, 1), "counters_per_port": round(lines / ports, 1)}
    finally:
        running.terminate()
        running.wait(10)


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
