"""What a check program says: findings in the parsers' one schema, put into the one line of JSON that the registry reads.

A finding of severity critical or fatal fails the check; a warning is shown and does not. What had to be read and could not be is a failure too:
unknown is never healthy. Reads stdin (the context) and the environment; writes stdout.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from aegis_parsers.schema import SEVERITIES, Draft, Finding, Severity, clip

from aegis_agent.checks.settings import Settings, from_environment

FAILS = SEVERITIES.index("critical")


class Answer:
    """Collects. `values` are numbers for metrics; `notes` are said and judge nothing."""

    def __init__(self, check: str) -> None:
        self.draft = Draft(check)
        self.values: dict[str, float] = {}
        self.notes: list[str] = []

    def finding(self, code: str, severity: Severity, item: str, evidence: str) -> None:
        self.draft.finding(code, severity, item, evidence)

    def take(self, finding: Finding) -> None:
        self.draft.finding(finding.code, finding.severity, finding.item, finding.evidence)

    def unread(self, what: str) -> None:
        """Something that had to be read was not."""
        self.draft.unread(what)

    def note(self, text: str) -> None:
        self.notes.append(clip(text))

    def line(self, summary: str = "") -> dict[str, Any]:
        """The answer. Worst finding first; its code is the result's."""
        items = bool(self.draft.items)
        parsed = self.draft.done() if items or self.draft.has_any() else None
        findings = sorted(parsed.findings if parsed else (), key=lambda f: -SEVERITIES.index(f.severity))
        unread = parsed.unreadable if parsed else ()
        shown = [f for f in findings if f.severity != "info"]
        failed = unread or any(SEVERITIES.index(f.severity) >= FAILS for f in shown)
        code = shown[0].code if shown else "unknown" if unread else ""
        said = [f"{f.severity} {f.code} {f.item}: {f.evidence}" for f in shown[:16]] + [f"unknown: {text}" for text in unread[:8]]
        values = {**self.values, "findings": float(len(shown)), "unknown": float(len(unread))}
        text = "; ".join([*said, *([summary] if summary else []), *self.notes])
        return {"pass": not failed, "result": text, "code": code, "values": values}


def run(check: str, examine: Callable[[Answer, Settings, dict[str, Any]], str]) -> None:
    """The `main` of a check: `examine` fills the answer and returns a summary of what was seen."""
    context = json.loads(sys.stdin.readline() or "{}")
    settings = from_environment(os.environ)
    answer = Answer(check)
    for problem in settings.problems:
        answer.finding("settings", "warning", "environment", problem)
    summary = examine(answer, settings, context)
    print(json.dumps(answer.line(summary)), flush=True)
