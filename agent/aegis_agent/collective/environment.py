"""What a worker would train with, told from files (torch is not imported); and who differs. Pure but for the reading; standard library only."""

from __future__ import annotations

import os
import platform
import re
import sys

TUNING = re.compile(r"(NCCL|GLOO|HCCL|MCCL|CNCL|TORCH_NCCL|UCX|FI|CUDA_DEVICE_ORDER|CUDA_MODULE)_?\w*")
"""Variables that change how workers talk to each other."""
PER_WORKER = re.compile(r"(NCCL|GLOO|UCX|HCCL)_(SOCKET_IFNAME|IB_HCA|TOPO_FILE|DEBUG_FILE|NET_DEVICES|HOSTID|TOPO_DUMP_FILE|IF_IP)")
"""Of these, the ones that may differ on a healthy cluster."""
MUST_AGREE = ("python", "torch", "cuda", "hip", "nccl", "cudnn", "device", "devices", "driver")
"""Said to differ ("multiple versions"). Of python only major and minor are compared."""
MAY_DIFFER = ("kernel", "machine")
"""Said too, as a note."""
LONGEST = 120
ACCELERATORS: tuple[tuple[str, str, str, str], ...] = (
    ("/dev/nvidiactl", "", "cuda", "nccl"),
    ("/dev/kfd", "", "cuda", "nccl"),
    ("/dev/mxcd", "", "cuda", "nccl"),
    ("/dev/davinci_manager", "torch_npu", "npu", "hccl"),
    ("/dev/mtgpu.0", "torch_musa", "musa", "mccl"),
    ("/dev/cambricon_ctl", "torch_mlu", "mlu", "cncl"),
)
"""(device node of the driver, module beside torch, torch's name of the device, backend). MetaX shows itself as CUDA."""


def found(module: str) -> str:
    """Where a top-level module would be loaded from, "" when it is not there."""
    import importlib.util

    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return ""
    return spec.origin or "" if spec is not None else ""


def read(path: str, most: int = 4096) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read(most)
    except OSError:
        return ""


def torch_versions(origin: str) -> dict[str, str]:
    """Version of torch, and of the CUDA or HIP it is built for, from its `version.py`."""
    text = read(os.path.join(os.path.dirname(origin), "version.py"))
    out = {}
    for name, key in (("__version__", "torch"), ("cuda", "cuda"), ("hip", "hip")):
        match = re.search(rf"^{name}(?:\s*:[^=\n]*)?\s*=\s*['\"]([^'\"]+)", text, re.M)
        if match:
            out[key] = match.group(1)
    if out and "torch" not in out:
        out["torch"] = "unknown"
    return out


def packaged(name: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except Exception:
        return ""


def collect() -> dict[str, str]:
    """This worker, every value a short text; what is not there is left out."""
    said = {"python": platform.python_version(), "kernel": platform.release(), "machine": platform.machine()}
    origin = found("torch")
    if origin:
        said.update(torch_versions(origin) or {"torch": "unknown"})
    major = said.get("cuda", "").split(".")[0]
    if major:
        said.update({key: packaged(name + major) for key, name in (("nccl", "nvidia-nccl-cu"), ("cudnn", "nvidia-cudnn-cu"))})
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)", read("/proc/driver/nvidia/version"))
    if match:
        said["driver"] = match.group(1)
    said.update({name: value for name, value in sorted(os.environ.items())[:4096] if TUNING.fullmatch(name)})
    return {key[:LONGEST]: value[:LONGEST] for key, value in list(said.items())[:64] if value}


def backend_here(said: dict[str, str]) -> tuple[str, str]:
    """(torch's name of the device, backend) that this worker can offer."""
    for node, module, device, backend in ACCELERATORS:
        if not os.path.exists(node):
            continue
        if module and not found(module):
            continue
        if not module and not (said.get("cuda") or said.get("hip")):
            continue
        return device, backend
    return "cpu", "gloo"


def versions(told: dict[int, dict[str, str]]) -> dict[str, dict[str, list[int]]]:
    """What differs: key -> value -> workers. A value that is not there is "none"."""
    keys = {key for said in told.values() for key in said}
    out: dict[str, dict[str, list[int]]] = {}
    for key in sorted(keys):
        if PER_WORKER.fullmatch(key):
            continue
        by: dict[str, list[int]] = {}
        for index in sorted(told):
            value = told[index].get(key, "none")
            by.setdefault(".".join(value.split(".")[:2]) if key == "python" else value, []).append(index)
        if len(by) > 1:
            out[key] = by
    return out


def names(workers: list[int]) -> str:
    return ",".join(f"w{index}" for index in workers[:8]) + (f" and {len(workers) - 8} more" if len(workers) > 8 else "")


def sentence(differs: dict[str, dict[str, list[int]]]) -> str:
    """ "multiple versions: torch 2.1 on w0,w2; 2.3 on w1" """
    parts = []
    for key in sorted(differs, key=lambda name: (name in MAY_DIFFER, name)):
        ordered = sorted(differs[key].items(), key=lambda item: -len(item[1]))
        parts.append(key + " " + "; ".join(f"{value} on {names(workers)}" for value, workers in ordered[:4]))
    return "multiple versions: " + " | ".join(parts) if parts else ""


def odd_ones(differs: dict[str, dict[str, list[int]]]) -> dict[int, list[str]]:
    """Worker -> what it has and most do not. Nobody is odd where there is no most."""
    out: dict[int, list[str]] = {}
    for key, by in differs.items():
        most = max(len(workers) for workers in by.values())
        if key in MAY_DIFFER or sum(len(workers) == most for workers in by.values()) > 1:
            continue
        for value, workers in by.items():
            if len(workers) < most:
                for index in workers:
                    out.setdefault(index, []).append(f"{key} {value}")
    return out


def summary(said: dict[str, str]) -> str:
    shown: list[str] = [f"{key} {said[key]}" for key in MUST_AGREE if key in said]
    return ", ".join(shown) or sys.version.split()[0]
