"""Check program: is any GPU of this node used? Deep tests take all of a device, so they are refused then,
and where an NVIDIA GPU does not tell. Reads NVML; writes nothing."""

from __future__ import annotations

import os
from typing import Any

from aegis_agent.checks import nvml
from aegis_agent.checks.answer import Answer, run
from aegis_agent.checks.limits import limit
from aegis_agent.checks.settings import Settings


def examine(answer: Answer, settings: Settings, context: dict[str, Any]) -> str:
    survey = nvml.survey()
    busy = limit("gpu.utilization_busy").value
    for board in survey.boards:
        where = board.bus or f"GPU {board.index}"
        if board.processes:
            answer.finding("busy", "critical", where, f"used by {', '.join(f'pid {pid}' for pid in board.processes[:8])}")
        elif (board.utilization or 0) > busy:
            answer.finding("busy", "critical", where, f"{board.utilization} % used")
        elif board.processes is None and board.utilization is None:
            answer.unread(f"{where}: whether it is used")
    if (survey.missing or survey.failed) and os.path.exists(settings.under("dev/nvidiactl")):
        answer.unread("whether a GPU is used: NVML cannot be asked")
    return "not applicable: NVML cannot be asked" if survey.missing or survey.failed else f"{len(survey.boards)} GPUs looked at"


if __name__ == "__main__":
    run("busy", examine)
