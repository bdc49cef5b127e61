"""The ports of a node: read at each poll, told in one message (`aegis.net.<n>.counter`).

Reads /sys/class/infiniband (`aegis_parsers.ib.live`) and, where it is installed, mlxlink; writes nothing and resets nothing. A device whose files do
not return costs its own reading: the others are told, it says why, and it is read again when the old reading has come back.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_parsers import parse
from aegis_parsers.ib.live import ROOT, Noise, PortReading, Reader
from aegis_parsers.schema import Item, Parsed
from aegis_proto import subjects
from aegis_proto.messages import encode
from aegis_proto.net import ABSENT, MOST_NAMES, MOST_PORTS, NAME, NodePorts, Optics, PortCounts

from aegis_agent.aside import aside
from aegis_agent.checks import kernellog
from aegis_agent.handover import now_ms

log = structlog.get_logger()

PATIENCE = 2.0
"""Seconds that one device may take to be read."""
OPTICS_EVERY = 300.0
OPTICS_PATIENCE = 20.0
MOST_SETTINGS = 32
HIGHEST = 2**63 - 1
"""A count above it is no number that others read."""


@dataclass(frozen=True, slots=True)
class PortSettings:
    """`every` 0: the ports are not read. `mlxlink`: the program, "" for none. `kernel_log`: searched for lines that our own reading provokes."""

    every: float = 10.0
    root: str = ROOT
    exclude: tuple[str, ...] = ()
    mlxlink: str = ""
    kernel_log: str = "/dev/kmsg"


class _Reading:
    """One reading of some devices, in a thread that may get stuck at one of them."""

    def __init__(self, reader: Reader, devices: Sequence[str]) -> None:
        self._reader, self._left = reader, deque(devices)
        self._found: list[PortReading] = []
        self._at = ""
        self._given_up = False
        self._lock = threading.Lock()
        self.done = threading.Event()

    def run(self) -> None:
        try:
            while device := self._next():
                ports = self._reader.ports(device)
                with self._lock:
                    if self._given_up:
                        return
                    self._found += ports
                    self._at = ""
        finally:
            self.done.set()

    def _next(self) -> str:
        with self._lock:
            self._at = "" if self._given_up or not self._left else self._left.popleft()
            return self._at

    @property
    def count(self) -> int:
        return len(self._found)

    def take(self) -> tuple[list[PortReading], str, list[str]]:
        """What was read, the device at which it is stuck, and those not begun; nothing more is read after this."""
        with self._lock:
            self._given_up = True
            return self._found, self._at, list(self._left)


class Ports:
    """`read` gives every port; a device that does not return is left out until it has."""

    def __init__(self, settings: PortSettings) -> None:
        self.reader = Reader(settings.root, settings.exclude)
        self._stuck: dict[str, _Reading] = {}
        self._noise = Noise()

    def listen(self, lines: Iterable[str]) -> None:
        """The kernel's log since the last poll: a device whose registers flood it when they are read is read no more."""
        stop, again = self._noise.heard(lines)
        for pci in stop:
            log.warning("reading this device floods the kernel log: left alone", pci=pci, device=self.reader.stop(pci))
        for pci in again:
            log.warning("lines of this device go on while it is left alone: another reader's; read again", pci=pci)
            self.reader.resume(pci)

    def read(self, patience: float = PATIENCE) -> list[PortReading]:
        """Waits at most twice `patience` seconds for a device that does not return, once: not at the next call."""
        self._stuck = {device: reading for device, reading in self._stuck.items() if not reading.done.is_set()}
        devices = self.reader.devices()
        found = [unreadable(device) for device in devices if device in self._stuck]
        left = [device for device in devices if device not in self._stuck]
        while left:
            reading = _Reading(self.reader, left)
            threading.Thread(target=reading.run, name="ports", daemon=True).start()
            seen = -1
            while not reading.done.wait(patience) and reading.count != seen:
                seen = reading.count
            ports, stuck, left = reading.take()
            found += ports
            if stuck:
                self._stuck[stuck] = reading
                found.append(unreadable(stuck))
        return sorted(found, key=lambda port: (port.device, port.port))


def unreadable(device: str) -> PortReading:
    return PortReading(device, 1, None, None, None, None, None, None, {}, "its files do not return")


class Mlxlink:
    """The optics of each port, one after the other, seldom, and beside the polls: the tool takes a second or more for one."""

    def __init__(self, program: str, every: float = OPTICS_EVERY) -> None:
        self._program, self._every = program, every
        self._due: dict[str, float] = {}
        self._ready: dict[str, Optics] = {}
        self._thread: threading.Thread | None = None

    def take(self, ports: Sequence[PortReading], now: float) -> dict[str, Optics]:
        """What has come since the last call, by "device/port"; begins to ask for the port that is due longest."""
        ready, self._ready = self._ready, {}
        keys = {f"{port.device}/{port.port}": port for port in ports if port.counters}
        waiting = min(((self._due.get(key, 0.0), key) for key in keys), default=(now + 1, ""))
        if self._program and waiting[0] <= now and (self._thread is None or not self._thread.is_alive()):
            self._due[waiting[1]] = now + self._every
            self._thread = threading.Thread(target=self._ask, args=(waiting[1], keys[waiting[1]]), name="mlxlink", daemon=True)
            self._thread.start()
        return ready

    def _ask(self, key: str, port: PortReading) -> None:
        command = [self._program, "-d", port.device, "-p", str(port.port), "-m", "-c", "-e", "--json"]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=OPTICS_PATIENCE, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("mlxlink", port=key, error=str(error))
            return
        found = optics(parse("mlxlink", ended.stdout), now_ms())
        if found is not None:
            self._ready = {**self._ready, key: found}


