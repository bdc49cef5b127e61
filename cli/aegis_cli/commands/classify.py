"""`aegis logs classify FILE|-`: what a saved log says about a failure. Needs no service; reads the file in blocks, so it may be of any size.

Also owns the group `logs`: whatever is not `classify` is `aegis job logs` in its short form.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Annotated, Any

import typer
from typer.core import TyperGroup

from aegis_cli.errors import CliError
from aegis_cli.options import Env, command

READ = "read"
"""Hidden name, in the group, of the short form of `aegis job logs`."""
FLAGS = ("--json", "--quiet", "-q", "--verbose", "-v", "--no-color")
BLOCK = 4 << 20
LONGEST = 1 << 16
"""Bytes of one line that are kept: more is not read by any pattern."""


class LogsGroup(TyperGroup):
    """`aegis logs classify ...`, or else `aegis logs JOB ...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = next((n for n, word in enumerate(args) if word not in FLAGS), len(args))
        words = ["classify", *args[:at], *args[at + 1 :]] if args[at : at + 1] == ["classify"] else [READ, *args]
        return super().parse_args(ctx, words)


def group(app: typer.Typer) -> typer.Typer:
    """The group `logs` of `app`, with `classify` in it."""
    made = typer.Typer(cls=LogsGroup, help="What the workers printed; `logs classify FILE`: what a saved log says about a failure.")
    app.add_typer(made, name="logs")

    @command(made, "classify")
    def classify(env: Env, *, file: Annotated[str, typer.Argument(metavar="FILE|-", help="A log, of one process or many; - is stdin.")]) -> None:
        """The cause that a log supports, the first line that proves it, and every line that says something about a failure."""
        from aegis_parsers.causes import report_blocks

        try:
            if file == "-":
                found = report_blocks(blocks(sys.stdin.buffer))
            else:
                with open(file, "rb") as source:
                    found = report_blocks(blocks(source))
        except OSError as error:
            raise CliError("E107", f"{file}: {error.strerror or error}", exit=2) from None
        env.out.document("LogReport", found, text(found), str(found["cause"]))

    return made


def blocks(source: IO[bytes]) -> Iterator[list[str]]:
    """Lines as they are numbered by `\\n`, some megabytes at a time. Bytes that are no UTF-8 become U+FFFD; a line is kept up to LONGEST bytes."""
    rest = b""
    while block := source.read(BLOCK):
        head, newline, tail = block.rpartition(b"\n")
        if not newline:
            rest = (rest + block)[:LONGEST]
            continue
        yield lines_of(rest + head)
        rest = tail[:LONGEST]
    if rest:
        yield lines_of(rest)


def lines_of(data: bytes) -> list[str]:
    return [line.removesuffix("\r") for line in data.decode("utf-8", "replace").split("\n")]


def text(found: dict[str, Any]) -> str:
    """For a person: control characters of the log made visible."""
    first = found["first_strong"]
    head = f"Cause: {found['cause']}" + (f", by line {first['n']} ({first['label']}): {shown(first['text'])}" if first else ", no line proves one")
    if not found["lines"]:
        return f"{head}\nNo line says anything about a failure."
    rows = [("N", "CAUSE", "LABEL", "TEXT"), *((str(line["n"]), line["cause"], line["label"], shown(line["text"])) for line in found["lines"])]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join([head, *("  ".join([*(row[i].ljust(widths[i]) for i in range(3)), row[3]]) for row in rows)])


def shown(line: str, limit: int = 300) -> str:
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in line[:limit])
