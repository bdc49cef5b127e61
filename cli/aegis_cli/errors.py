"""The one exception a command ends with, and how any other error becomes it."""

from __future__ import annotations

import re
from typing import Any

from aegis_cli import codes

_CODED = re.compile(r"\A([EW]\d{3})[: ]+(.*)\Z", re.S)


class CliError(Exception):
    """Ends a command: printed on stderr (JSON with -o json), exit code by the table of codes unless `exit` is given."""

    def __init__(self, code: str, message: str, hint: str = "", exit: int | None = None, **details: Any) -> None:
        super().__init__(f"{code} {message}")
        self.code, self.message, self.hint, self.details = code, message, hint, details
        self.exit = codes.exit_of(code) if exit is None else exit

    def as_json(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint, "details": self.details}}


def from_text(text: str, default: str, exit: int | None = None) -> CliError:
    """An error text of another package: `E110 job name ...` keeps its code, anything else gets `default`."""
    found = _CODED.match(text)
    if found:
        return CliError(found[1], found[2].strip(), exit=exit)
    return CliError(default, text, exit=exit)
