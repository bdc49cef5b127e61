"""`parse TOOL FILE` as `aegis net parse` and `aegis-agent parse` give it: one code, one document. Reads the file or stdin, writes nothing.

The document is `{"apiVersion": "aegis/v1", "kind": "Parsed", "tool", "health", "items", "findings", "unreadable"}`. A command ends with 0 whatever
was found, since the question was what the file says; with `exit_code` it ends with 1 unless that is "healthy".
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from .codes import meaning
from .registry import PARSERS, TEXT_LIMIT, parse, resolve
from .schema import Item, Parsed, clip

API_VERSION = "aegis/v1"
MOST_OF_ITEM = 4000


def read(tool: str, file: str) -> Parsed:
    """What the file (- is stdin) says. UnknownTool: no parser of that name; OSError: no such file."""
    if tool != "auto":
        resolve(tool)  # a wrong name is told before the file is opened
    if file == "-":
        return parse(tool, sys.stdin.buffer.read(4 * TEXT_LIMIT))
    with open(file, "rb") as source:
        return parse(tool, source.read(4 * TEXT_LIMIT))


def document(parsed: Parsed) -> dict[str, Any]:
    """The JSON document."""
    return {"apiVersion": API_VERSION, "kind": "Parsed", "health": parsed.health, **msgspec.to_builtins(parsed)}


def text(parsed: Parsed, *, items: bool = False) -> str:
    """For a person: what is wrong first, then what could not be read; with `items` also what was read, an item a line."""
    lines = [f"{parsed.tool}: {parsed.health}, {len(parsed.items)} items, {len(parsed.findings)} findings, {len(parsed.unreadable)} unreadable"]
    lines += [
        f"{finding.severity:<8}  {finding.code}  {finding.item}: {finding.evidence}" + (f"  ({said})" if (said := meaning(finding.code)) else "")
        for finding in parsed.findings
    ]
    lines += [f"unread    {clip(what)}" for what in parsed.unreadable]
    lines += [one_line(item) for item in parsed.items if items]
    return "\n".join(lines)


def one_line(item: Item) -> str:
    """An item with what is known of it, printable, of bounded length."""
    told = ", ".join(f"{name} {value}" for name, value in item.items() if name not in ("id", "kind") and value is not None)
    line = f"{item.get('kind', 'item')!s:<8}  {item.get('id', '')}: {told}"[:MOST_OF_ITEM]
    return "".join(c if c.isprintable() else " " for c in line)


def tools() -> dict[str, list[str]]:
    """Every tool with the other names it answers to; "auto" finds the tool from the text."""
    return {"auto": [], **{tool: list(parser.aliases) for tool, parser in sorted(PARSERS.items())}}


def tools_text() -> str:
    return "\n".join(tool + (f"  (also {', '.join(names)})" if names else "") for tool, names in tools().items())


def exit_code(parsed: Parsed) -> int:
    """1 unless the file says that all is well."""
    return 0 if parsed.health == "healthy" else 1
