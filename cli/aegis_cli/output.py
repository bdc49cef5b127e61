"""How a command speaks: results on stdout (table, wide, json, yaml or name), everything else on stderr.

JSON is `{"apiVersion": "aegis/v1", "kind": KIND, ...}`; lists have `items`. Errors with -o json are one JSON object on stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console

from aegis_cli import times
from aegis_cli.errors import CliError

API_VERSION = "aegis/v1"
FORMATS = ("table", "wide", "json", "yaml", "name")


@dataclass(frozen=True)
class Column:
    """A column of a table: `value` takes the item; `wide` columns show with -o wide only."""

    title: str
    value: Callable[[Any], object]
    wide: bool = False


def builtins(item: object) -> Any:
    """Structs as plain dicts and lists; times as programs read them."""
    return times.for_programs(msgspec.to_builtins(item))


def table(items: Sequence[Any], columns: Sequence[Column], wide: bool = False) -> str:
    """Aligned columns, two spaces between; an empty value is `-`."""
    shown = [column for column in columns if wide or not column.wide]
    rows = [[column.title for column in shown]]
    rows += [[_text(column.value(item)) for column in shown] for item in items]
    widths = [max(len(row[i]) for row in rows) for i in range(len(shown))]
    return "\n".join("  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _text(value: object) -> str:
    return "-" if value is None or value == "" else " ".join(str(value).split())


def _json(document: Mapping[str, Any], indent: int | None = None) -> str:
    """Half a surrogate pair (a tenant's text may hold one) becomes its escape: there is no UTF-8 of it."""
    return json.dumps(document, ensure_ascii=False, indent=indent).encode("utf-8", "backslashreplace").decode()


class Output:
    """One per command; `json_lines` is set by -w and by streams: one object per line."""

    def __init__(self, form: str = "table", quiet: bool = False, verbose: int = 0, color: bool = True) -> None:
        self.form, self.quiet, self.verbose = form, quiet, verbose
        plain = not color or bool(os.environ.get("NO_COLOR"))
        self.err = Console(stderr=True, no_color=plain, highlight=False, soft_wrap=True)
        self.out = Console(no_color=plain, highlight=False, soft_wrap=True)

    @property
    def machine(self) -> bool:
        """The reader is a program."""
        return self.form in ("json", "yaml")

    def note(self, text: str) -> None:
        """A line for people, on stderr; not with -q."""
        if not self.quiet:
            self.err.print(text, markup=False)

    def text(self, text: str) -> None:
        """A result that is text in every format."""
        print(text, flush=True)

    def document(self, kind: str, body: object, text: str | None = None, name: str = "") -> None:
        """One object. `text` is what a person reads; `name` what -o name prints."""
        if self.form == "name" and name:
            print(name)
        elif text is not None and not self.machine:
            print(text, flush=True)
        else:
            self._structured({"apiVersion": API_VERSION, "kind": kind, **builtins(body)})

    def listing(self, kind: str, items: Sequence[Any], columns: Sequence[Column], name: Callable[[Any], str], empty: str = "") -> None:
        """A list of objects; `empty` is said on stderr when there are none."""
        if self.form == "name":
            for item in items:
                print(name(item))
        elif self.machine:
            self._structured({"apiVersion": API_VERSION, "kind": kind, "items": [builtins(item) for item in items]})
        elif items:
            print(table(items, columns, self.form == "wide"))
        elif empty:
            self.note(empty)
        sys.stdout.flush()

    def line(self, kind: str, body: object, text: str) -> None:
        """One element of a stream: a line of text, or one JSON object per line."""
        if self.machine:
            print(_json({"apiVersion": API_VERSION, "kind": kind, **builtins(body)}), flush=True)
        else:
            print(text, flush=True)

    def error(self, error: CliError) -> None:
        """An error, on stderr: one line and a hint, or one JSON object."""
        if self.machine:
            print(json.dumps(error.as_json(), ensure_ascii=False), file=sys.stderr, flush=True)
            return
        self.err.print(f"[bold red]{error.code}[/] ", end="")
        self.err.print(error.message, markup=False)
        if error.hint:
            self.err.print(error.hint, markup=False)

    def _structured(self, document: Mapping[str, Any]) -> None:
        if self.form == "yaml":
            import yaml

            print(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True), end="")
        else:
            print(_json(document, indent=2))
        sys.stdout.flush()
