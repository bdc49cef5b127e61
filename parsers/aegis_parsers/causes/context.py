"""What the lines around a finding say of it: an exception that Python ignored or that led to another one, a server that answered again.

Findings come in the order of their lines; what stands at most AROUND lines before one is known, over the blocks of a log too.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from .classify import Line

AROUND = 200
ANY = "python_error"
"""The label of an exception that no pattern knows by its name."""
NFS_OK = re.compile(r"nfs4?: server (?P<server>\S+) OK", re.IGNORECASE)
NFS_AWAY = re.compile(r"nfs4?: server (?P<server>\S+?),? not responding", re.IGNORECASE)
PREFIX = re.compile(r"^\[[^\]]{1,60}\]:? ?")
CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


class Context:
    """`found`: the findings so far. `add` takes the next lines and what they hold, numbered over all lines."""

    def __init__(self) -> None:
        self.found: list[Line] = []
        self._before: list[str] = []
        self._away: dict[int, str] = {}  # position in `found` -> server
        self._read = 0

    def add(self, lines: Sequence[str], found: Sequence[Line]) -> None:
        around = [*self._before, *lines] if self._before and found else lines
        skipped = self._read - (len(around) - len(lines))
        for line in found:
            self._add(line, around, line.n - 1 - skipped)
        self._answered(lines)
        self._read += len(lines)
        self._before = [*self._before, *lines[-AROUND:]][-AROUND:]

    def _add(self, line: Line, around: Sequence[str], at: int) -> None:
        how, earlier = led_to(around, at)
        if how == "ignored" and line.label == ANY:
            return
        index = bisect_left(self.found, line.n - (at - earlier), key=lambda each: each.n) if how == "chain" else len(self.found)
        if index < len(self.found) and self.found[index].n == line.n - (at - earlier):
            before = self.found[index]
            if line.label == ANY and (before.label != ANY or before.strength == "symptom"):
                line = msgspec.structs.replace(line, strength="symptom")  # another word for what was named before
            elif line.label != ANY and before.label == ANY and before.strength == "strong":
                self.found[index] = msgspec.structs.replace(before, strength="weak")
        if line.label == "nfs_not_responding" and (match := NFS_AWAY.search(line.text)):
            self._away[len(self.found)] = match["server"]
        self.found.append(line)

    def _answered(self, lines: Sequence[str]) -> None:
        """A server that is there again was away, and is no cause."""
        if not self._away:
            return
        back = {match["server"]: self._read + n for n, line in enumerate(lines, 1) if " OK" in line and (match := NFS_OK.search(line[:400]))}
        for index, server in list(self._away.items()):
            if back.get(server, 0) > self.found[index].n:
                self.found[index] = msgspec.structs.replace(self.found[index], strength="symptom")
                del self._away[index]


def led_to(lines: Sequence[str], at: int) -> tuple[str, int]:
    """How the exception of line `at` stands: ("ignored" | "chain", line of what ignored it, or of the exception before it), else ("", at)."""
    chain = False
    if lines[at].startswith((" ", "\t")):  # a line of a traceback, or of a program's own
        return "", at
    for n in range(at - 1, max(-1, at - AROUND), -1):
        text = PREFIX.sub("", lines[n][:200], count=1)
        if text.startswith(CHAIN):
            chain = True
        elif text.strip() and not text.startswith((" ", "\t", "Traceback (most recent call last)")):
            return ("chain", n) if chain else ("ignored", n) if text.startswith("Exception ignored ") else ("", at)
    return "", at
