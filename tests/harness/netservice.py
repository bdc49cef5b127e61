"""netmon as a real process, a false sysfs with ports, and nodes that tell of theirs with the rights of daemons."""

from __future__ import annotations

import time
from pathlib import Path

from aegis_agent.daemon.ports import Ports, PortSettings, message
from aegis_bus.connection import Bus
from aegis_proto import subjects
from aegis_proto.messages import encode

from harness.service import ServiceProcess


class Process(ServiceProcess):
    """netmon, judging often."""

    def __init__(self, url: str, folder: Path, replica: str = "net-1", creds: str = "", **env: str) -> None:
        super().__init__("aegis_netmon", url, folder, replica, creds, **{"AEGIS_NETMON_ROUND": "0.3", **env})


class Sysfs:
    """A false /sys/class/infiniband of one node; `set` changes files of a port."""

    def __init__(self, root: Path, guid: int, devices: int = 1) -> None:
        self.root = root
        for n in range(devices):
            self.set(f"mlx5_{n}", **PORT, **{"gids/0": f"fe80:0000:0000:0000:0000:0000:{guid + n >> 16:04x}:{guid + n & 0xFFFF:04x}"})

    def set(self, device: str, **files: str) -> None:
        for name, text in files.items():
            path = self.root / device / "ports/1" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}")
            partial.write_text(text + "\n")
            partial.rename(path)

    def count(self, device: str, **counts: int) -> None:
        self.set(device, **{f"{'hw_counters' if name in HARDWARE else 'counters'}/{name}": str(count) for name, count in counts.items()})


HARDWARE = {"packet_seq_err", "local_ack_timeout_err", "out_of_sequence"}
PORT = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "lid": "0x4",
    "counters/symbol_error": "0",
    "counters/link_downed": "0",
    "counters/port_rcv_errors": "0",
    "counters/port_xmit_data": "0",
    "counters/port_rcv_data": "0",
    "hw_counters/packet_seq_err": "0",
}


class Node:
    """Tells what its false sysfs says, as its daemon does."""

    def __init__(self, bus: Bus, node: str, sysfs: Sysfs, boot: str = "boot-1") -> None:
        self._bus, self.node, self.sysfs, self._boot = bus, node, sysfs, boot
        self._ports = Ports(PortSettings(root=str(sysfs.root)))
        self.settings: dict[str, dict[str, str]] = {}

    async def poll(self) -> None:
        made = message(self._boot, int(time.time() * 1000), self._ports.read(), every=10.0, settings=self.settings)
        await self._bus.publish(subjects.net_counter(self.node), encode(made), timeout=5.0)
