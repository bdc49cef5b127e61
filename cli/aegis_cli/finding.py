"""One line of `aegis doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """`level` ok | warn | fail; `do` what to do about it."""

    level: str
    check: str
    finding: str
    do: str = ""
