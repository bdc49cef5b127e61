"""Check `memory`: errors of the host's memory by controller (EDAC), machine checks and panics in the kernel log of this boot.

Reads sysfs and the kernel log; writes nothing.
"""

from __future__ import annotations

import os
import re
from typing import Any

from aegis_agent.checks import kernellog
from aegis_agent.checks.answer import Answer, run
from aegis_agent.checks.limits import limit
from aegis_agent.checks.settings import Settings

LABELS = ("machine_check", "kernel_panic")


def controllers(root: str) -> dict[str, tuple[int | None, int | None]]:
    """Corrected and uncorrected errors since boot, by memory controller."""
    try:
        names = sorted(entry for entry in os.listdir(root) if re.fullmatch(r"mc\d+", entry))
    except OSError:
        return {}
    return {entry: (number(f"{root}/{entry}/ce_count"), number(f"{root}/{entry}/ue_count")) for entry in names}


def number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read(64))
    except (OSError, ValueError):
        return None


def examine(answer: Answer, settings: Settings, context: dict[str, Any]) -> str:
    found = controllers(settings.under("sys/devices/system/edac/mc"))
    often = limit("memory.corrected")
    for entry, (corrected, uncorrected) in found.items():
        answer.draft.item(entry, "controller", corrected=corrected, uncorrected=uncorrected)
        if uncorrected:
            answer.finding("memory_uncorrected", "critical", entry, f"{uncorrected} uncorrected errors since boot")
        if corrected is not None and corrected > often.value:
            answer.finding("memory_corrected", often.severity, entry, f"{corrected} corrected errors since boot")
        if corrected is None or uncorrected is None:
            answer.unread(f"{entry}: counts cannot be read")
    log = kernellog.read(settings.kernel_log)
    if log.why:
        answer.note(log.why)
    if log.lines:
        from aegis_parsers import parse  # where there is something to read

        for finding in parse("dmesg", "\n".join(log.lines)).findings:
            if finding.code in LABELS:
                answer.take(finding)
    return f"{len(found)} memory controllers" if found else "no memory controller reports here (EDAC)"


if __name__ == "__main__":
    run("memory", examine)
