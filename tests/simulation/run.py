"""Play many seeds, or replay one: `python -m simulation.run --seed 7 -v`, `python -m simulation.run --seeds 20000 --processes 2`."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec
from simulation import world
from simulation.coverage import Coverage
from simulation.faults import WEIGHTS

CHUNK = 100
"""Seeds that one child process plays: it keeps what is left of each world, about 1 MB, and starts with cold memory."""
SAY = 1000
"""Seeds after which the runner says how far it is."""


@dataclass
class Summary:
    """What many seeds were."""

    seeds: int = 0
    bad: list[tuple[int, str]] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    coverage: Coverage = field(default_factory=Coverage)
    virtual: float = 0.0
    steps: int = 0
    commits: int = 0
    counted: int = 0
    cpu: float = 0.0
    """Seconds of processor time."""

    def add(self, result: world.Result) -> None:
        self.seeds += 1
        self.ends[f"{result.phase}({result.reason})" if result.reason else result.phase] += 1
        self.coverage.merge(result.coverage)
        self.virtual += result.virtual
        self.steps += result.steps
        self.commits += result.commits
        self.counted += result.counted
        self.bad += [(result.seed, problem) for problem in result.problems[:1]]

    def merge(self, other: Summary) -> None:
        self.seeds += other.seeds
        self.bad += other.bad
        self.ends += other.ends
        self.coverage.merge(other.coverage)
        self.virtual += other.virtual
        self.steps += other.steps
        self.commits += other.commits
        self.counted += other.counted
        self.cpu += other.cpu


def play(seeds: Iterable[int], processes: int = 1) -> Iterator[Summary]:
    """Play all seeds, `CHUNK` in one child process after the other, `processes` of them side by side; a summary of each chunk as it is done.

    The children end without a cleanup: to take worlds apart that end in the middle of everything costs as much as to play every eighth of them.
    """
    fork = multiprocessing.get_context("fork")
    todo, running, ended = iter(chunks(seeds)), dict[Connection, BaseProcess](), list[BaseProcess]()
    try:
        while True:
            while len(running) < processes and (chunk := next(todo, None)):
                ours, theirs = fork.Pipe(duplex=False)
                child = fork.Process(target=_child, args=(theirs, chunk), daemon=True)
                child.start()
                theirs.close()
                running[ours] = child
            while ended:  # not before the next ones have begun: it takes a while until all memory of a child is gone
                ended.pop().join()
            if not running:
                return
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                child = running.pop(ready)
                try:
                    yield ready.recv()
                except EOFError:
                    raise RuntimeError("a process that played seeds has died") from None
                finally:
                    ended.append(child)
    finally:
        for child in running.values():
            child.kill()


def _child(pipe: Connection, seeds: Sequence[int]) -> None:
    """What a child process does. It never returns: nothing is cleaned up, nothing is flushed twice."""
    code = 1
    try:
        summary, began = Summary(), time.process_time()
        for result in world.play_and_keep(seeds):
            summary.add(result)
        summary.cpu = time.process_time() - began
        pipe.send(summary)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    left = iter(seeds)
    while chunk := list(itertools.islice(left, CHUNK)):
        yield chunk


def replay_line(seed: int) -> str:
    return f"replay: python -m simulation.run --seed {seed} -v    (in tests/; or pytest tests/simulation -k whatever_fails --seed {seed})"


def tell(result: world.Result) -> str:
    """A failing seed for people: its story, what is wrong, how to see it again."""
    faults = "\n".join(f"  {at:7.2f}  {name}" for at, name in result.faults)
    wrong = "\n".join(f"  {problem}" for problem in result.problems)
    story = "\n".join(result.story)
    return f"seed {result.seed}\n{story}\n\nfaults drawn:\n{faults}\nwrong:\n{wrong}\n{replay_line(result.seed)}"


def show(summary: Summary, took: float, processes: int) -> None:
    each = 1000 * summary.cpu / max(1, summary.seeds)
    print(f"{summary.seeds} seeds in {took:.1f} s with {processes} processes, {each:.0f} ms of processor time a seed")
    print(f"  {summary.virtual / 3600:.1f} virtual hours, {summary.steps} steps, {summary.commits} commits, {summary.counted} counted failures")
    print("  ends: " + ", ".join(f"{name} {n}" for name, n in summary.ends.most_common()))
    print("\n".join(summary.coverage.lines(tuple(WEIGHTS))))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.run", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one and print its story")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: with the logs of every process")
    parser.add_argument("--trace", default="", metavar="FILE", help="with --seed: write the traces of all masters there, one JSON object a line")
    parser.add_argument("--seeds", type=int, default=20_000, help="how many")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stop-at", type=int, default=10, help="stop after so many failing seeds")
    options = parser.parse_args(argv)
    if options.seed is None and (options.verbose or options.trace):
        parser.error("-v and --trace are of one world: name it by --seed")
    if not Path(options.trace).parent.is_dir():
        parser.error(f"--trace: no folder {Path(options.trace).parent}")
    if options.seed is not None:
        result = world.run(options.seed, story=True)
        print(tell(result) if options.verbose or not result.ok else "\n".join(line for line in result.story if "[" not in line[:40]))
        if options.trace:
            lines = [{"master": who, **line} for who, trace in result.traces.items() for line in trace]
            Path(options.trace).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        print(f"{result.phase} {result.reason} after {result.virtual:.1f} virtual seconds, {result.steps} steps, {result.commits} commits")
        return 0 if result.ok else 1
    summary, began = Summary(), time.monotonic()
    for part in play(range(options.first, options.first + options.seeds), max(1, options.processes)):
        summary.merge(part)
        for seed, problem in part.bad:
            print(f"FAILED seed {seed}: {problem}\n  {replay_line(seed)}", flush=True)
        if summary.seeds // SAY > (summary.seeds - part.seeds) // SAY:
            print(f"{summary.seeds} of {options.seeds} seeds after {time.monotonic() - began:.0f} s, {len(summary.bad)} failed", flush=True)
        if len(summary.bad) >= options.stop_at:
            break
    show(summary, time.monotonic() - began, options.processes)
    if summary.bad:
        print(tell(world.run(min(summary.bad)[0], story=True)))
    return 1 if summary.bad else 0


if __name__ == "__main__":
    sys.exit(main())
