"""Model against code, exhaustively: every edge of TLC's graph is a step of `machine.step`, and every step of the code is an edge of the model.

`python spec/conform.py NAME ...` dumps the graph of `conform/NAME.cfg` by TLC, walks the code, compares edge by edge, and prints both.
`--write` also stores sizes and digests in `conform/digests.json`, with a digest of the model they are of, and for each row of the transition table
the smallest graph that takes it; `--code` walks the code alone and holds it to what is stored, without Java: a change of the code without one of the
model shows in a graph, a change of the model without one of the code in the digest of the model. `make test` does that for the smaller ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import graph as graphs
import mapping
import tla
from aegis_master import machine, transitions
from aegis_proto.phases import Phase
from aegis_proto.state import JobState

CONFIGS = tla.HERE / "conform"
DIGESTS = CONFIGS / "digests.json"


def digest_of_model(text: str) -> str:
    """SHA-256 of what `AegisPhase` does: its definitions and its algorithm, without comments, spaces and the translation of it."""
    said = text.split("\\* BEGIN TRANSLATION", maxsplit=1)[0]
    algorithm = said.index("(* --algorithm")
    said = re.sub(r"\(\*.*?\*\)", "", said[:algorithm], flags=re.S) + said[algorithm:]
    return hashlib.sha256("".join(re.sub(r"\\\*.*", "", said).split()).encode()).hexdigest()


def constants(config_text: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+) = (\{[^}]*\}|\w+)", config_text))


def row(edge: transitions.Edge) -> str:
    """Name of a row of the transition table."""
    return f"{edge.source or ''}->{edge.target} {edge.trigger}"


def code_graph(config_text: str, rows: set[str] | None = None, depth_first: bool = False, most: int | None = None) -> graphs.Graph:
    """The graph that the code walks under the constants of a configuration. `rows` gets the rows of the transition table that it takes.

    `most`: states that are expected; a graph of more is not walked to its end."""
    said = constants(config_text)
    features = frozenset(re.findall(r'"(\w+)"', said["Features"]))
    workers = len(re.findall(r"\w+", said["Workers"]))
    spec = mapping.spec_of(workers, int(said["MaxRetry"]), int(said["MaxUncounted"]), "advise" if "advise" in features else "act")
    port_retries, transitions.PORT_RETRIES = transitions.PORT_RETRIES, int(said["MaxPort"])
    taken, find = set() if rows is None else rows, transitions.find

    def found(source: Phase | None, target: Phase, trigger: transitions.Trigger) -> transitions.Edge | None:
        if (edge := find(source, target, trigger)) is not None:
            taken.add(row(edge))
        return edge

    transitions.find = found

    # A feature that is off keeps its variables at rest in the model; the code always keeps them.
    hidden: dict[str, mapping.Value] = {"holder": "none", "evidence": 0, "moved": False} if "move" not in features else {}
    hidden |= {"placed": (False,) * workers} if "plain" not in features else {}

    def model_state(state: JobState) -> mapping.State:
        return mapping.model_state(state, hidden)

    def moves(state: JobState) -> Iterator[tuple[str, JobState]]:
        for name, event in mapping.events_of(state, features):
            for same, heard in mapping.variants(state, event, features):
                for now in mapping.times(same, heard, features):
                    try:
                        after = machine.step(same, heard, now)[0]
                    except Exception as error:
                        raise AssertionError(f"{name} {heard} raises {error!r} in {model_state(state)}") from error
                    if after is not same:  # else it was dropped
                        yield name, after

    def check(state: JobState) -> str:
        if state.head.order.phase.value != mapping.order_of(state):
            return f"order {state.head.order.phase.value}, the model says {mapping.order_of(state)}"
        stands = state.head.deadline.kind if state.head.deadline else "none"
        return "" if stands == mapping.deadline_of(state) else f"deadline {stands}, the model says {mapping.deadline_of(state)}"

    try:
        return graphs.explore(machine.create("model", spec, "u", "a", mapping.NOW), model_state, moves, check, depth_first=depth_first, most=most)
    finally:
        transitions.PORT_RETRIES, transitions.find = port_retries, find


def model_graph(config_text: str) -> graphs.Graph:
    with tempfile.TemporaryDirectory(prefix="aegis-graph-") as folder:
        result = tla.check("AegisPhase", config_text, tla.modules(), workers=1, extra=("-dump", "dot,actionlabels", "@/graph"), keep=Path(folder))
        if not result.passed:
            raise tla.SpecError(f"AegisPhase: {result.violated or result.error}")
        return graphs.from_dot(Path(folder) / "graph.dot")


def show(state: mapping.State, other: mapping.State) -> str:
    return ", ".join(f"{name} {value} -> {dict(other)[name]}" for name, value in state if dict(other)[name] != value)


def differences(model: graphs.Graph, code: graphs.Graph) -> list[str]:
    """One line for each edge that only one side has, from states that both have; nearest to the start first."""
    lines = []
    for state, steps in code.items():
        if state not in model:
            continue
        for who, only in (("code only", steps - model[state]), ("model only", model[state] - steps)):
            for event, target in sorted(only, key=repr):
                live = {name: value for name, value in state if value not in (False, 0, "", "none", "no") and not isinstance(value, tuple)}
                lists = {name: value for name, value in state if isinstance(value, tuple) and any(v not in (False, 0, "", "no") for v in value)}
                lines.append(f"{who}: {event}: {show(state, target)}   IN {live} {lists}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--write", action="store_true", help="store sizes and digests")
    parser.add_argument("--code", action="store_true", help="no Java: walk the code, compare with the stored digests")
    parser.add_argument("--limit", type=int, default=12, help="differences to print")
    options = parser.parse_args()
    if options.write and (options.names or options.code):
        parser.error("--write takes all graphs, of the model")
    if unknown := tla.unknown("graph", options.names, [path.stem for path in CONFIGS.glob("*.cfg")]):
        parser.error(unknown)
    stored: dict[str, Any] = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {"model": "", "graphs": {}}
    bad = 0
    model_digest = digest_of_model(tla.modules()["AegisPhase"])
    if options.code and stored["model"] != model_digest:
        print("AegisPhase is not the model of the stored graphs: run `spec/conform.py --write`", file=sys.stderr)
        bad += 1
    fresh: dict[str, dict[str, int | str]] = {}
    taken: dict[str, set[str]] = {}
    for path in sorted(CONFIGS.glob("*.cfg")):
        if options.names and path.stem not in options.names:
            continue
        text = path.read_text()
        if options.code:
            known = stored["graphs"].get(path.stem, {})
            found = asdict(graphs.summary(code_graph(text, most=known.get("states"))))
            same = found == known
            bad += not same
            print(f"{path.stem}: {found['states']:,} states, {found['edges']:,} edges; {'as stored' if same else 'NOT the stored graph'}", flush=True)
            continue
        model, code = model_graph(text), code_graph(text, taken.setdefault(path.stem, set()))
        lines = differences(model, code)
        a, b = graphs.summary(model), graphs.summary(code)
        # Depth first other states of the code stand for those of the model: what the model leaves out must make no difference.
        same = not lines and a == b and b == graphs.summary(code_graph(text, depth_first=True))
        bad += not same
        print(
            f"{path.stem}: model {a.states:,} states, {a.edges:,} edges; code {b.states:,}, {b.edges:,}; {'the same graph' if same else 'DIFFERENT'}"
        )
        for line in lines[: options.limit]:
            print("  " + line)
        if len(lines) > options.limit:
            print(f"  ... {len(lines) - options.limit} more")
        fresh[path.stem] = asdict(a)
    if options.write and not bad:
        by_size = sorted(fresh, key=lambda name: int(fresh[name]["states"]))
        rows = {row(edge): next((name for name in by_size if row(edge) in taken[name]), "") for edge in transitions.EDGES}
        DIGESTS.write_text(json.dumps({"model": model_digest, "graphs": fresh, "rows": rows}, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except tla.SpecError as error:
        print(f"FAILED {error}", file=sys.stderr)
        sys.exit(1)
