"""Check `runtime`: what the user's own python would train with, and the driver under it.

Told from files and libcuda: torch itself is not imported, so that it takes milliseconds beside the start of an interpreter.

Reads the package metadata of the user's interpreter in a process of its own, /proc/driver/nvidia/version; writes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from aegis_agent.checks import tool
from aegis_agent.checks.answer import Answer, run
from aegis_agent.checks.settings import Settings

SECONDS = 20.0
PROBE = r"""
import ctypes, importlib.util as u, json, os, re, sys
out = {"python": sys.version.split()[0]}
try:
    spec = u.find_spec("torch")
except Exception as error:
    spec, out["error"] = None, repr(error)
if spec is not None and spec.origin:
    try:
        text = open(os.path.join(os.path.dirname(spec.origin), "version.py"), errors="replace").read()
        for name, key in (("__version__", "torch"), ("cuda", "cuda"), ("hip", "hip")):
            found = re.search(r"^%s(?:\s*:[^=]*)?\s*=\s*['\"]([^'\"]+)" % name, text, re.M)
            if found:
                out[key] = found[1]
        if not os.path.isdir(os.path.join(os.path.dirname(spec.origin), "lib")):
            out["error"] = "torch has no lib folder"
    except OSError as error:
        out["error"] = str(error)
major = (out.get("cuda") or "").split(".")[0]
for key, name in (("nccl", "nvidia-nccl-cu"), ("cudnn", "nvidia-cudnn-cu")) if major else ():
    try:
        import importlib.metadata as m  # here: it takes longer to load than all the rest
        out[key] = m.version(name + major)
    except Exception:
        pass
try:
    lib = ctypes.CDLL("libcuda.so.1")
    n = ctypes.c_int()
    if lib.cuDriverGetVersion(ctypes.byref(n)) == 0:
        out["driver_cuda"] = "%d.%d" % (n.value // 1000, n.value % 1000 // 10)
    code = lib.cuInit(0)
    if code:
        out["cuinit"] = code
    elif lib.cuDeviceGetCount(ctypes.byref(n)) == 0:
        out["devices"] = n.value
        name = ctypes.create_string_buffer(256)
        if n.value and lib.cuDeviceGetName(name, 256, 0) == 0:
            out["name"] = name.value.decode("utf-8", "replace")
    for line in open("/proc/self/maps", errors="replace"):
        found = re.search(r"libcuda\.so\.(\d[\d.]+)$", line)
        if found:
            out["libcuda"] = found[1]
except OSError:
    pass
print(json.dumps(out))
"""
"""Runs under the user's interpreter: standard library only, any Python 3.8 or newer. Prints one line."""
NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE (cuda.h): a library without a GPU is no fault where none is expected."""
MISMATCH = 803
"""CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (cuda.h)."""


def ask(python: str, env: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """What the user's interpreter says, or why it says nothing. `env`: what the job sets beside the environment of the worker."""
    try:
        done = tool.ask([python, "-c", PROBE], SECONDS, {**os.environ, **env})
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {SECONDS:g} s"
    except OSError as error:
        return {}, error.strerror or str(error)
    for line in reversed(done.stdout.decode("utf-8", "replace").splitlines()):
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):  # what a user's own hooks print at its end is none
            return said, ""
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return {}, f"ended with {done.returncode}: {''.join(last) or 'no answer'}"


def kernel_driver(settings: Settings) -> str:
    """Version of the loaded kernel module, "" without one."""
    try:
        with open(settings.under("proc/driver/nvidia/version")) as file:
            match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)", file.read(4096))
    except OSError:
        return ""
    return match[1] if match else ""


def judge(answer: Answer, said: dict[str, Any], loaded: str, expected: int | None) -> None:
    """Versions against each other: pure."""
    if "error" in said:
        answer.finding("torch_broken", "critical", "torch", str(said["error"]))
    if loaded and (library := str(said.get("libcuda", ""))) and library != loaded and library.count(".") >= 1:
        # A compatibility package brings a newer libcuda on purpose (forward compatibility): cuInit decides then.
        answer.finding("driver_library_mismatch", "critical" if said.get("cuinit") else "warning", "driver", f"kernel {loaded}, library {library}")
    if said.get("cuinit") == MISMATCH:
        answer.finding("driver_library_mismatch", "critical", "driver", "cuInit: system driver and library do not match (803)")
    elif (code := said.get("cuinit")) and (code != NO_DEVICE or expected):
        answer.finding("cuda_unusable", "critical", "driver", f"cuInit gives {code}")
    cuda, driver = version(said.get("cuda")), version(said.get("driver_cuda"))
    if cuda and driver and cuda[0] > driver[0]:
        answer.finding("driver_too_old", "critical", "driver", f"torch is built for CUDA {said['cuda']}, the driver gives {said['driver_cuda']}")
    elif cuda and driver and cuda > driver:
        answer.note(f"CUDA {said['cuda']} on a driver for {said['driver_cuda']}: minor version compatibility")
    if cuda and expected and "driver_cuda" not in said:
        answer.finding("cuda_unusable", "critical", "driver", "torch is built for CUDA, no libcuda is here")
    if expected and (devices := said.get("devices")) is not None and devices != expected:
        answer.finding("device_count", "critical", "driver", f"CUDA sees {devices} of {expected} devices")


def version(text: object) -> tuple[int, ...]:
    parts = str(text or "").split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isascii() and part.isdigit() for part in parts) else ()


def examine(answer: Answer, settings: Settings, context: dict[str, Any]) -> str:
    python = context.get("python") or settings.python or shutil.which("python3") or shutil.which("python") or ""
    if not python:
        return "not applicable: no python in the PATH"
    said, why = ask(python, context.get("env") or {})
    if why:
        answer.finding("python_broken", "critical", python, why)
        return ""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") is not None
    judge(answer, said, kernel_driver(settings), None if hidden else settings.gpus)
    if "torch" not in said and "error" not in said:
        answer.note("no torch there")
    answer.values["devices"] = float(said.get("devices", 0))
    return f"{python}: " + " ".join(f"{key}={value}" for key, value in said.items() if key != "error")


if __name__ == "__main__":
    run("runtime", examine)
