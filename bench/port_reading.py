"""Reading the ports of one node: CPU per port and poll, beside prometheus-node-exporter's infiniband collector, on the same false sysfs in one run.

python bench/port_reading.py [--ports 8] [--polls 200]

The exporter (Debian package prometheus-node-exporter) is started on loopback. Poll by poll each takes its turn, so that all meet the same other load
of the machine: ours with all counters, ours on a copy of the tree without `hw_counters` (the exporter reads `counters` only), the exporter.
Its CPU is that of its process over all scrapes, the text of a scrape included as the encoded message is in ours. JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import nullcontext
from pathlib import Path

from aegis_agent.daemon.ports import Ports, PortSettings, message
from aegis_parsers.ib import counters
from aegis_proto.messages import encode

EXPORTER = "prometheus-node-exporter"
FACTS = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand", "lid": "0x4"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", type=int, default=8)
    parser.add_argument("--polls", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aegis-bench-") as folder:
        whole, classic = Path(folder) / "class/infiniband", Path(folder) / "few/infiniband"
        files = tree(whole, given.ports)
        tree(classic, given.ports, hardware=False)
        runners = [Ours("aegis, all counters", whole), Ours("aegis, counters only", classic)]
        path = shutil.which(EXPORTER)
        with Theirs(path, Path(folder)) if path is not None else nullcontext() as exporter:
            for _ in range(given.polls):
                for runner in runners:
                    runner.poll()
                if exporter is not None:
                    exporter.poll()
            for one in (*runners, *([exporter] if exporter is not None else [])):
                row = {"who": one.name, "cpu_us_per_port": round(1e6 * one.cpu() / given.polls / given.ports, 1)}
                print(json.dumps({**row, **one.size(given.ports), "classic_files_per_port": files}), flush=True)
        if path is None:
            print(json.dumps({"who": EXPORTER, "missing": "apt install prometheus-node-exporter"}))
    return 0


def tree(root: Path, ports: int, *, hardware: bool = True) -> int:
    """A false /sys/class/infiniband; gives the number of classic counter files per port."""
    rows = sorted({row.name: row for row in counters.table().values()}.values())
    classic = [row.name for row in rows if row.perfquery and not row.name.startswith("qp1")]
    more = [row.name for row in rows if hardware and not row.perfquery]
    for n in range(ports):
        device = root / f"mlx5_{n}"
        port = device / "ports/1"
        texts = {f"counters/{name}": "123456" for name in classic} | {f"hw_counters/{name}": "7" for name in more} | FACTS
        texts |= {"gids/0": f"fe80:0000:0000:0000:0000:0000:0010:{n:04x}"}
        for name, text in texts.items():
            (port / name).parent.mkdir(parents=True, exist_ok=True)
            (port / name).write_text(text + "\n")
        for name, text in {"fw_ver": "28.41.1000", "board_id": "MT_0000000838", "hca_type": "MT4129"}.items():
            (device / name).write_text(text + "\n")
    return len(classic)


class Ours:
    """A node daemon's reader, and the message that it sends."""

    def __init__(self, name: str, root: Path) -> None:
        self.name, self._reader, self._used = name, Ports(PortSettings(root=str(root))), 0.0

    def poll(self) -> None:
        begun = time.process_time()
        self._made = message("boot", 0, self._reader.read())
        self._told = encode(self._made)
        self._used += time.process_time() - begun

    def cpu(self) -> float:
        return self._used

    def size(self, ports: int) -> dict[str, float]:
        assert len(self._made.ports) == ports
        return {"counters_per_port": len(self._made.names), "message_bytes": len(self._told)}


class Theirs:
    """The exporter's process, scraped."""

    name = EXPORTER

    def __init__(self, path: str, sysfs: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        flags = [f"--path.sysfs={sysfs}", "--collector.disable-defaults", "--collector.infiniband", f"--web.listen-address=127.0.0.1:{self._port}"]
        self._running = subprocess.Popen([path, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Theirs:
        deadline = time.monotonic() + 30
        while True:
            try:
                self.poll()
                break
            except OSError:
                if time.monotonic() > deadline or self._running.poll() is not None:
                    raise
                time.sleep(0.05)
        self._begun = cpu(self._running.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self._running.terminate()
        self._running.wait(10)

    def poll(self) -> None:
        self._text = scrape(self._port)

    def cpu(self) -> float:
        return cpu(self._running.pid) - self._begun

    def size(self, ports: int) -> dict[str, float]:
        lines = sum(line.startswith("node_infiniband_port_") for line in self._text.split("\n"))
        return {"counters_per_port": round(lines / ports, 1), "message_bytes": len(self._text)}


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
