"""The one shape that every parser gives: what was seen, what is wrong with it, and what could not be read.

Owns `Parsed`, `Finding` and the three-valued `health`. Reads nothing, writes nothing. A finding of severity `info` is worth a line in a report
(a saturated counter, a port switched off) and never makes anything unhealthy. What could not be read is *unknown*: it is never counted as healthy.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Literal, get_args

import msgspec

Severity = Literal["info", "warning", "critical", "fatal"]
"""info: no harm yet; warning: degraded or soon; critical: the part needs a reset or a repair; fatal: the part is gone."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
Health = Literal["healthy", "unhealthy", "unknown"]
Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]
Item = dict[str, Value]
"""One thing the tool listed (a GPU, a port, a link, a row); `id` names it, `kind` says what it is."""

TEXT_LIMIT = 400
"""Characters of a line kept as evidence: a line may be of any length."""


class Finding(msgspec.Struct, frozen=True):
    """`code` is stable (codes.py); `item` is the id of the part; `evidence` is the text that says so, cut to TEXT_LIMIT characters."""

    code: str
    severity: Severity
    item: str
    evidence: str


class Parsed(msgspec.Struct, frozen=True):
    """What one tool's output says. `unreadable` has one sentence per part that could not be read."""

    tool: str
    items: tuple[Item, ...] = ()
    findings: tuple[Finding, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def health(self) -> Health:
        """unhealthy: a finding above info; unknown: something unread, or nothing seen at all; else healthy."""
        if any(finding.severity != "info" for finding in self.findings):
            return "unhealthy"
        return "unknown" if self.unreadable or not self.items else "healthy"


class Draft:
    """Collects one answer while a parser reads. Equal findings (code and item) are one: a kernel log repeats itself 800,000 times."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.items: list[Item] = []
        self._findings: dict[tuple[str, str], Finding] = {}
        self._unreadable: dict[str, None] = {}

    def item(self, id: str, kind: str, **fields: Value) -> Item:
        new: Item = {"id": id, "kind": kind, **fields}
        self.items.append(new)
        return new

    def finding(self, code: str, severity: Severity, item: str, evidence: str) -> None:
        key = (code, item)
        old = self._findings.get(key)
        if old is None or SEVERITIES.index(severity) > SEVERITIES.index(old.severity):
            self._findings[key] = Finding(code, severity, item, clip(evidence))

    def drop(self, code: str, item: str) -> None:
        self._findings.pop((code, item), None)

    def unread(self, what: str, text: str = "") -> None:
        if len(self._unreadable) < 1000:
            self._unreadable[f"{what}: {clip(text)}" if text else what] = None

    def has(self, code: str, item: str) -> bool:
        return (code, item) in self._findings

    def has_any(self) -> bool:
        """Whether anything is wrong or unread so far."""
        return bool(self._findings or self._unreadable)

    def done(self) -> Parsed:
        if not self.items and not self._findings and not self._unreadable:
            self.unread("nothing of this tool's output was recognised")
        return Parsed(self.tool, tuple(self.items), tuple(self._findings.values()), tuple(self._unreadable))


def clip(text: str) -> str:
    """One line, printable, of bounded length: text of others is data, never terminal control."""
    flat = "".join(c if c.isprintable() else " " for c in text[: 2 * TEXT_LIMIT]).strip()
    return flat[:TEXT_LIMIT]


def number(text: str | None) -> int | float | None:
    """The leading number of a cell ("37C", "45W", "16x", "[N/A]" -> None); ints of any width, never infinities."""
    if text is None:
        return None
    head = text.strip().split(" ")[0].rstrip("%CWxMiBGb/s,")
    if head.lstrip("+-").isascii() and head.lstrip("+-").isdigit():
        return int(head) if len(head) < 40 else None
    try:
        value = float(head)
    except ValueError:
        return None
    return value if isfinite(value) else None


def lines_of(text: str) -> Iterator[str]:
    """Lines without what follows their last visible character; only a line feed ends one."""
    return (line.rstrip() for line in text.split("\n"))


def bare_lines_of(text: str) -> Iterator[str]:
    """Lines without white space at both ends."""
    return (line.strip() for line in text.split("\n"))
