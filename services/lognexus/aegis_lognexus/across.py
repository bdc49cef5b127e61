"""A failure beside the earlier ones of its job: what they share, against chance. Pure.

The same machine, the same rank on other machines, the same line; where the machines differ, a label that they share (rack, switch, row: whatever
the daemons were told); and the time of day. What the parts of the network have in common over all jobs is netmon's (`correlate`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import comb, prod

from aegis_proto.messages import Verdict

CHANCE = 0.02
"""What chance alone would bring more often than this is not told."""
LEAST = 3
"""Failures, and machines, before a label or a time of day is looked for."""
DAY = 86_400.0
WINDOW = 3_600.0
"""Seconds within which failures of several days count as of the same time."""
NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
HANG = "hang"
"""State of a verdict at the mark: the failure that may follow has one of its own."""


def compare(now: Verdict, earlier: Sequence[Verdict], labels: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """What `now` shares with the verdicts on earlier failures of the job, a sentence each. `labels`: of the machines of the job."""
    before = [verdict for verdict in earlier if verdict.incarnation < now.incarnation and verdict.state != HANG and verdict.cause != "preemption"]
    if not before or now.cause == "preemption":
        return ()
    every = [*before, now]
    return (*_nodes(every), *_ranks(every), *_lines(every), *_labels(every, labels), *_time_of_day(every))


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[-8:]))


def _nodes(every: Sequence[Verdict]) -> Iterator[str]:
    for node in every[-1].nodes:
        seen = [verdict.incarnation for verdict in every if node in verdict.nodes]
        if len(seen) >= 2:
            yield f"{node} is suspect in {len(seen)} of {len(every)} failures of this job (incarnations {_list(seen)})"


def _ranks(every: Sequence[Verdict]) -> Iterator[str]:
    for suspect in every[-1].suspects[:4]:
        rank = suspect.rpartition("/")[2]
        seen = [verdict for verdict in every if rank in {each.rpartition("/")[2] for each in verdict.suspects}]
        nodes = [verdict.nodes for verdict in seen if verdict.nodes]
        if len(seen) < 2 or any(a == b for a, b in pairwise(nodes)):
            continue
        moved = ", on other machines: its work or data is suspect, not a machine" if len(nodes) == len(seen) else ""
        yield f"{rank} is suspect in {len(seen)} of {len(every)} failures (incarnations {_list([verdict.incarnation for verdict in seen])}){moved}"


def _lines(every: Sequence[Verdict]) -> Iterator[str]:
    line = _plain(every[-1].firstLine)
    seen = [verdict.incarnation for verdict in every if line and _plain(verdict.firstLine) == line]
    if len(seen) >= 2:
        same = "the same line each time, it will come again" if len(seen) == len(every) else "the same line"
        yield f"{same} (incarnations {_list(seen)})"


def _plain(line: str) -> str:
    """Whose line it is and its numbers do not count."""
    return NUMBERS.sub("#", line.split(": ", 1)[-1])


def _labels(every: Sequence[Verdict], labels: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    suspects = {node for verdict in every for node in verdict.nodes if node in labels}
    if len(suspects) < LEAST or sum(bool(verdict.nodes) for verdict in every) < LEAST:
        return
    keys = {key for node in suspects for key in labels[node]}
    for key in sorted(keys):
        value, hits = Counter(labels[node].get(key, "") for node in suspects).most_common(1)[0]
        there = sum(1 for each in labels.values() if each.get(key) == value)
        if not value or hits < LEAST:
            continue
        chance = _at_least(hits, len(suspects), there, len(labels)) * len(keys)
        if chance <= CHANCE:
            names = ", ".join(sorted(node for node in suspects if labels[node].get(key) == value)[:8])
            yield f"{names} share {key} {value}, where {there} of the job's {len(labels)} machines are (by chance: {chance:.1%})"


def _at_least(hits: int, drawn: int, there: int, of: int) -> float:
    """Chance that of `drawn` machines out of `of`, `hits` or more are among `there`: hypergeometric."""
    total = comb(of, drawn)
    return sum(comb(there, k) * comb(of - there, drawn - k) for k in range(hits, min(drawn, there) + 1)) / total if total else 1.0


def _time_of_day(every: Sequence[Verdict]) -> Iterator[str]:
    times = sorted(verdict.at / 1000 % DAY for verdict in every)
    days = {int(verdict.at / 1000 // DAY) for verdict in every}
    if len(every) < LEAST or len(days) < len(every):  # several of one day follow each other
        return
    gaps = [(later - earlier) % DAY for earlier, later in zip(times, [*times[1:], times[0]], strict=True)]
    widest = max(range(len(gaps)), key=gaps.__getitem__)
    span = DAY - gaps[widest]
    chance = len(every) * prod([max(span, 60.0) / DAY] * (len(every) - 1))
    if span <= WINDOW and chance <= CHANCE:
        begin = times[(widest + 1) % len(times)]
        end = begin + span
        clock = [f"{int(at % DAY // 3600):02d}:{int(at % 3600 // 60):02d}" for at in (begin, end)]
        yield f"{len(every)} failures on {len(days)} days, all between {clock[0]} and {clock[1]} UTC (by chance: {chance:.1%})"
