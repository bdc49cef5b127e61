"""lspci -vvv: link width and speed of GPU and RDMA functions.

Bridges, idle devices and on-board Ethernet are downgraded on healthy hosts. A GPU lowers its speed when idle, never its width; an RDMA card lowers
neither. A device that answers all ones ("rev ff", header type 7f) has left the bus.
"""

from __future__ import annotations

import re

from .schema import Draft, Item

DEVICE = re.compile(r"^(?P<address>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<kind>[^:]+?)(?: \[[0-9a-f]{4}\])?: (?P<name>.*)$", re.I)
CAPABLE = re.compile(r"^\s+LnkCap:.*?Speed (?P<speed>[\d.]+)GT/s.*?Width x(?P<width>\d+)")
STATUS = re.compile(
    r"^\s+LnkSta:\s*Speed (?P<speed>[\d.]+|unknown)(?:GT/s)?(?: \((?P<speed_note>\w+)\))?,\s*Width x(?P<width>\d+)(?: \((?P<width_note>\w+)\))?"
)
DEAD = re.compile(r"\(rev ff\)|Unknown header type (?:7f|ff)")
GPU = re.compile(r"(?:3D|VGA compatible|Display) controller|Processing accelerators?|Co-processor", re.I)
GPU_VENDOR = re.compile(r"NVIDIA|AMD|Advanced Micro Devices|ATI\b|Huawei|MetaX|Cambricon|Device", re.I)
RDMA = re.compile(r"Mellanox|ConnectX|BlueField|BCM57[56]\d\d\d|BCM5760[08]|Pensando|Elastic Fabric|Intel.*E8[13]0", re.I)


def looks(text: str) -> bool:
    return bool(re.search(r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [^:\n]+: ", text, re.M | re.I))


def read(draft: Draft, text: str) -> None:
    device: Item | None = None
    for line in text.split("\n"):
        if match := DEVICE.match(line):
            judge(draft, device)
            device = draft.item(match["address"], "pci", type=match["kind"], name=match["name"])
            if DEAD.search(line):
                dead(draft, device, line)
        elif device is None:
            if line.strip():
                draft.unread("line before any device", line)
        elif DEAD.search(line):
            dead(draft, device, line)
        elif match := CAPABLE.match(line):
            device |= {"max_speed_gts": float(match["speed"]), "max_width": int(match["width"][:3])}
        elif match := STATUS.match(line):
            device |= {"speed_gts": None if match["speed"] == "unknown" else float(match["speed"]), "width": int(match["width"][:3])}
            device |= {"width_note": match["width_note"], "speed_note": match["speed_note"]}
        elif "<access denied>" in line and role(device):
            draft.unread(f"{device['id']}: its link may not be read", line)
        elif "LnkSta:" in line or "LnkCap:" in line:
            draft.unread(f"{device['id']}: link line", line)
    judge(draft, device)


def role(device: Item) -> str:
    kind, name = str(device["type"]), str(device["name"])
    if GPU.search(kind) and GPU_VENDOR.search(name) and "ASPEED" not in name and "Matrox" not in name:
        return "gpu"
    return "rdma" if "infiniband controller" in kind.lower() or ("controller" in kind.lower() and RDMA.search(name)) else ""


def dead(draft: Draft, device: Item, line: str) -> None:
    mine = role(device)
    draft.finding("gpu_fallen_off_bus" if mine == "gpu" else "pci_device_gone", "fatal" if mine else "warning", str(device["id"]), line)


def judge(draft: Draft, device: Item | None) -> None:
    if device is None or not (mine := role(device)):
        return
    item = str(device["id"])
    width, widest = device.get("width"), device.get("max_width")
    speed, fastest = device.get("speed_gts"), device.get("max_speed_gts")
    if width == 0:
        dead(draft, device, f"{item} {device['name']}: link width 0")
    elif isinstance(width, int) and (device.get("width_note") == "downgraded" or (isinstance(widest, int) and width < widest)):
        draft.finding("pcie_width", "warning", item, f"{device['name']}: x{width} of x{widest}")
    if mine == "rdma" and isinstance(speed, float) and (device.get("speed_note") == "downgraded" or (isinstance(fastest, float) and speed < fastest)):
        draft.finding("pcie_speed", "warning", item, f"{device['name']}: {speed} GT/s of {fastest} GT/s")
