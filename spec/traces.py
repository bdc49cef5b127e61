"""Traces of real runs, held to the model: `python spec/traces.py FILE ...` validates what masters wrote (AEGIS_MASTER_TRACE) by TLC.

A file is NDJSON as `aegis_master.trace` describes; the files of all masters of a run belong together. For every job and master the lines are cut into
chains, each from where the state was read to where it is read anew. Held: a chain goes on where it stands; it starts where the model does, or in a
state to which some chain has stepped; every step is a step of the process of `AegisPhase` that its event is; every invariant of the model, its order
and its deadline hold in every state (`AegisTrace.tla`). The first bad step is printed. `--java-less` replays the steps through `machine.step` and
the mapping instead of TLC. Reads the files; writes nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mapping
import msgspec
import tla
from aegis_master import machine, trace, transitions
from aegis_proto.state import JobState

FEATURES = (
    *("mark", "check", "checks", "levels", "pairs", "stop", "move", "preempt", "suspend", "restart", "healthy", "plain", "port", "command", "era"),
    "suspect",
)
"""Everything that the model knows but a rest of the environment, which a real run does not promise, and `advise`, which a job says."""
Told = dict[str, Any]
"""A state as a trace tells it."""
Constants = tuple[int, int, int, str]
"""Workers, MaxRetry, MaxUncounted, actions.mode."""


@dataclass(frozen=True)
class Step:
    """One line. `place` of a pod, or -1."""

    event: str
    place: int
    args: Told
    after: Told
    where: str
    seen: tuple[mapping.State, str, str]
    """What the model sees of `after`."""


@dataclass
class Chain:
    """Steps of one master with one job, from where it read the state. `created`: it starts where every job does."""

    job: str
    where: str
    start: Told
    created: bool = False
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Complaint:
    """A step (or start) that is not allowed, and why."""

    where: str
    why: str
    changes: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.why}" + (f"\n    {self.changes}" if self.changes else "")


NO_LINE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, msgspec.MsgspecError)
"""What reading a line raises that is none of a trace."""


def key(told: Told) -> str:
    return json.dumps(told, sort_keys=True)


def changes(before: Told, after: Told) -> str:
    return ", ".join(f"{name} {before.get(name)} -> {value}" for name, value in after.items() if before.get(name) != value) or "nothing changes"


class Reader:
    """All files of one or more runs: `chains`, what is wrong with how they hang together, `skipped` steps of jobs too large to be told."""

    def __init__(self) -> None:
        self.chains: list[Chain] = []
        self.complaints: list[Complaint] = []
        self.skipped = 0
        self._open: dict[tuple[str, str, str], Chain] = {}
        self._reached: set[tuple[str, str]] = set()

    def read(self, files: Iterable[Path]) -> None:
        for path in files:
            with path.open(encoding="utf-8", errors="replace") as lines:
                for number, text in enumerate(lines, 1):
                    try:
                        line = json.loads(text)
                        if line["kind"] not in ("step", "void", "commit"):
                            raise ValueError(f"kind {line['kind']}")
                        if line["kind"] != "commit":
                            self._line((path.name, line.get("master", ""), line["job"]), line, f"{path.name}:{number}")
                    except NO_LINE as error:
                        raise tla.SpecError(f"{path}:{number}: no line that a master writes (AEGIS_MASTER_TRACE): {error!r}") from error
        for chain in self.chains:
            if (chain.job, key(chain.start)) in self._reached:
                continue
            chain.created = chain.start["seqNum"] == 1
            if not chain.created:
                self.complaints.append(Complaint(chain.where, "the master read a state to which nobody has stepped"))

    def _line(self, who: tuple[str, str, str], line: Told, where: str) -> None:
        begins = line["state"] if line["kind"] == "void" else line["before"]
        if "boot" not in begins:
            self.skipped += line["kind"] == "step"
            return
        if line["kind"] == "void" or who not in self._open:
            self._begin(who, begins, where)
        if line["kind"] == "void":
            return
        chain, after = self._open[who], line["after"]
        args, now = line["args"], seen(after)
        if "index" in args and args["index"] not in range(after["workerNum"]) and key(begins) != key(after):
            raise ValueError(f"{line['event']} of no place, {args['index']}")
        stands = chain.steps[-1].after if chain.steps else chain.start
        if key(stands) != key(begins):
            self.complaints.append(Complaint(where, "the step does not begin where the one before ended", changes(stands, begins)))
        self._reached.add((line["job"], key(after)))
        if constants(begins) == constants(after):
            chain.steps.append(Step(line["event"], args.get("index", -1), args, after, where, now))
            return
        # The model knows no change of maxRetry: nothing else may change, and what follows is a chain of the job as it is now.
        if line["event"] != "SettingChanged" or seen({**begins, "maxRetry": 0}) != seen({**after, "maxRetry": 0}):
            self.complaints.append(Complaint(where, f"{line['event']} changes what never changes", changes(begins, after)))
        self._begin(who, after, where)

    def _begin(self, who: tuple[str, str, str], start: Told, where: str) -> None:
        seen(start)  # which raises where it is no state
        self._open[who] = Chain(who[2], where, start)
        self.chains.append(self._open[who])


def constants(told: Told) -> Constants:
    return told["workerNum"], told["maxRetry"], max(1, told["maxUncounted"]), told["actions"]


def seen(told: Told) -> tuple[mapping.State, str, str]:
    """What the model sees: its variables, the order and the deadline that stand."""
    return mapping.model_state(mapping.state_of(told)), told["order"], told["deadline"]


def processes(step: Step) -> tuple[str, ...]:
    """Processes of the model that a step may be."""
    if step.event == "DeadlinePassed":
        return (f"{str(step.args.get('kind')).capitalize()}Deadline",)
    return mapping.PROCESSES.get(step.event, ())


# --- by TLC --------------------------------------------------------------------------------------------------------------------------


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return f"<<{', '.join(map(_literal, value))}>>"
    return str(value).upper() if isinstance(value, bool) else str(value) if isinstance(value, int) else json.dumps(value)


def _workers(count: int) -> list[str]:
    return [f"w{n:02}" for n in range(1, count + 1)]


@dataclass
class Data:
    """`AegisTraceData` of chains with the same constants, and the step behind each line of it."""

    workers: int
    states: dict[mapping.State, int] = field(default_factory=dict)
    chains: list[str] = field(default_factory=list)
    behind: list[list[tuple[Told, Step | None]]] = field(default_factory=list)

    def add(self, chain: Chain) -> int:
        """Steps that change something of what the model sees."""
        lines: list[str] = []
        behind: list[tuple[Told, Step | None]] = []
        state, order, deadline = last = seen(chain.start)
        if chain.created:
            init = tuple((name, "Init" if name == "phase" else ("Init",) * self.workers if name == "innerPhase" else v) for name, v in state)
            lines.append(self._line(init, (), "", "none", "none"))
            behind.append((chain.start, None))
        lines.append(self._line(state, ("B1_Create",), "", order, deadline))
        behind.append((chain.start, None))
        before = chain.start
        for step in chain.steps:
            now = step.seen
            if now != last:
                place = _workers(self.workers)[step.place] if step.place >= 0 else ""
                lines.append(self._line(now[0], processes(step), place, now[1], now[2]))
                behind.append((before, step))
            last, before = now, step.after
        self.chains.append(f"<<{', '.join(lines)}>>")
        self.behind.append(behind)
        return len(lines) - 1

    def _line(self, state: mapping.State, names: tuple[str, ...], place: str, order: str, deadline: str) -> str:
        number = self.states.setdefault(state, len(self.states) + 1)
        return f'<<{number}, {{{", ".join(map(_literal, names))}}}, "{place}", "{order}", "{deadline}">>'

    def module(self) -> str:
        """Text of `AegisTraceData`."""
        names = sorted([*mapping.HEAD, *mapping.POD])
        holders = {f"w{n}": name for n, name in enumerate(_workers(self.workers), 1)}
        rows = [_literal(tuple(holders.get(str(v), v) if name == "holder" else v for name, v in state)) for state in self.states]
        each = [(name, f"Places(s[{n}])" if name in mapping.POD else f"s[{n}]") for n, name in enumerate(names, 1)]
        return "\n".join(
            [
                "---- MODULE AegisTraceData ----",
                "EXTENDS AegisPhase, Sequences",
                f"Names == {_literal(tuple(_workers(self.workers)))}",
                "Places(t) == [w \\in Workers |-> t[CHOOSE n \\in DOMAIN Names : Names[n] = w]]",
                "Is(s) ==",
                *(f"  /\\ {name} = {value}" for name, value in each),
                "Becomes(s) ==",
                *(f"  /\\ {name}' = {value}" for name, value in each),
                f"States == <<{', '.join(rows)}>>" if len(rows) < 2 else "States == <<\n" + ",\n".join(rows) + ">>",
                "Chains == <<\n" + ",\n".join(self.chains) + ">>",
                "====",
                "",
            ]
        )

    def config(self, max_retry: int, max_uncounted: int, actions: str, texts: dict[str, str]) -> str:
        own, model = tla.properties_of(texts["AegisTrace"]), tla.properties_of(texts["AegisPhase"])
        chosen = ", ".join(f'"{name}"' for name in (*FEATURES, *(("advise",) if actions != "act" else ())))
        return (
            f"SPECIFICATION TraceSpec\nCONSTANTS\n  Workers = {{{', '.join(map(_literal, _workers(self.workers)))}}}\n  MaxRetry = {max_retry}\n"
            f"  MaxUncounted = {max_uncounted}\n  MaxPort = {transitions.PORT_RETRIES}\n  Features = {{{chosen}}}\n"
            f"INVARIANTS {' '.join(own['INVARIANTS'])} {' '.join(model['INVARIANTS'])}\nPROPERTIES {' '.join(own['ACTIONS'])}\n"
        )


def validate(chains: list[Chain], workers: int = 1) -> Iterator[tuple[Constants, int, int, tla.Result, Complaint | None]]:
    """TLC over all chains, those with the same constants in one run: (constants, chains, steps, result, first bad step)."""
    texts = tla.modules()
    groups: dict[Constants, list[Chain]] = defaultdict(list)
    for chain in chains:
        groups[constants(chain.start)].append(chain)
    for sizes, members in sorted(groups.items()):
        data = Data(sizes[0])
        steps = sum(data.add(chain) for chain in members)
        config = data.config(*sizes[1:], texts)
        result = tla.check("AegisTrace", config, texts | {"AegisTraceData": data.module()}, workers=workers, small=steps < 20_000)
        if result.error:
            raise tla.SpecError(f"AegisTrace: {result.error}")
        yield sizes, len(members), steps, result, _first_bad(data, members, result) if result.violated else None


def _first_bad(data: Data, members: list[Chain], result: tla.Result) -> Complaint:
    at = [int(n) for n in re.findall(r"^/\\ at = (\d+)", result.output, re.M)]
    chain = [int(n) for n in re.findall(r"^/\\ chain = (\d+)", result.output, re.M)]
    before, step = data.behind[chain[-1] - 1][at[-1] - 1]
    if step is None:
        return Complaint(members[chain[-1] - 1].where, f"{result.violated} does not hold where it starts")
    said = "no step of the model" if result.violated == "StepOfTheModel" else f"{result.violated} does not hold"
    who = f" of w{step.place}" if step.place >= 0 else ""
    return Complaint(step.where, f"{said}: {step.event}{who} in {before['phase']}, {' or '.join(processes(step)) or 'no process'}",
                     changes(before, step.after))  # fmt: skip


# --- without Java ----------------------------------------------------------------------------------------------------------------------


def replay(chains: list[Chain]) -> list[Complaint]:
    """Without Java: every step is one that `machine.step` takes from there, under the names of the mapping, which `conform.py` holds to the model."""
    complaints = []
    for chain in chains:
        before = chain.start
        if chain.created and seen(before) != seen(trace.variables(_created(before))):
            complaints.append(Complaint(chain.where, "a job does not start like this", changes(trace.variables(_created(before)), before)))
        for step in chain.steps:
            now, last = step.seen, seen(before)
            if now != last and now not in _next(mapping.state_of(before), processes(step), step.place):
                complaints.append(Complaint(step.where, f"no step of the code: {step.event} in {before['phase']}", changes(before, step.after)))
                break
            before = step.after
    return complaints


def _created(told: Told) -> JobState:
    return machine.create("traced", mapping.spec_of(*constants(told)), "u", told["era"], mapping.NOW)


def _next(state: JobState, names: tuple[str, ...], place: int) -> Iterator[tuple[mapping.State, str, str]]:
    features = frozenset(FEATURES)
    for name, event in mapping.events_of(state, features):
        if name in names and getattr(event, "index", -1) == place:
            for same, heard in mapping.variants(state, event, features):
                for now in mapping.times(same, heard, features):
                    yield seen(trace.variables(machine.step(same, heard, now)[0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--java-less", action="store_true", help="replay through machine.step instead of TLC")
    options = parser.parse_args()
    if missing := [str(path) for path in options.files if not path.is_file()]:
        parser.error(f"no such file: {' '.join(missing)}")
    reader = Reader()
    reader.read(options.files)
    chains, complaints = [chain for chain in reader.chains if chain.steps or chain.created], reader.complaints
    if not any(chain.steps for chain in chains):
        for complaint in (*complaints[:20], f"no step in {len(options.files)} files"):
            print(f"FAILED {complaint}", file=sys.stderr)
        return 1
    jobs = len({chain.job for chain in chains})
    steps = sum(len(chain.steps) for chain in chains)
    print(f"{len(options.files)} files: {jobs} jobs, {len(chains)} chains, {steps} steps; {reader.skipped} of jobs too large")
    if options.java_less:
        complaints += replay(chains)
        if not complaints:
            print("all are steps of the code")
    else:
        print(f"{'workers':>7}{'MaxRetry':>9}{'MaxUncounted':>13}{'actions':>9}{'chains':>8}{'steps seen':>11}{'states':>8}{'seconds':>9}  result")
        for (workers, retry, uncounted, actions), members, seen_steps, result, bad in validate(chains):
            said = "steps of the model" if bad is None else "NOT of the model"
            print(
                f"{workers:>7}{retry:>9}{uncounted:>13}{actions:>9}{members:>8}{seen_steps:>11}{result.distinct:>8}{result.seconds:>9.1f}  {said}",
                flush=True,
            )
            complaints += [bad] if bad is not None else []
    for complaint in complaints[:20]:
        print(f"FAILED {complaint}", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (tla.SpecError, OSError) as error:
        print(f"FAILED {error}", file=sys.stderr)
        sys.exit(1)
