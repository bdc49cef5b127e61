"""Many worlds in which everything fails, and what must hold in each; and that it is noticed when a rule is missing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
from simulation import run, world
from simulation.faults import WEIGHTS
from simulation.mutants import MUTANTS, Mutant, applied

pytestmark = pytest.mark.timeout(900)
SEEDS = 500
WITHIN = 2000
"""Seeds within which a missing rule must have been found; most are within 50."""
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


def test_every_fault_happens_and_every_end_is_reached(played: run.Summary) -> None:
    if played.seeds < SEEDS:
        pytest.skip("one seed is replayed")
    assert [name for name in WEIGHTS if played.coverage.faults[name] < RARE] == []
    assert {"Succeed", "Failed(budget)", "Failed(boot)", "Failed(placing)", "Failed(stopped)"} <= set(played.ends)


TOLD = (11, 12, 40)


def digest(seed: int) -> str:
    """Of all that happens in a world, to the last log line."""
    return hashlib.sha256("\n".join(world.run(seed, story=True).story).encode()).hexdigest()


def test_a_seed_is_the_same_world_again_in_any_process() -> None:
    """Whatever was played before in it, and in whichever order its sets and dicts lie."""
    code = f"from simulation.test_simulation import digest; print(*[digest(seed) for seed in reversed({TOLD})])"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True, timeout=120)
    here = [digest(seed) for seed in TOLD]
    assert other.stdout.split() == here[::-1]
    assert [digest(seed) for seed in TOLD] == here
    assert len(set(here)) == len(TOLD)


def test_a_seed_is_the_same_world_whether_or_not_worlds_are_kept() -> None:
    """The runner keeps them and ends; a replay takes each apart."""
    kept = list(run.play(TOLD))
    replayed = run.Summary()
    for result in world.play(TOLD):
        replayed.add(result)
    replayed.cpu = kept[0].cpu
    assert kept == [replayed]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_missing_rule_is_found(mutant: Mutant) -> None:
    with applied(mutant):
        for result in world.play(range(WITHIN)):
            if any(problem.startswith(mutant.found_by) for problem in result.problems):
                print(f"{mutant.name}: seed {result.seed}: {result.problems[0]}")
                return
    pytest.fail(f"{mutant.name}: not found in {WITHIN} seeds")
