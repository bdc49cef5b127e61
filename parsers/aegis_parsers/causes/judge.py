"""One cause for a whole job: the earliest strong line over all ranks.

Where lines carry wall-clock times, earliest means by time. Where some do not, one log is read in its order, and the first strong lines of several
are compared by how much their kind can prove (hardware and kernel first, a Python exception last). Without a strong line, weak ones decide; symptoms
alone leave the cause unknown: who did not print anything may be the one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from .classify import Cause, Line, classify_blocks, classify_lines

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
    first = decisive(found, year)
    return Judgement(
        cause=first.cause if first else "unknown",
        first_strong=first,
        ranks=tuple(sorted((rank for rank, lines in found.items() if first and any(line.label == first.label for line in lines)), key=natural)),
        found=found,
        read={rank: len(text) for rank, text in logs.items()},
        silent=tuple(sorted((rank for rank, text in logs.items() if not any(line.strip() for line in text)), key=natural)),
    )


def decisive(found: Mapping[str, Sequence[Line]], year: int = 2000) -> Strong | None:
    """The line that decides, among those with a finding of every rank; None when they are only symptoms, or none."""
    lines = [(rank, line) for rank, named in found.items() for line in named]
    chosen = [(rank, line) for rank, line in lines if line.strength == "strong"]
    if not chosen and not any(line.label == "sigkill" for _, line in lines):
        chosen = [(rank, line) for rank, line in lines if line.strength == "weak" and line.cause != "unknown"]
    if not chosen:
        return None
    rank, line = earliest(chosen, year)
    return Strong(rank, line.n, line.text, line.label, line.cause)


def report(lines: Sequence[str]) -> dict[str, object]:
    """One log as plain data, for JSON: `cause`, `first_strong` (or None) and `lines`, those with a finding, each {n, text, label, cause}."""
    return report_blocks([lines])


def report_blocks(blocks: Iterable[Sequence[str]]) -> dict[str, object]:
    """`report` of a log that is not held in memory: lines in blocks, in order."""
    found = classify_blocks(blocks)
    first = decisive({"": found})
    return {
        "cause": first.cause if first else "unknown",
        "first_strong": None if first is None else {"n": first.n, "text": first.text, "label": first.label, "cause": first.cause},
        "lines": [{"n": line.n, "text": line.text, "label": line.label, "cause": line.cause} for line in found],
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
    firsts: dict[str, Line] = {}
    for rank, line in sorted(lines, key=lambda entry: entry[1].n):
        firsts.setdefault(rank, line)
    return min(firsts.items(), key=lambda entry: (PROOF.index(entry[1].cause), entry[1].n, natural(entry[0])))


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
