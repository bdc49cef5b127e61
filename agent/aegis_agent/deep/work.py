"""What a deep test does on one device: patterns in memory, a computation whose result is known, copies that are looked at afterwards.

With torch on an accelerator or the CPU; without torch on the CPU by the standard library. Knows nothing of checks: gives numbers, raises Broken.
Loaded from its file under the user's python (3.8 or newer).
"""

from __future__ import annotations

import hashlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATTERNS = (0x00, 0xFF, 0xAA, 0x55)
"""Moving inversions: each bit is one and zero, and its neighbours are the other."""
CHUNK = 64 << 20
HOST_MOST = 256 << 20
"""Bytes of host memory that are tested at most: what a training leaves free is not ours."""
DEVICE_SHARE = 0.9
"""Of what is free on a device that nobody uses."""


class Broken(Exception):
    """The hardware gave back something else than what it was given. `code` is that of the finding."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def available() -> int:
    """Bytes of host memory that can be had."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 1 << 30


# --- the host, by the standard library --------------------------------------------------------------------------------------------------------


def host_memory(seconds: float) -> dict[str, float]:
    """Write, read back, invert, read back; over as much as is allowed, until the time is over (at least once)."""
    size = max(1 << 20, min(HOST_MOST, available() // 16))
    chunk = min(CHUNK, size)
    block = [bytearray(chunk) for _ in range(max(1, size // chunk))]
    until, passes = time.perf_counter() + seconds, 0
    while passes == 0 or time.perf_counter() < until:
        for pattern in PATTERNS:
            wanted = bytes((pattern,)) * chunk
            for part in block:
                part[:] = wanted
            for number, part in enumerate(block):
                if part != wanted:
                    at = next(i for i in range(chunk) if part[i] != pattern)
                    raise Broken("memory_pattern", f"host memory: byte {number * chunk + at} holds 0x{part[at]:02x}, 0x{pattern:02x} was written")
        passes += 1
    return {"bytes": float(len(block) * chunk), "passes": float(passes)}


def host_compute(seconds: float) -> dict[str, float]:
    """The same chain of digests again and again: one that differs is an error of the processor."""
    data = bytes(range(256)) * 4096
    first, rounds = chain(data), 0
    began = time.perf_counter()
    while rounds == 0 or time.perf_counter() < began + seconds:
        if chain(data) != first:
            raise Broken("compute_wrong", "host: two runs of one computation differ")
        rounds += 1
    return {"gb_per_s": rounds * 4 * len(data) / (time.perf_counter() - began) / 1e9}


def chain(data: bytes) -> bytes:
    last = b""
    for _ in range(4):
        last = hashlib.sha256(last + data).digest()
    return last


def host_copy(seconds: float) -> dict[str, float]:
    """GB/s of a copy in host memory, the best of all; the copy is looked at."""
    size = max(1 << 20, min(CHUNK, available() // 16))
    source, target = bytearray(os.urandom(1 << 16) * (size >> 16)), bytearray(size)
    best, until = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < until:
        began = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - began)
    if source != target:
        raise Broken("copy_wrong", "host: a copy differs from what was copied")
    return {"host.gb_per_s": size / best / 1e9}


# --- devices, by torch ------------------------------------------------------------------------------------------------------------------------


def device_memory(torch: Any, device: Any, seconds: float) -> dict[str, float]:
    """The same on a device, over most of what is free."""
    module = getattr(torch, device.type)
    free = module.mem_get_info(device)[0] if hasattr(module, "mem_get_info") else 1 << 30
    count = max(1, int(free * DEVICE_SHARE) // CHUNK)
    block = [torch.empty(CHUNK // 4, dtype=torch.int32, device=device) for _ in range(count)]
    until, passes = time.perf_counter() + seconds, 0
    while passes == 0 or time.perf_counter() < until:
        for pattern in PATTERNS:
            value = int.from_bytes(bytes((pattern,)) * 4, "little", signed=True)
            for part in block:
                part.fill_(value)
            for number, part in enumerate(block):
                wrong = int((part != value).sum())
                if wrong:
                    raise Broken("memory_pattern", f"{device}: {wrong} words of block {number} do not hold 0x{pattern:02x}")
        passes += 1
    return {"bytes": float(count * CHUNK), "passes": float(passes)}


def device_compute(torch: Any, device: Any, seconds: float) -> dict[str, float]:
    """One matrix product again and again: the same input on the same device gives the same bits."""
    side = 8192 if device.type != "cpu" else 512
    generator = torch.Generator().manual_seed(7)
    kind = torch.bfloat16 if device.type != "cpu" else torch.float32
    left = torch.randn(side, side, generator=generator).to(device, kind)
    right = torch.randn(side, side, generator=generator).to(device, kind)
    first = left @ right
    wait = finished(torch, device)
    wait()
    began, rounds = time.perf_counter(), 0
    while rounds == 0 or time.perf_counter() < began + seconds:
        for _ in range(8):
            product = left @ right
        wait()
        rounds += 8
        if not torch.equal(product, first):
            raise Broken("compute_wrong", f"{device}: two products of the same matrices differ")
    return {"tflops": 2 * side**3 * rounds / (time.perf_counter() - began) / 1e12}


def device_copy(torch: Any, device: Any, seconds: float, others: list[Any]) -> dict[str, float]:
    """GB/s to the device, from it, and to each other device; every copy is looked at."""
    size = CHUNK
    host = torch.randint(-128, 127, (size,), dtype=torch.int8).pin_memory()
    wait = finished(torch, device)
    out = {}
    here = torch.empty(size, dtype=torch.int8, device=device)
    out["h2d.gb_per_s"] = timed(lambda: here.copy_(host, non_blocking=True), wait, size, seconds)
    back = torch.empty_like(host).pin_memory()
    out["d2h.gb_per_s"] = timed(lambda: back.copy_(here, non_blocking=True), wait, size, seconds)
    if not torch.equal(host, back):
        raise Broken("copy_wrong", f"{device}: what came back over PCIe differs")
    for other in others:
        there = torch.empty(size, dtype=torch.int8, device=other)
        out[f"p2p{other.index}.gb_per_s"] = timed(lambda: there.copy_(here, non_blocking=True), wait, size, seconds)  # noqa: B023
        if not torch.equal(there.cpu(), host):
            raise Broken("copy_wrong", f"{device} to {other}: what arrived differs")
    return out


def finished(torch: Any, device: Any) -> Callable[[], Any]:
    """Waits for what was asked of this device, which need not be the present one."""
    if device.type == "cpu":
        return lambda: None
    return partial(getattr(torch, device.type).synchronize, device)


def timed(step: Callable[[], Any], wait: Callable[[], Any], size: int, seconds: float) -> float:
    best, until = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < until:
        began = time.perf_counter()
        step()
        wait()
        best = min(best, time.perf_counter() - began)
    return size / best / 1e9


# --- both -------------------------------------------------------------------------------------------------------------------------------------


def run(test: str, seconds: float, kind: str) -> dict[str, float]:
    """One of memory, compute, copy on every device of `kind` ("cpu": the host); numbers by name. Raises Broken, or what torch raises."""
    if kind == "cpu":
        return {"memory": host_memory, "compute": host_compute, "copy": host_copy}[test](seconds)
    import torch

    if kind != "cuda":
        __import__({"npu": "torch_npu", "musa": "torch_musa", "mlu": "torch_mlu"}[kind])
    count = getattr(torch, kind).device_count()
    if not count:
        raise Broken("no_gpu_found", "torch sees no device")
    devices = [torch.device(kind, index) for index in range(count)]
    out: dict[str, float] = {}
    for device in devices:
        each = max(0.2, seconds / count)
        if test == "memory":
            found = device_memory(torch, device, each)
        elif test == "compute":
            found = device_compute(torch, device, each)
        else:
            others = [other for other in devices if other != device]
            found = device_copy(torch, device, each / (2 + len(others)), others)
        out.update({f"{name}.{device.index}": value for name, value in found.items()})
    return out
