"""`nvidia-smi`, whichever of its forms the text has."""

from __future__ import annotations

from ..schema import Draft
from . import csvrows, messages, nvlink, query, table


def looks(text: str) -> bool:
    probe = Draft("")
    return any(form.looks(text) for form in (table, query, nvlink, csvrows)) or any(
        messages.read_message(probe, line) for line in text.split("\n")[:5] if line
    )


def read(draft: Draft, text: str) -> None:
    for form in (table, query, nvlink, csvrows):
        if form.looks(text):
            form.read(draft, text)
            return
    for line in text.split("\n"):
        if line.strip() and not messages.read_message(draft, line) and not messages.read_markers(draft, "gpu", line):
            draft.unread("line not understood", line)