def optics(parsed: Parsed, at: int) -> Optics | None:
    """What the message carries of mlxlink's answer; None when there is no port in it."""
    item = next((item for item in parsed.items if item.get("kind") == "port"), None)
    if item is None:
        return None
    bins, lanes = item.get("fec_histogram"), item.get("raw_errors_per_lane")
    return Optics(
        at,
        number(item, "minutes_since_clear"),
        number(item, "line_rate_gbps"),
        number(item, "raw_ber"),
        number(item, "effective_ber"),
        number(item, "symbol_ber"),
        number(item, "effective_errors"),
        number(item, "symbol_errors"),
        tuple(int(lane) if isinstance(lane, int | float) else None for lane in lanes) if isinstance(lanes, list) else (),
        {str(n): count for n, count in bins.items() if isinstance(count, int)} if isinstance(bins, dict) else {},
        number(item, "temperature_c"),
        tuple(f"{finding.code}: {finding.evidence}" for finding in parsed.findings[:8]),
        last if isinstance(last := item.get("fec_last_bin"), int) else None,
    )


def number(item: Item, key: str) -> float | None:
    value = item.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def message(
    boot: str,
    at: int,
    ports: Sequence[PortReading],
    optics: dict[str, Optics] | None = None,
    *,
    booted: int = 0,
    every: float = 10.0,
    settings: dict[str, dict[str, str]] | None = None,
    excluded: Sequence[str] = (),
) -> NodePorts:
    """All ports of a node as they are told: those whose names can be told, of more than fit those of the devices that came first."""
    fit = sorted((port for port in ports if NAME.fullmatch(port.device) and port.port < 256), key=lambda port: (len(port.device), port.device))
    ports = sorted(fit[:MOST_PORTS], key=lambda port: (port.device, port.port))
    names = sorted({name for port in ports for name in port.counters if NAME.fullmatch(name)})[:MOST_NAMES]
    rows = tuple(
        PortCounts(
            port.device,
            port.port,
            port.guid or "",
            port.state,
            port.gbps,
            port.layer or "",
            port.load,
            tuple(bounded(port.counters[name]) if name in port.counters else ABSENT for name in names) if port.counters else (),
            port.note,
            (optics or {}).get(f"{port.device}/{port.port}"),
            port.firmware,
        )
        for port in ports
    )
    return NodePorts(boot, at, tuple(names), rows, booted, every, settings or {}, tuple(excluded)[:MOST_PORTS])


class _Spec(msgspec.Struct):
    """What is read of a job's specification."""

    env: dict[str, str] = {}


def nccl(spec: bytes) -> dict[str, str]:
    """NCCL's settings in a job's environment, and nothing else of it."""
    try:
        env = msgspec.json.decode(spec, type=_Spec | None)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    found = {} if env is None else {name: value[:128] for name, value in sorted(env.env.items()) if name.startswith("NCCL_") and len(name) <= 64}
    return dict(list(found.items())[:MOST_SETTINGS])


def bounded(value: int | None) -> int | None:
    return value if value is None or value <= HIGHEST else None


def booted_ms() -> int:
    """When this machine started; 0 when /proc does not say."""
    try:
        for line in Path("/proc/stat").read_text().split("\n"):
            if line.startswith("btime "):
                return int(line.split()[1]) * 1000
    except (OSError, ValueError):
        pass
    return 0


class Telling:
    """Reads and tells, poll after poll; `run` until cancelled. While the bus is away nothing is read: a rate is taken over what was told."""

    def __init__(self, node: str, boot: str, settings: PortSettings, jobs: Callable[[], dict[str, dict[str, str]]] = dict) -> None:
        """`jobs`: NCCL's settings of the jobs that run here."""
        self._node, self._boot, self._settings, self._jobs = node, boot, settings, jobs
        self._ports, self._mlxlink = Ports(settings), Mlxlink(settings.mlxlink)
        self._booted = booted_ms()
        self._log = kernellog.Tail(settings.kernel_log if settings.every > 0 else "")
        self._refused = self._cut = False

    async def run(self, bus: Bus) -> None:
        loop = asyncio.get_running_loop()
        begun, polls = loop.time(), 0
        while self._settings.every > 0:
            if bus.connected:
                await self.poll(bus)
            polls = max(polls + 1, int((loop.time() - begun) / self._settings.every))
            await asyncio.sleep(max(0.0, begun + polls * self._settings.every - loop.time()))
        await loop.create_future()  # no part of a daemon ends by itself

    async def poll(self, bus: Bus) -> None:
        """Read and tell once; nothing where there are no ports."""
        made = await aside("port poll", self.read)
        if not made.ports:
            return
        try:
            await bus.publish(subjects.net_counter(self._node), encode(made), timeout=5.0)
            self._refused = False
        except BusError as error:
            if not self._refused:  # said once: it comes again at every poll
                log.warning("the ports of this node are not told", error=str(error))
            self._refused = True

    def read(self) -> NodePorts:
        """One poll. Blocks."""
        ports = self._ports.read()
        self._ports.listen(self._log.lines())
        found = self._mlxlink.take(ports, time.monotonic())
        left = self._ports.reader.excluded()
        made = message(self._boot, now_ms(), ports, found, booted=self._booted, every=self._settings.every, settings=self._jobs(), excluded=left)
        if len(made.ports) < len(ports) and not self._cut:
            log.warning("some ports of this node are not told", told=len(made.ports), there=len(ports))
        self._cut = len(made.ports) < len(ports)
        return made
