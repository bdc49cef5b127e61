"""JSON inside a tool's output: comments and warnings before it, several documents, or cut off."""

from __future__ import annotations

import json
from typing import Any

from .schema import Draft


def documents(draft: Draft, text: str) -> list[Any]:
    """Every JSON object or list that stands at the start of a line; what is cut or damaged goes to `unreadable`, and so does nothing at all."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    at = 0
    while at < len(text):
        line_end = text.find("\n", at)
        line_end = len(text) if line_end < 0 else line_end
        stripped = at + len(text[at:line_end]) - len(text[at:line_end].lstrip())
        if text[stripped : stripped + 1] in ("{", "["):
            try:
                value, end = decoder.raw_decode(text, stripped)
            except (ValueError, RecursionError) as error:
                draft.unread("JSON is cut or damaged", str(error))
                return found
            found.append(value)
            at = end
        else:
            at = line_end + 1
    if not found:
        draft.unread("no JSON in the output", text[:200])
    return found


def walk(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """All leaves of a document with their path; bounded in depth."""
    if len(path) > 40:
        return []
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in walk(inner, (*path, str(key)))]
    if isinstance(value, list):
        return [leaf for n, inner in enumerate(value) for leaf in walk(inner, (*path, str(n)))]
    return [(path, value)]
