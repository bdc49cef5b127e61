"""Slurm's host lists: `node[1-4,7],gpu[001-003]` to names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

MOST = 200_000
"""Names that one list may stand for."""
_PART = re.compile(r"([^\[\],]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z")


class HostlistError(ValueError):
    """Not a host list; the message shows where."""


def split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise HostlistError(f'host list "{text[:80]}": brackets do not match')
        if letter == "," and depth == 0:
            parts.append(text[begin:index])
            begin = index + 1
    if depth:
        raise HostlistError(f'host list "{text[:80]}": brackets do not match')
    return [part.strip() for part in [*parts, text[begin:]] if part.strip()]


def _numbers(inner: str, text: str) -> list[str]:
    found: list[str] = []
    for item in inner.split(","):
        match = _RANGE.match(item.strip())
        if match is None:
            raise HostlistError(f'host list "{text[:80]}": "{item}" is no number or range')
        low, high = match[1], match[2] or match[1]
        if not 0 <= int(high) - int(low) < MOST:
            raise HostlistError(f'host list "{text[:80]}": the range {item} goes backwards or is longer than {MOST}')
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found


def expand(text: str) -> list[str]:
    """Names in the order written, without repeats."""
    names: dict[str, None] = {}
    for part in split(text):
        pieces: list[list[str]] = []
        count = 1
        for plain, inner in _PART.findall(part):
            pieces.append([plain])
            if inner:
                numbers = _numbers(inner, text)
                count *= len(numbers)
                pieces.append(numbers)
        if count + len(names) > MOST:
            raise HostlistError(f'host list "{text[:80]}": more than {MOST} names')
        names |= dict.fromkeys("".join(each) for each in product(*pieces))
    return list(names)


_TAIL = re.compile(r"(.*?)(\d{1,9})\Z")


def fold(names: Iterable[str]) -> str:
    """The shortest such list of names that have neither brackets nor commas; `expand` gives the same set.

    >>> fold(["n1", "n3", "n2", "gpu001", "head"])
    'gpu[001],head,n[1-3]'
    """
    groups: dict[tuple[str, int], set[int]] = {}
    plain = []
    for name in set(names):
        match = _TAIL.match(name)
        if match is None:
            plain.append(name)
        else:
            digits = match[2]
            groups.setdefault((match[1], len(digits) if digits.startswith("0") and len(digits) > 1 else 0), set()).add(int(digits))
    for (prefix, width), numbers in groups.items():
        ranges: list[list[int]] = []
        for number in sorted(numbers):
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        inner = ",".join(f"{low:0{width}d}" + (f"-{high:0{width}d}" if high > low else "") for low, high in ranges)
        plain.append(f"{prefix}[{inner}]")
    return ",".join(sorted(plain))
