"""The process that asks NVML for the monitors: answers each line of its input with one, and ends with its input. Imports little: it stays.

An answer is {"gpus": [use, memory, power, temperature]}, each a list with one number per GPU (`gpus.Gpus`), or {"error": "..."}.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    handles: list[Any] = []
    while sys.stdin.readline():
        try:
            answer: dict[str, Any] = {"gpus": readings(handles)}
        except Exception as error:  # no library, a lost GPU: the check of GPUs says what
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def readings(handles: list[Any]) -> tuple[list[float], ...]:
    """`handles`: of the boards, filled the first time."""
    import pynvml

    if not handles:
        pynvml.nvmlInit()
        handles += [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    return (
        [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles],
        [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles],
        [pynvml.nvmlDeviceGetPowerUsage(handle) / 1000 for handle in handles],
        [pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) for handle in handles],
    )


if __name__ == "__main__":
    main()
