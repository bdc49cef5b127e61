"""Lines of NVIDIA's kernel driver: Xid and SXid, read with our table of actions.

The text decides where it says more than the number: Fatal or Nonfatal of NVLink 5, and the recovery action that Xid 154 names.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from typing import Literal, NamedTuple, cast

from . import tables
from .schema import Severity

XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d{1,9})(?:, (?:pid=(?P<pid>'?<?\w+>?'?)(?:, name=(?P<name>\S+))?,? ?)?(?P<text>.*))?"
)
SXID = re.compile(r"SXid \(PCI:(?P<pci>[^)]+)\): (?P<code>\d{1,9}), (?:(?P<grade>Fatal|Non-fatal),? ?)?(?P<text>.*)", re.IGNORECASE)
GRADE = re.compile(r"\b(?P<grade>Nonfatal|Fatal)\b")
ACTION = re.compile(r"to 0x[0-9a-fA-F]+ \((?P<action>[^)]*)\)")
PREFIX = re.compile(
    r"^(?:<\d+>|\[ *\d+\.\d+\] ?|\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]+ \d{4}\] ?|\w+ *:\w+ *: "
    r"|\d{4}-\d\d-\d\dT\S+ |[A-Z][a-z]{2} +\d+ [\d:]{8} \S+ |kernel: ?|\S+ kernel: ?)+"
)
BY_ACTION: dict[str, tuple[Severity, str, str]] = {
    "none": ("info", "ignore", "unknown"),
    "gpu reset required": ("critical", "reset_gpu", "gpu_hw"),
    "node reboot required": ("fatal", "reboot", "gpu_hw"),
    "drain p2p": ("warning", "drain_p2p", "gpu_hw"),
    "drain and reset": ("critical", "drain_and_reset", "gpu_hw"),
}


class Rule(NamedTuple):
    """A row of data/xid.csv. `source`: whose reading decided (catalogue: NVIDIA's Xid catalogue 2025-10-29; aws, gpud; reading: ours)."""

    code: int
    name: str
    severity: Severity | Literal["depends"]
    action: str
    hardware: bool
    cause: str
    source: str
    note: str


class Event(NamedTuple):
    """One Xid or SXid line, decided."""

    kind: str
    label: str
    code: int
    pci: str
    pid: str | None
    text: str
    severity: Severity
    cause: str
    action: str
    source: str


@cache
def rules() -> dict[int, Rule]:
    text = tables.text("data/xid.csv")
    return {
        int(r["code"]): Rule(
            int(r["code"]), r["name"], cast(Severity, r["severity"]), r["action"], r["hardware"] == "yes", r["cause"], r["source"], r["note"]
        )
        for r in csv.DictReader(text.splitlines())
    }


def read_event(line: str) -> Event | None:
    """The Xid or SXid of a line, or None. A number that no table knows is an event of severity info: it is never acted upon."""
    if match := XID.search(line):
        return decide(int(match["code"]), match["pci"], match["pid"], match["text"] or "")
    if match := SXID.search(line):
        fatal = (match["grade"] or "").lower() == "fatal"
        label = f"sxid_{match['code']}" + ("_fatal" if fatal else "_nonfatal")
        severity: Severity = "fatal" if fatal else "info"
        action = "reset_gpu" if fatal else "ignore"
        return Event("sxid", label, int(match["code"]), match["pci"], None, match["text"], severity, "gpu_hw" if fatal else "unknown", action, "text")
    return None


def decide(code: int, pci: str, pid: str | None, text: str) -> Event:
    rule = rules().get(code)
    if rule is None:
        return Event("xid", f"xid_{code}", code, pci, pid, text, "info", "unknown", "none known", "no table")
    label, action, cause, source = f"xid_{code}", rule.action, rule.cause, rule.source
    severity = rule.severity if rule.severity != "depends" else "warning"
    if rule.action == "by_subcode":
        grade = GRADE.search(text)
        fatal = bool(grade and grade["grade"] == "Fatal")
        label += "_fatal" if fatal else "_nonfatal" if grade else ""
        severity = "critical" if fatal else "info" if grade else "warning"
        action, cause, source = ("reset_gpu", "gpu_hw", "text") if fatal else ("ignore", "unknown", "text") if grade else (action, cause, source)
    elif rule.action == "by_text" and (named := ACTION.search(text)):
        severity, action, cause = BY_ACTION.get(named["action"].lower(), ("warning", named["action"], "gpu_hw"))
        source = "text"
    return Event("xid", label, code, pci, pid, text, severity, cause, action, source)


def strip_prefix(line: str) -> str:
    """The message without time stamps, level and "kernel:"."""
    return PREFIX.sub("", line)
