"""Live reading of /sys/class/infiniband, so that nothing one file does harms the rest.

Reads only; any driver. An excluded device is not opened at all. A file that cannot be read is None (unknown) and nothing else; a port whose counters
all fail is left alone for a while, longer each time (a port in switching mode answers EINVAL; one whose registers the driver may not read floods the
kernel log). Omni-Path adapters are listed as unsupported and not read.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

ROOT = "/sys/class/infiniband"
FOLDERS = ("counters", "hw_counters")
ONCE = ("state", "phys_state", "rate", "link_layer", "lid")
CARRIER = "carrier_down"
QUARANTINE_MOST = 64
"""Polls that a port is left alone at most."""
NOISE = re.compile(r"mlx5_core (?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): .*ACCESS_REG\(0x[0-9a-f]+\) op_mod\(0x1\) failed")


class PortReading(msgspec.Struct, frozen=True):
    """One port. `guid`: 16 hex digits. `counters` by name, None where unreadable; `note` says why a port was not read ("unsupported: Omni-Path",
    "left alone ..."). `load` changes when the driver was loaded anew, whose counters then start anew."""

    device: str
    port: int
    guid: str | None
    state: str | None
    phys_state: str | None
    gbps: float | None
    layer: str | None
    lid: int | None
    counters: dict[str, int | None]
    note: str = ""
    load: int = 0
    firmware: str = ""


class Reader:
    """Keeps which ports are left alone; everything else is read anew at each poll. `open_text` reads one file (for tests)."""

    def __init__(self, root: str | os.PathLike[str] = ROOT, exclude: Sequence[str] = (), open_text: Callable[[str], str] | None = None) -> None:
        self.root, self.exclude = os.fspath(root), tuple(exclude)
        self.read = open_text or read_file
        self._alone: dict[str, tuple[int, int]] = {}
        self._stopped: set[str] = set()
        self._firmware: dict[tuple[str, int], str] = {}

    def poll(self) -> list[PortReading]:
        """Every port of every device that is not excluded; [] where there is no InfiniBand."""
        return [port for device in self.devices() for port in self.ports(device)]

    def devices(self) -> list[str]:
        """Devices that are not excluded."""
        return [device for device in names(self.root) if not self._left_out(device)]

    def excluded(self) -> list[str]:
        """Devices that are there and are excluded; nothing of them is opened."""
        return [device for device in names(self.root) if self._left_out(device)]

    def _left_out(self, device: str) -> bool:
        return any(fnmatch.fnmatch(device, pattern) for pattern in self.exclude)

    def ports(self, device: str) -> list[PortReading]:
        """Every port of one device."""
        return [self.port(device, int(number)) for number in names(f"{self.root}/{device}/ports") if number.isascii() and number.isdigit()]

    def stop(self, pci: str) -> str | None:
        """Reads the device at this PCI address no more: its registers flood the kernel log (see `own_noise`). Gives its name."""
        for device in names(self.root):
            try:
                here = os.path.basename(os.readlink(f"{self.root}/{device}/device"))
            except OSError:
                continue
            if here == pci:
                self._stopped.add(device)
                return device
        return None

    def resume(self, pci: str) -> None:
        """Reads the device at this PCI address again."""
        for device in list(self._stopped):
            try:
                here = os.path.basename(os.readlink(f"{self.root}/{device}/device"))
            except OSError:
                here = pci
            if here == pci:
                self._stopped.discard(device)

    def port(self, device: str, number: int) -> PortReading:
        """One port, or why it was not read."""
        key = f"{device}/{number}"
        if device.startswith("hfi1"):
            return PortReading(device, number, None, None, None, None, "OmniPath", None, {}, "unsupported: Omni-Path")
        if device in self._stopped:
            return PortReading(device, number, None, None, None, None, None, None, {}, "left alone: reading it floods the kernel log")
        left, last = self._alone.get(key, (0, 0))
        if left > 0:
            self._alone[key] = (left - 1, last)
            return PortReading(device, number, None, None, None, None, None, None, {}, f"left alone for {left} more polls: its counters failed")
        folder = f"{self.root}/{device}/ports/{number}"
        facts = {name: self.text(f"{folder}/{name}")[0] for name in ONCE}
        counters: dict[str, int | None] = {}
        failed = 0
        for group in FOLDERS:
            for name in names(f"{folder}/{group}"):
                text, error = self.text(f"{folder}/{group}/{name}")
                counters[name] = int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 20 else None
                failed += error in (errno.EINVAL, errno.EIO)
        if (facts["link_layer"] or "").lower() == "ethernet":
            counters |= self.carrier(folder)
        note = ""
        if counters and failed == len(counters):
            again = min(max(2 * last, 1), QUARANTINE_MOST)
            self._alone[key] = (again, again)
            note = "every counter failed"
        elif key in self._alone:
            del self._alone[key]
        rate = re.match(r"(\d{1,6}(?:\.\d{1,6})?) Gb/sec", facts["rate"] or "", re.ASCII)
        load = load_of(f"{self.root}/{device}/ports")
        if (device, load) not in self._firmware:
            self._firmware[device, load] = self.text(f"{self.root}/{device}/fw_ver")[0] or ""
        return PortReading(
            device,
            number,
            port_guid(self.text(f"{folder}/gids/0")[0]),
            bare(facts["state"]),
            bare(facts["phys_state"]),
            float(rate[1]) if rate else None,
            facts["link_layer"],
            number_of(facts["lid"]),
            counters,
            note,
            load,
            self._firmware[device, load],
        )

    def carrier(self, folder: str) -> dict[str, int | None]:
        """How often the network interface of a RoCE port lost its carrier: what `link_downed` is to InfiniBand. {} where it has none."""
        netdev, _ = self.text(f"{folder}/gid_attrs/ndevs/0")
        if not netdev or "/" in netdev:
            return {}
        text, error = self.text(f"{os.path.dirname(self.root)}/net/{netdev}/carrier_down_count")
        return {} if error == errno.ENOENT else {CARRIER: number_of(text)}

    def text(self, path: str) -> tuple[str | None, int]:
        """The stripped text of a file, or None with the errno."""
        try:
            return self.read(path).strip(), 0
        except OSError as error:
            return None, error.errno or 0


class Noise:
    """Whose registers flood the kernel log because we read them. `heard` is told the log's new lines after each poll; it gives the PCI addresses to
    stop, and those to read again: where the lines go on without us they are another reader's, and stopping helps nobody."""

    POLLS = 3
    """Polls with such lines, in a row, that prove it."""

    def __init__(self) -> None:
        self._in_a_row: dict[str, int] = {}
        self._stopped: set[str] = set()
        self._others: set[str] = set()

    def heard(self, lines: Iterable[str]) -> tuple[list[str], list[str]]:
        """(to stop, to read again)."""
        told = {pci for line in lines if (pci := own_noise(line)) is not None} - self._others
        self._in_a_row = {pci: self._in_a_row.get(pci, 0) + 1 for pci in told}
        proved = {pci for pci, polls in self._in_a_row.items() if polls >= self.POLLS}
        stop, again = proved - self._stopped, proved & self._stopped
        for pci in proved:
            del self._in_a_row[pci]
        self._others |= again
        self._stopped = (self._stopped | stop) - again
        return sorted(stop), sorted(again)


