"""The state graph of `AegisPhase`, twice: as TLC writes it, and as `machine.step` walks it. Both in one canonical form, so that they can be compared.

A graph is a set of edges (state, event, state); states that stay as they are give no edge. Its digest is the SHA-256 of the sorted edges.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Graph = dict[Any, set[tuple[str, Any]]]
"""State -> {(event, next state)}. States as `mapping.State`."""


@dataclass(frozen=True)
class Summary:
    """What is checked in for a configuration: sizes and digest of its graph."""

    states: int
    edges: int
    digest: str


def summary(graph: Graph) -> Summary:
    """Sizes and digest; independent of the order in which the graph was found."""
    names = {state: hashlib.sha256(repr(state).encode()).digest()[:16] for state in graph}
    lines = sorted(b"%s %s %s" % (names[a], event.encode(), names[b]) for a, steps in graph.items() for event, b in steps)
    digest = hashlib.sha256()
    for name in sorted(names.values()):
        digest.update(name)
    for line in lines:
        digest.update(line)
    return Summary(len(graph), len(lines), digest.hexdigest())


def _value(text: str) -> Any:
    text = text.strip()
    if text.startswith("("):
        return tuple(_value(part.split(":>")[1]) for part in text[1:-1].split("@@"))
    if text in ("TRUE", "FALSE"):
        return text == "TRUE"
    return int(text) if re.fullmatch(r"-?\d+", text) else text.strip('"')


def from_dot(path: Path) -> Graph:
    """TLC's `-dump dot,actionlabels`. The state before the job exists (phase Init) is left out."""
    nodes: dict[str, Any] = {}
    edges: list[tuple[str, str, str]] = []
    cache: dict[str, Any] = {}
    with path.open() as lines:
        for line in lines:
            edge = re.match(r'(-?\d+) -> (-?\d+) \[label="(\w+)"', line)
            if edge:
                edges.append((edge[1], edge[3], edge[2]))
                continue
            node = re.match(r'(-?\d+) \[label="(.*?)"(?:,style = filled)?\];?$', line.rstrip())
            if node:
                text = node[2].replace('\\"', '"').replace("\\\\", "\\")
                pairs = []
                for part in re.split(r"(?:^|\\n)/\\ ", text)[1:]:
                    name, value = part.split(" = ", 1)
                    if value not in cache:
                        cache[value] = _value(value.replace("\\n", " "))
                    pairs.append((name, cache[value]))
                nodes[node[1]] = tuple(sorted(pairs))
    graph: Graph = {}
    for key, state in nodes.items():
        if dict(state)["phase"] != "Init":
            graph[state] = set()
            nodes[key] = state
    for source, event, target in edges:
        a, b = nodes[source], nodes[target]
        if a in graph and a != b:
            graph[a].add((event, b))
    return graph


def explore(
    start: Any,
    model_state: Callable[[Any], Any],
    moves: Callable[[Any], Iterable[tuple[str, Any]]],
    check: Callable[[Any], str],
    *,
    depth_first: bool = False,
    most: int | None = None,
) -> Graph:
    """Through the code from `start`, breadth first or (other representatives, other paths) depth first.

    One state of the code stands for all that look the same to the model: the first one met. `moves(state)` gives (event name, next state of the
    code); `check(state)` a complaint or "", and is asked for every state that is reached, not only for those that stand for others. A walk that has
    met more than `most` states goes no further: it is not the graph that was expected.
    """
    graph: Graph = {}
    todo = deque([start])
    seen = {model_state(start)}
    while todo and (most is None or len(seen) <= most):
        state = todo.pop() if depth_first else todo.popleft()
        here = model_state(state)
        steps = graph.setdefault(here, set())
        for event, after in moves(state):
            there = model_state(after)
            complaint = check(after)
            if complaint:
                raise AssertionError(f"{event}: {complaint} in {there}, from {here}")
            if there != here:
                steps.add((event, there))
                if there not in seen:
                    seen.add(there)
                    todo.append(after)
    for state in todo:  # met, and not walked from
        graph.setdefault(model_state(state), set())
    return graph
