"""The phase machine is held to the model without Java: the graph that `machine.step` walks has the digest that TLC's graph had."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

SPEC = Path(__file__).resolve().parents[3] / "spec"
sys.path.insert(0, str(SPEC))

import conform  # noqa: E402
import graph  # noqa: E402
import mapping  # noqa: E402
import mutate  # noqa: E402
import tla  # noqa: E402

STORED = json.loads(conform.DIGESTS.read_text())


QUICK = 6_200
"""States of a graph that is walked here; the larger ones are walked by `spec/conform.py --code`."""


@pytest.mark.parametrize("name", sorted(name for name, stored in STORED.items() if stored["states"] < QUICK))
def test_the_code_walks_the_graph_that_the_model_checker_found(name: str) -> None:
    found = graph.summary(conform.code_graph((conform.CONFIGS / f"{name}.cfg").read_text()))
    assert {"states": found.states, "edges": found.edges, "digest": found.digest} == STORED[name]


def test_every_configuration_has_a_stored_digest() -> None:
    assert {path.stem for path in conform.CONFIGS.glob("*.cfg")} == set(STORED)


def test_the_mapping_has_a_rule_for_every_variable_of_the_model_and_no_other() -> None:
    text = tla.modules()["AegisPhase"]
    translation = text.split("BEGIN TRANSLATION")[1]
    variables = {name.strip() for name in translation.split("VARIABLES")[1].split("(*")[0].replace("\n", " ").split(",")}
    assert variables == set(mapping.HEAD) | set(mapping.POD)


def test_every_configuration_checks_every_invariant() -> None:
    assert tla.incomplete(tla.configs(), tla.modules()) == []


def test_a_configuration_that_forgets_an_invariant_is_noticed() -> None:
    forgetful = [c if c.name != "AegisPhase" else tla.Config(c.name, c.module, c.invariants[1:], c.properties) for c in tla.configs()]
    assert tla.incomplete(forgetful, tla.modules()) == ["AegisPhase.cfg leaves out invariant ValidPhase"]


def test_every_seeded_fault_still_fits_its_model() -> None:
    for mutant in mutate.load():
        before = (SPEC / mutant.file).read_text()
        assert mutate.seeded(mutant, before) != before, mutant.name


def test_an_edge_that_only_one_side_has_changes_the_digest() -> None:
    code = conform.code_graph((conform.CONFIGS / "base2.cfg").read_text())
    whole = graph.summary(code)
    state = next(state for state, steps in code.items() if steps)
    code[state] = set(list(code[state])[1:])
    assert graph.summary(code).digest != whole.digest
