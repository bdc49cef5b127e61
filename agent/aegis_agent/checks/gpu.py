"""Check `gpu`: every accelerator that should be here is, answers, and says that it is well. NVIDIA by NVML; others by what their tool prints.

No accelerator and none expected: not applicable. Expected and not there: a finding ("7 of 8 GPUs"). State beats event: where the state of the row
remapping can be read, an Xid that announced it decides nothing. Reads NVML, the vendors' tools, the kernel log of this boot; writes nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Any, cast

from aegis_parsers.ib.live import names
from aegis_parsers.schema import Severity

from aegis_agent.checks import kernellog, nvml, tool
from aegis_agent.checks.answer import Answer, run
from aegis_agent.checks.limits import limit
from aegis_agent.checks.settings import Settings

NODES = ("dev/nvidiactl", "dev/kfd", "dev/davinci_manager", "dev/mxcd", "dev/cambricon_ctl")
"""Device nodes of the vendors' drivers: one of them means that there is something to check."""
TOOLS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("amd-smi", ("amd-smi", "static", "--json"), "amd-smi"),
    ("rocm-smi", ("rocm-smi", "-a", "--json"), "rocm-smi"),
    ("npu-smi", ("npu-smi", "info"), "npu-smi"),
    ("mx-smi", ("mx-smi",), "mx-smi"),
    ("cnmon", ("cnmon",), "cnmon"),
)
"""(program, command, parser) of the other vendors."""
NVIDIA_SMI = ("nvidia-smi", "-q")
TOOL_SECONDS = 25.0
"""For one tool; below the check's 66 s, so that the tool is named."""
KINDS = ("gpu", "npu", "mlu", "card", "chip")
"""Kinds of items that the parsers count as one accelerator."""
REASONS: dict[int, tuple[str, Severity]] = {
    0x08: ("throttle_hw_slowdown", "warning"),
    0x20: ("throttle_sw_thermal_slowdown", "warning"),
    0x40: ("throttle_hw_thermal_slowdown", "warning"),
    0x80: ("throttle_hw_power_brake_slowdown", "warning"),
}
"""Bits of the clock reasons (nvml.h). Warnings: one reading proves nothing; gpud wants 6 of the last 10 minutes, Azure only logs it."""
REMAP_EVENTS = ("xid_63", "xid_64")


def judge_board(answer: Answer, board: nvml.Board) -> None:
    where = board.bus or f"GPU {board.index}"
    answer.draft.item(where, "gpu", index=board.index, name=board.name, uuid=board.uuid)
    if board.lost:
        answer.finding(board.lost[0], cast(Severity, board.lost[1]), where, board.lost[2])
    # Counts that only rise: what an epilog holds against its prolog (deep/compare.py).
    counts = {"ecc_uncorrected": board.uncorrected, "rows_remapped": board.remapped and board.remapped[1], "retired_pages": board.retired}
    answer.values.update({f"{name} {board.index}": float(count) for name, count in counts.items() if count is not None})
    for what in board.unread:
        answer.unread(f"{where} {what}")
    if board.hidden:
        answer.note(f"{where}: cannot be read: {', '.join(board.hidden)}")
    if board.remapped:
        _, uncorrectable, pending, failed = board.remapped
        if failed:
            answer.finding("row_remap_failed", "fatal", where, f"row remapping failed, {uncorrectable} rows remapped for uncorrectable errors")
        elif pending:
            answer.finding("row_remap_pending", "warning", where, "a row remap takes effect at the next reset")
    if board.uncorrected:
        # Judged by the state of the remapping where there is one (leptonai/gpud#108).
        grade: Severity = "warning" if board.remapped is not None else "critical"
        answer.finding("ecc_uncorrected", grade, where, f"{board.uncorrected} uncorrected errors since the driver was loaded")
    retired = limit("gpu.retired_pages")
    if board.retired is not None and board.retired >= retired.value:
        answer.finding("retired_pages_limit", retired.severity, where, f"{board.retired} retired pages")
    if board.retired_pending:
        answer.finding("retired_pages_pending", "warning", where, "a page waits for retirement at the next reset")
    for bit, (code, severity) in REASONS.items():
        if board.reasons and board.reasons & bit:
            answer.finding(code, severity, where, f"clock reasons 0x{board.reasons:x}")
    hot = limit("gpu.margin_celsius")
    margin = board.margin
    if margin is None and board.temperature is not None and board.slowdown_at:
        margin = board.slowdown_at - board.temperature
    if margin is not None:
        answer.values[f"margin_celsius {board.index}"] = float(margin)
        if margin <= hot.value:
            answer.finding("gpu_hot", hot.severity, where, f"{board.temperature} C, {margin} C below the limit")
    if board.width and board.width[0] < board.width[1]:
        answer.finding("pcie_width", "warning", where, f"PCIe x{board.width[0]} of x{board.width[1]}")
    busy = limit("gpu.utilization_busy")
    if board.generation and board.generation[0] < board.generation[1] and (board.utilization or 0) > busy.value:
        answer.finding("pcie_speed", busy.severity, where, f"PCIe generation {board.generation[0]} of {board.generation[1]} under load")
    if board.processes:
        stray = [pid for pid in board.processes if os.path.exists(f"/proc/{pid}")]
        named = f"processes {', '.join(map(str, stray[:8]))}" if stray else f"{len(board.processes)} processes that cannot be seen from here"
        answer.finding("stray_processes", "warning", where, f"{named} hold the GPU")


