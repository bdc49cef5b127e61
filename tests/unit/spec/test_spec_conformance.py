"""The phase machine is held to the model without Java: the graph that `machine.step` walks has the digest that TLC's graph had."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
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

DIGESTS = json.loads(conform.DIGESTS.read_text())
STORED = DIGESTS["graphs"]


QUICK = 6_700
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


def test_the_stored_graphs_are_of_the_model_that_is_here() -> None:
    assert conform.digest_of_model(tla.modules()["AegisPhase"]) == DIGESTS["model"]


def held(folder: Path) -> subprocess.CompletedProcess[str]:
    """What `spec/conform.py --code base2` says of a copy of the model and the machine."""
    path = os.pathsep.join(str(folder / name) if name == "master" else name for name in ("master", *sys.path) if name)
    argv = [sys.executable, str(folder / "spec" / "conform.py"), "--code", "base2"]
    return subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(SPEC, tmp_path / "spec", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(SPEC.parent / "services" / "master", tmp_path / "master", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def patch(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, (path.name, text.count(old))
    path.write_text(text.replace(old, new))


def test_a_copy_that_is_not_changed_is_held(copied: Path) -> None:
    done = held(copied)
    assert done.returncode == 0, done.stdout + done.stderr


LOST = 'Edge(T, X, Trigger.LOST, Counting.{}, "a pod is lost")'
PASSED = 'Edge(B, {}, Trigger.PASSED, Counting.ALIGN, "all PASS")'
READY = '    Edge(X, T, Trigger.READY, Counting.NONE, "every place filled, bootcheck passed before (a new pod runs its bootcheck in it)"),\n'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(LOST.format("UNCOUNTED"), LOST.format("NONE"), id="another count"),
        pytest.param(PASSED.format("R"), PASSED.format("T"), id="another target"),
        pytest.param(READY, "", id="no edge"),
    ],
)
def test_a_change_of_the_table_without_one_of_the_model_is_refused(copied: Path, old: str, new: str) -> None:
    patch(copied / "master" / "aegis_master" / "transitions.py", old, new)
    done = held(copied)
    assert done.returncode != 0
    assert "NOT the stored graph" in done.stdout or "no edge" in done.stderr, done.stdout + done.stderr


def test_a_change_of_the_model_without_one_of_the_machine_is_refused(copied: Path) -> None:
    patch(
        copied / "spec" / "AegisPhase.tla",
        'await phase = "Init"; phase := "Pending"; innerPhase',
        'await phase = "Init"; phase := "BootChecking"; innerPhase',
    )
    done = held(copied)
    assert done.returncode == 1
    assert "AegisPhase is not the model of the stored graphs" in done.stderr


def test_a_comment_is_no_change_of_the_model() -> None:
    text = tla.modules()["AegisPhase"]
    remarked = text.replace("variables\n", "variables \\* of the job\n", 1)
    assert remarked != text
    assert conform.digest_of_model(remarked) == conform.digest_of_model(text)


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