def read_file(path: str) -> str:
    """A small file at once: sysfs gives a value in one read."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, 4096).decode("utf-8", "replace")
    finally:
        os.close(handle)


def load_of(folder: str) -> int:
    """The inode of a device's folder: sysfs gives a new one at each load of its driver. 0 when it is not there."""
    try:
        return os.stat(folder).st_ino
    except OSError:
        return 0


def own_noise(line: str) -> str | None:
    """The PCI address in a kernel line that reading counters itself provokes; such a line is no fault of the network."""
    match = NOISE.search(line)
    return match["pci"] if match else None


def names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def port_guid(gid: str | None) -> str | None:
    """The port's GUID out of its first GID ("fe80:0000:0000:0000:b83f:d203:0012:3456"); None where that is not made of one (RoCE, software ports)."""
    groups = (gid or "").split(":")
    if len(groups) != 8 or groups[0].lower() not in ("fe80", "fec0") or not any(group.strip("0") for group in groups[4:]):
        return None
    return "".join(group.zfill(4) for group in groups[4:]).lower()


def bare(text: str | None) -> str | None:
    """ "4: ACTIVE" -> "ACTIVE"."""
    return None if text is None else re.sub(r"^\d+:\s*", "", text)


def number_of(text: str | None) -> int | None:
    try:
        return int(text or "", 0)
    except ValueError:
        return None