def slot(address: str) -> str:
    """ "00000000:3B:00.0" and "0000:3b:00" -> "3b:00"; domains are written in too many ways."""
    match = re.search(r"([0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?$", address.lower())
    return match[1] if match else ""


def judge_links(answer: Answer, boards: list[nvml.Board]) -> None:
    """Inactive NVLinks. One alone may be as it was built (a bridge over some of the links): it fails where a board of the same name has more."""
    most: dict[str, int] = {}
    for board in boards:
        most[board.name] = max(most.get(board.name, 0), sum(board.links.values()))
    for board in boards:
        dark = [link for link, active in board.links.items() if not active]
        if dark and most[board.name]:
            severity: Severity = "critical" if len(board.links) - len(dark) < most[board.name] else "warning"
            answer.finding("nvlink_inactive", severity, board.bus, f"links {', '.join(map(str, dark))} of {len(board.links)} are inactive")


def present(settings: Settings) -> bool:
    """A driver's device node of an accelerator is here, or one is expected."""
    numbered = any(re.fullmatch(r"nvidia\d+", name) for name in names(settings.under("dev")))
    return bool(settings.gpus) or numbered or any(os.path.exists(settings.under(node)) for node in NODES)


def read_nvidia(answer: Answer, here: bool) -> tuple[int, list[nvml.Board]]:
    """How many NVIDIA GPUs answer, and all that are listed; findings of each."""
    found = nvml.survey()
    if found.missing:
        return (read_tool(answer, NVIDIA_SMI, "nvidia-smi-q") if here and shutil.which(NVIDIA_SMI[0]) else 0), []
    if found.failed:
        code, severity, text = found.failed
        others = any(shutil.which(program) for program, _, _ in TOOLS)
        if here and not (others and code in ("nvml_missing", "driver_not_loaded")):
            answer.finding(code, cast(Severity, severity), "node", text)
        return 0, []
    for board in found.boards:
        judge_board(answer, board)
    judge_links(answer, found.boards)
    if found.driver:
        answer.note(f"driver {found.driver}")
    return sum(board.lost is None or board.lost[1] == "warning" for board in found.boards), found.boards


def read_tool(answer: Answer, command: tuple[str, ...], parser: str) -> int:
    """How many accelerators a tool lists. One that does not answer is a finding; text that cannot be read is unknown."""
    try:
        done = tool.ask(command, TOOL_SECONDS)
    except subprocess.TimeoutExpired:
        answer.finding("gpu_unresponsive", "critical", command[0], f"no answer within {TOOL_SECONDS:g} s")
        return 0
    except OSError as error:
        answer.unread(f"{command[0]}: {error.strerror}")
        return 0
    from aegis_parsers import parse  # where there is something to read

    parsed = parse(parser, done.stdout or done.stderr)
    for finding in parsed.findings:
        answer.take(finding)
    for what in parsed.unreadable:
        answer.unread(f"{command[0]}: {what}")
    cards = [item for item in parsed.items if item.get("kind") in KINDS]
    for item in cards:
        answer.draft.items.append(item)
    return len(cards)


def kernel_events(answer: Answer, settings: Settings, boards: list[nvml.Board], complete: bool) -> None:
    """Xids and GPU lines since the start of this boot. With all expected boards here, those of another board are another tenant's."""
    log = kernellog.read(settings.kernel_log)
    if log.why:
        answer.note(log.why)
        return
    if not log.whole:
        answer.note("the kernel log does not reach back to the start of this boot")
    remapping = {slot(board.bus) for board in boards if board.remapped is not None}
    ours = {slot(board.bus) for board in boards}
    if not log.lines:
        return
    from aegis_parsers import parse  # where there is something to read

    for finding in parse("dmesg", "\n".join(log.lines)).findings:
        if not finding.code.startswith(("xid_", "sxid_", "gpu_", "amdgpu_")):
            continue
        where = slot(finding.item)
        if finding.code in REMAP_EVENTS and where in remapping:
            answer.note(f"{finding.code} on {finding.item}: the state of the remapping decides")
        elif complete and where and where not in ours and not finding.code.startswith("sxid_"):
            answer.note(f"{finding.code} on {finding.item}: not a GPU of this worker")
        else:
            answer.take(finding)


def examine(answer: Answer, settings: Settings, context: dict[str, Any]) -> str:
    here = present(settings)
    seen, boards = read_nvidia(answer, here)
    if not boards and here:
        for program, command, parser in TOOLS:
            if shutil.which(program):
                seen += read_tool(answer, command, parser)
                break
    answer.values["gpus"] = float(seen)
    if settings.gpus is not None and seen != settings.gpus:
        answer.finding("gpu_count", "fatal" if seen < settings.gpus else "warning", "node", f"{seen} of {settings.gpus} GPUs")
    if seen or here:
        kernel_events(answer, settings, boards, complete=bool(boards) and seen == settings.gpus)
        return f"{seen} GPUs"
    return "not applicable: no accelerator here, none expected"


if __name__ == "__main__":
    run("gpu", examine)
