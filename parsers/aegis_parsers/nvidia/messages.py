"""Sentences that nvidia-smi prints instead of its output, and the markers it puts in place of a value."""

from __future__ import annotations

import re

from ..schema import Draft, Severity

LOST = re.compile(r"\[?\b(?:ERROR_)?GPU[ _](?:IS[ _])?LOST\b\]?|fallen off the bus", re.IGNORECASE)
RESET = re.compile(r"\[?\bGPU[ _](?:REQUIRES|NEEDS)[ _](?:A[ _])?RESET\b\]?|\bERROR_RESET_REQUIRED\b", re.IGNORECASE)
NO_VALUE = frozenset(
    (
        "n/a",
        "[n/a]",
        "not supported",
        "[not supported]",
        "[unknown error]",
        "unknown error",
        "[insufficient permissions]",
        "insufficient permissions",
        "err!",
        "[err!]",
        "none",
        "",
        "-",
        "not available",
        "[not found]",
        "unknown",
        "[unknown]",
        "requested functionality has been deprecated",
    )
)
"""Compared without regard to case. Absence of a value is not a fault; lost and reset-required are, and are no member."""
BROKEN = frozenset(("err!", "[err!]", "[unknown error]", "unknown error"))
"""Markers of a sensor that did not answer: one in a live row means nothing, most of a row means the GPU does not answer."""

_ADDRESS = r"(?:GPU\s*(?P<index>\d{1,3}(?=:\s))?:?\s*)?(?P<address>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
HANDLE = re.compile(rf"Unable to determine the device handle for\s+{_ADDRESS}\s*:\s*(?P<why>.*)", re.IGNORECASE)
INFOROM = re.compile(rf"info\s?ROM is corrupted at\s+{_ADDRESS}", re.IGNORECASE)
SENTENCES: tuple[tuple[re.Pattern[str], str, Severity], ...] = (
    (re.compile(r"Driver/library version mismatch", re.I), "driver_library_mismatch", "critical"),
    (
        re.compile(r"couldn'?t communicate with the NVIDIA driver|NVIDIA driver is not loaded|Driver Not Loaded", re.I),
        "driver_not_loaded",
        "critical",
    ),
    (
        re.compile(r"couldn'?t find libnvidia-ml|NVML (?:Shared )?Library Not Found|libnvidia-ml\.so.*(?:cannot open|not found)", re.I),
        "nvml_missing",
        "critical",
    ),
    (re.compile(r"Failed to initialize NVML|nvmlInit\w* (?:failed|error)", re.I), "nvml_init_failed", "critical"),
    (re.compile(r"No devices were found", re.I), "no_gpu_found", "critical"),
    (re.compile(r"Unable to determine the device handle", re.I), "gpu_unreachable", "critical"),
)
DETAIL = re.compile(
    r"NVML library version|Reboot the system|Make sure that the latest NVIDIA driver|Please also try adding directory|^WARNING: ?$", re.I
)


def is_no_value(text: str) -> bool:
    return text.strip().lower() in NO_VALUE


def is_broken(text: str) -> bool:
    return text.strip().lower() in BROKEN


def read_message(draft: Draft, line: str) -> bool:
    """True when the line is one of the sentences (or a detail of one); its finding goes into the draft."""
    if match := HANDLE.search(line):
        address, why = match["address"], match["why"]
        if LOST.search(why):
            draft.finding("gpu_lost", "fatal", address, line)
        elif RESET.search(why):
            draft.finding("gpu_requires_reset", "critical", address, line)
        else:
            draft.finding("gpu_unreachable", "critical", address, line)
        return True
    if match := INFOROM.search(line):
        draft.finding("inforom_corrupted", "warning", match["address"], line)
        return True
    for pattern, code, severity in SENTENCES:
        if pattern.search(line):
            draft.finding(code, severity, "driver", line)
            return True
    return bool(DETAIL.search(line))


def read_markers(draft: Draft, item: str, line: str) -> bool:
    """Lost and reset-required markers anywhere in a line that belongs to the named GPU."""
    if LOST.search(line):
        draft.finding("gpu_lost", "fatal", item, line)
        return True
    if RESET.search(line):
        draft.finding("gpu_requires_reset", "critical", item, line)
        return True
    return False
