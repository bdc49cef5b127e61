"""Which commands a standby can stand in for: `python [flags] script.py [args]`, also as the only words of `sh -c`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aegis_agent.nested import detect, shell_text

_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*\Z")
_SIMPLE = re.compile(r"[\w./=:@%+, -]+\Z")
"""A text in which a shell finds nothing but words: it executes them as its own process."""
_ALONE = re.compile(r"-[uOBqdsEIPb]+\Z")
"""Flags of python without a value that leave a script to be run as it is; not -c, -m, -i, -S, -x."""
_VALUED = ("-X", "-W")


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """`words[:script]` starts an interpreter, `words[script]` is the script, its arguments follow."""

    words: tuple[str, ...]
    script: int

    @property
    def interpreter(self) -> tuple[str, ...]:
        return self.words[: self.script]


def python_command(argv: Sequence[str]) -> PythonCommand | None:
    """`argv` as a plain python script, None when it is anything else: it is started cold then."""
    text = shell_text(argv)
    if text is not None:
        if len(argv) != 3 or _SIMPLE.match(text) is None:
            return None
        words = tuple(text.split())
    else:
        words = tuple(argv)
    if not words or _PYTHON.match(words[0]) is None or detect(words) is not None:
        return None
    at = 1
    while at < len(words) and words[at].startswith("-"):
        if words[at] in _VALUED:
            at += 2
        elif _ALONE.match(words[at]) or words[at][:2] in _VALUED:
            at += 1
        else:
            return None
    return PythonCommand(words, at) if at < len(words) else None
