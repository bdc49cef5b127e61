"""One cause for a whole job: the earliest strong line over all ranks.

Where lines carry wall-clock times, earliest means by time. Where some do not, the first strong line of each rank is compared by how much its kind can
prove (hardware and kernel first, a Python exception last). Without a strong line, weak ones decide; symptoms alone leave the cause unknown: who did
not print anything may be the one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from .classify import Cause, Line, classify_lines

PROOF: tuple[Cause, ...] = (
    *("gpu_hw", "node_hw", "host_oom", "storage", "preemption", "cuda_oom", "user_code", "network", "software", "contention", "unknown"),
)
"""How much a strong line of a class proves, when times cannot tell which came first."""
ISO = re.compile(r"\b(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
CTIME = re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\b")
GLOG = re.compile(r"^(?:\[rank\d+\]:)?\[?[IWEF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
SYSLOG = re.compile(r"^(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(\d{1,2}) (\d\d):(\d\d):(\d\d)\b")
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


class Strong(msgspec.Struct, frozen=True):
    """The line that decided, and whose log it stands in."""

    rank: str
    n: int
    text: str
    label: str
    cause: Cause


class Judgement(msgspec.Struct, frozen=True):
    """`ranks`: those whose logs hold a line of the same label as the deciding one. `read`: lines per rank; `silent`: ranks without any line."""

    cause: Cause
    first_strong: Strong | None
    ranks: tuple[str, ...]
    found: dict[str, tuple[Line, ...]]
    read: dict[str, int]
    silent: tuple[str, ...]


def judge(logs: Mapping[str, Sequence[str]], year: int = 2000) -> Judgement:
    """The cause of a failure by the logs of all ranks (and of nodes: any name will do as a key). `year` completes stamps
    that have none, where no other line tells it.

    >>> judge({"0": ["Watchdog caught collective operation timeout"], "1": ["KeyError: 'x'"]}).cause
    'user_code'
    """
    found = {rank: tuple(classify_lines(lines)) for rank, lines in logs.items()}
    lines = [(rank, line) for rank, named in found.items() for line in named]
    chosen = [(rank, line) for rank, line in lines if line.strength == "strong"]
    if not chosen and not any(line.label == "sigkill" for _, line in lines):
        chosen = [(rank, line) for rank, line in lines if line.strength == "weak" and line.cause != "unknown"]
    first = earliest(chosen, year) if chosen else None
    return Judgement(
        cause=first[1].cause if first else "unknown",
        first_strong=Strong(first[0], first[1].n, first[1].text, first[1].label, first[1].cause) if first else None,
        ranks=tuple(sorted({rank for rank, line in lines if first and line.label == first[1].label}, key=natural)),
        found=found,
        read={rank: len(text) for rank, text in logs.items()},
        silent=tuple(sorted((rank for rank, text in logs.items() if not any(line.strip() for line in text)), key=natural)),
    )


def report(lines: Sequence[str]) -> dict[str, object]:
    """One log as plain data, for JSON: `cause`, `first_strong` (or None) and `lines`, those with a finding, each {n, text, label, cause}."""
    verdict = judge({"": lines})
    strong = verdict.first_strong
    return {
        "cause": verdict.cause,
        "first_strong": None if strong is None else {"n": strong.n, "text": strong.text, "label": strong.label, "cause": strong.cause},
        "lines": [{"n": line.n, "text": line.text, "label": line.label, "cause": line.cause} for line in verdict.found[""]],
    }


def earliest(lines: Sequence[tuple[str, Line]], year: int) -> tuple[str, Line]:
    years = [
        int(match[1] if match.re is ISO else match[6]) for _, line in lines if (match := ISO.search(line.text[:200]) or CTIME.search(line.text[:200]))
    ]
    year = years[0] if years else year
    timed = [(time, rank, line) for rank, line in lines if (time := stamp(line.text, year)) is not None]
    if len(timed) == len(lines):
        _, rank, line = min(timed, key=lambda entry: entry[0])
        return rank, line
    return min(lines, key=lambda entry: (PROOF.index(entry[1].cause), entry[1].n, natural(entry[0])))


def stamp(text: str, year: int) -> float | None:
    """Seconds since 1970 of the wall-clock stamp in a line, taken as UTC; None when it has none, or only an uptime."""
    head = text[:200]
    try:
        if match := ISO.search(head):
            parts = [int(match[i]) for i in range(1, 7)]
            fraction = match[7]
        elif match := CTIME.search(head):
            parts = [int(match[6]), MONTHS.index(match[1]) + 1, *(int(match[i]) for i in range(2, 6))]
            fraction = None
        elif match := GLOG.search(head):
            parts = [year, *(int(match[i]) for i in range(1, 6))]
            fraction = match[6]
        elif match := SYSLOG.search(head):
            parts = [year, MONTHS.index(match[1]) + 1, *(int(match[i]) for i in range(2, 6))]
            fraction = None
        else:
            return None
        return datetime(*parts, tzinfo=UTC).timestamp() + (float(f"0.{fraction}") if fraction else 0.0)  # type: ignore[misc, arg-type]
    except ValueError:
        return None


def natural(rank: str) -> tuple[int, str]:
    return (int(rank) if rank.isascii() and rank.isdigit() and len(rank) < 18 else 10**18, rank)
