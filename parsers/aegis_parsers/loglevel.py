"""The level of a line of a training's output, as far as the line says it. Pure; the words are data.

Sources of the spellings: Python `logging`, glog and absl (`E0807 12:01:02`), NCCL (`NCCL WARN`), torch (`[rank0]:[E...`), plain tracebacks.
"""

from __future__ import annotations

LEVELS = ("debug", "info", "warning", "error")
"""Rising. A line that says nothing is `info`."""

WORDS: dict[str, str] = {
    "error": (
        r"\b(?:ERROR|CRITICAL|FATAL|SEVERE|PANIC)\b|^[EF]\d{4} |\[[EF]\d{3,6}|Traceback \(most recent call last\)"
        r"|^(?:\[rank\d{1,6}\]: ?)?[A-Za-z_.]{0,80}(?:Error|Exception|Interrupt)\b|\b[Ee]rror: "
    ),
    "warning": r"\b(?:WARN|WARNING)\b|^W\d{4} |\[W\d{3,6}|\b[A-Za-z]{0,40}Warning: ",
    "debug": r"\b(?:DEBUG|TRACE)\b|^D\d{4} |\[D\d{3,6}",
}
"""Level -> a pattern that hyperscan and `re` read alike."""


def wanted(level: str) -> tuple[str, bool]:
    """(pattern, must it match) for lines of `level` or above; ("", True) when all do. ValueError for an unknown level."""
    if level not in LEVELS:
        raise ValueError(f"level {level!r}: one of {', '.join(LEVELS)}")
    if level == "error":
        return WORDS["error"], True
    if level == "warning":
        return f"{WORDS['error']}|{WORDS['warning']}", True
    return (WORDS["debug"], False) if level == "info" else ("", True)
