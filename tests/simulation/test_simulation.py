"""Many worlds in which everything fails, and what must hold in each; and that it is noticed when a rule is missing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
from simulation import coverage, run, test_rows, world
from simulation.faults import WEIGHTS
from simulation.mutants import MUTANTS, Mutant, applied
from simulation.scenes import TOLD

pytestmark = pytest.mark.timeout(900)
SEEDS = 500
SCENES = range(3)
"""Seeds of each told scene: who is first, how long messages take."""
RARE = 3
"""A fault that is drawn less often than this in `SEEDS` worlds would be no test."""


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> run.Summary:
    """The worlds of all seeds, or of the one that `--seed` names."""
    one = request.config.getoption("--seed", None)
    whole = run.Summary()
    for part in run.play(range(SEEDS) if one is None else [one]):
        whole.merge(part)
    return whole


def test_whatever_fails_every_job_ends_as_it_should(played: run.Summary) -> None:
    if played.bad:
        seed = min(played.bad)[0]
        pytest.fail(f"{len(played.bad)} of {played.seeds} seeds fail\n{run.tell(world.run(seed, story=True))}", pytrace=False)


def test_every_fault_happens_and_jobs_end_well_and_badly(played: run.Summary) -> None:
    if played.seeds < SEEDS:
        pytest.skip("one seed is replayed")
    assert [name for name in WEIGHTS if played.coverage.faults[name] < RARE] == []
    # every other end is that of a scene in `test_rows`
    assert {"Succeed", "Failed(budget)", "Failed(stopped)"} <= set(played.ends)


def test_every_row_and_event_is_taken_in_drawn_worlds_or_in_a_told_scene(played: run.Summary) -> None:
    if played.seeds < SEEDS:
        pytest.skip("one seed is replayed")
    assert [row for row in coverage.ROWS if not played.coverage.rows[row] and row not in test_rows.ROWS] == []
    assert [event for event in coverage.EVENTS if not played.coverage.events[event] and event not in test_rows.EVENTS] == []


KNOWN = (11, 12, 40)


def digest(seed: int) -> str:
    """Of all that happens in a world, to the last log line."""
    return hashlib.sha256("\n".join(world.run(seed, story=True).story).encode()).hexdigest()


def test_a_seed_is_the_same_world_again_in_any_process() -> None:
    """Whatever was played before in it, and in whichever order its sets and dicts lie."""
    code = f"from simulation.test_simulation import digest; print(*[digest(seed) for seed in reversed({KNOWN})])"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True, timeout=120)
    here = [digest(seed) for seed in KNOWN]
    assert other.stdout.split() == here[::-1]
    assert [digest(seed) for seed in KNOWN] == here
    assert len(set(here)) == len(KNOWN)


def test_a_seed_is_the_same_world_whether_or_not_worlds_are_kept() -> None:
    """The runner keeps them and ends; a replay takes each apart."""
    kept = list(run.play(KNOWN))
    replayed = run.Summary()
    for result in world.play(KNOWN):
        replayed.add(result)
    replayed.cpu = kept[0].cpu
    assert kept == [replayed]


def test_every_rule_has_a_scene() -> None:
    assert {mutant.name for mutant in MUTANTS} == set(TOLD)


@pytest.mark.parametrize("seed", SCENES)
@pytest.mark.parametrize("name", TOLD)
def test_a_scene_goes_well(name: str, seed: int) -> None:
    result = world.run(seed, True, TOLD[name])
    assert result.ok, run.tell(result)


@pytest.mark.parametrize("seed", SCENES)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_missing_rule_is_found(mutant: Mutant, seed: int) -> None:
    """By its own check, in the scene that needs the rule. A mutant that no longer fits the code it is put in finds nothing."""
    with applied(mutant):
        result = world.run(seed, True, TOLD[mutant.name])
    assert not any("TypeError" in problem for problem in result.problems), run.tell(result)
    assert any(problem.startswith(mutant.found_by) for problem in result.problems), run.tell(result)
