"""Opt-in for trainings whose backend writes no flight record when asked (gloo): `import aegis_agent.flightwriter` in the training, one line.

Then a byte in the pipe of this rank makes it write its record, without stacks (0.3 ms; the first one with stacks takes seconds), as NCCL's watchdog
does. Imports nothing of Aegis; torch only when asked. Never raises into the training.
"""

from __future__ import annotations

import os
import sys
import threading

PIPE = os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
DUMP = os.environ.get("TORCH_FR_DUMP_TEMP_FILE", "") or os.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "")
RANK = os.environ.get("RANK", "0")


def write(path: str) -> None:
    """The record of this process into `path`, whole or not at all."""
    from importlib import import_module

    data = import_module("torch._C._distributed_c10d")._dump_fr_trace(includeCollectives=True, includeStackTraces=False, onlyActive=False)
    partial = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{os.getpid()}"
    with open(partial, "wb") as file:
        file.write(data)
    os.replace(partial, path)


def _listen(pipe: str, path: str) -> None:
    try:
        if not os.path.exists(pipe):
            os.mkfifo(pipe, 0o600)
        fd = os.open(pipe, os.O_RDWR)  # both ends: it never ends when a writer goes
        while os.read(fd, 4096):
            write(path)
    except Exception as error:
        sys.stderr.write(f"aegis flightwriter: no flight records of rank {RANK}: {error}\n")


if PIPE and DUMP:
    threading.Thread(target=_listen, args=(f"{PIPE}{RANK}.pipe", f"{DUMP}{RANK}"), name="aegis-flightwriter", daemon=True).start()
