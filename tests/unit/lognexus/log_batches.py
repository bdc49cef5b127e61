"""Batches of lines as agents send them, and a plain reading of the store to compare with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
from aegis_lognexus.store.blocks import segment, segment_numbers
from aegis_proto.logs import LogBatch, LogLine, StoredLine

T0 = 1_796_000_000_000
JOB = "digits-abc123"


def batch(
    first: int, *texts: str, rank: int = 0, kind: str = "out", boot: str = "b1", incarnation: int = 0, at: int = T0, dropped: int = 0
) -> LogBatch:
    lines = tuple(LogLine(at + k, incarnation, rank, kind, text) for k, text in enumerate(texts))  # type: ignore[arg-type]
    return LogBatch("uid", 1, boot, first, lines, "n1", dropped)


def stream(workers: int = 3, batches: int = 40, size: int = 5, seed: int = 1) -> list[tuple[str, LogBatch]]:
    """Messages of several workers, mixed, with ranks, kinds, incarnations and lines in parts."""
    rng = random.Random(seed)
    numbers = dict.fromkeys(range(workers), 1)
    out: list[tuple[str, LogBatch]] = []
    open_part: dict[tuple[int, int], int] = {}
    for step in range(batches):
        worker = rng.randrange(workers)
        lines = []
        for k in range(size):
            rank = 2 * worker + rng.randrange(2)
            part = open_part.get((worker, rank), 0)
            more = rng.random() < 0.15
            open_part[worker, rank] = part + 1 if more else 0
            text = rng.choice(["step {n} loss 2.3", 'say "hi" \\ {n}', "漢字 {n}", "\x1b[31mred {n}", "ERROR at {n}"]).format(n=step * size + k)
            lines.append(LogLine(T0 + 1000 * step + k, step // 15, rank, "out", text, part, more))
        out.append((f"w{worker}", LogBatch("uid", 1, "b1", numbers[worker], tuple(lines), f"n{worker}")))
        numbers[worker] += size
    return out


def kept(folder: Path, job: str = JOB) -> list[StoredLine]:
    """Every line of the files of a job, read as any collector would."""
    out: list[StoredLine] = []
    for number in segment_numbers(folder / "jobs" / job):
        data = segment(folder / "jobs" / job, number).read_bytes()
        assert not data or data.endswith(b"\n")
        out += [msgspec.json.decode(line, type=StoredLine) for line in data.splitlines()]
    return out


def expected(messages: Sequence[tuple[str, LogBatch]]) -> dict[tuple[str, int], list[str]]:
    """(worker, rank) -> texts that are complete, joined."""
    out: dict[tuple[str, int], list[str]] = {}
    open_: dict[tuple[str, int], str] = {}
    for pod, sent in messages:
        for line in sent.lines:
            key = pod, line.rank
            text = open_.pop(key, "") + line.text
            if line.more:
                open_[key] = text
            else:
                out.setdefault(key, []).append(text)
    return out


def told(lines: Sequence[StoredLine]) -> dict[tuple[str, int], list[str]]:
    out: dict[tuple[str, int], list[str]] = {}
    for line in lines:
        out.setdefault((line.worker, line.rank), []).append(line.message)
    return out
