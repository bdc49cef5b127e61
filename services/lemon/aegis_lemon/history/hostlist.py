"""Slurm's host lists: `node[1-4,7],gpu[001-003]` to names. Pure."""

from __future__ import annotations

import re
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
