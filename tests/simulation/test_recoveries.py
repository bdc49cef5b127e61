"""Single recoveries as scenes: what fails is told, and how the job comes out of it. Each was a defect that many worlds had shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from aegis_proto import messages, subjects
from aegis_proto.messages import Era, Fact
from aegis_proto.phases import FactKind, Phase
from simulation import run, world
from simulation.scenes import a_machine_is_lost_and_a_victim_is_heard_first, fails, machine_of, phase_is, told, when, when_it_runs
from simulation.world import Options, Result, World

SEEDS = range(3)


def played(seed: int, play: Callable[[World], None], **options: object) -> Result:
    """A job of three workers, two masters, one spare machine, maxRetry 2; all checks hold."""
    result = world.run(seed, True, told(play, **options))
    assert result.ok, run.tell(result)
    return result


@pytest.mark.parametrize("seed", SEEDS)
def test_a_machine_that_never_returns_costs_one_failure_and_its_worker_runs_elsewhere(seed: int) -> None:
    def play(scene: World) -> None:
        def off() -> None:
            scene.check.harmed(60.0)
            machine_of(scene, "w1").power_off()

        when_it_runs(scene, off)

    result = played(seed, play)
    assert (result.phase, result.counted) == ("Succeed", 1), run.tell(result)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_count_of_a_silent_death_goes_to_the_dead_and_not_to_the_victim_heard_first(seed: int) -> None:
    result = played(seed, a_machine_is_lost_and_a_victim_is_heard_first)
    moved = [line for line in result.story if "kind=moved" in line]
    assert len(moved) == 1 and "goes to w1" in moved[0], run.tell(result)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_operators_word_frees_the_place_of_an_attempt_that_is_lost_already(seed: int) -> None:
    """The judge was faster than the operator: the news is about the attempt before."""

    def play(scene: World) -> None:
        def off() -> None:
            scene.check.harmed(60.0)
            machine = machine_of(scene, "w1")
            machine.power_off()
            look(machine.name)

        def look(node: str) -> None:
            state = scene.check.state
            if state is not None and state.pod(1).attempt == 2 and not state.pod(1).present:
                fact = Fact(FactKind.NODE_LOST, scene.uid, 1, node, at=scene.server.now_ms, who="ops")
                scene.server.handle(None, subjects.fact(scene.job, "w1"), messages.encode(fact), None, "")
            else:
                scene.later(0.2, look, node)

        when_it_runs(scene, off)

    master = Options.draw(__import__("random").Random(0)).master
    judge = replace(master.owner.judge, fence=1000.0)
    result = played(seed, play, master=replace(master, owner=replace(master.owner, judge=judge)))
    assert (result.phase, result.counted) == ("Succeed", 1), run.tell(result)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_restored_to_another_owner_is_taken_up_by_him_and_nothing_is_counted(seed: int) -> None:
    """The heads that masters and job controllers remember are younger than those of the store."""

    def play(scene: World) -> None:
        kept: list[object] = []

        def backup() -> None:
            kept.extend((scene.server.backup(), scene.check.backup()))
            state = scene.check.state
            assert state is not None
            scene.end_process(scene.replicas[state.head.owner.replica].process)
            scene.later(1.0, scene.start_replica, state.head.owner.replica)

        def restore() -> None:
            scene.server.stop()
            scene.server.restore(kept[0])  # type: ignore[arg-type]
            scene.check.restored(kept[1])  # type: ignore[arg-type]
            scene.server.start()
            scene.server.handle(None, subjects.ERA, messages.encode(Era("era2", reason="restored")), None, "")

        when_it_runs(scene, backup, after=0.5)
        when_it_runs(scene, restore, after=6.5)

    result = played(seed, play, run_for=(30.0, 30.0))
    assert (result.phase, result.counted) == ("Succeed", 0), run.tell(result)
    assert result.virtual < 60, run.tell(result)
    assert not any(f"{Phase.TROUBLESHOOTING}" in line and "commits" in line for line in result.story), run.tell(result)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_restored_from_before_a_placement_starts_nobody_a_second_time(seed: int) -> None:
    """It knows of no placement, and a node on which one runs comes back later than the job controllers."""

    def play(scene: World) -> None:
        kept: list[object] = []

        def backup() -> None:
            if scene.check.state is None:
                scene.later(0.01, backup)
            else:
                kept.extend((scene.server.backup(), scene.check.backup()))

        def restore() -> None:
            scene.server.stop()
            scene.server.restore(kept[0])  # type: ignore[arg-type]
            scene.check.restored(kept[1])  # type: ignore[arg-type]
            scene.network.cut(machine_of(scene, "w1").processes(), 3.0)
            scene.server.start()
            scene.server.handle(None, subjects.ERA, messages.encode(Era("era2", reason="restored")), None, "")

        backup()
        when_it_runs(scene, restore, after=0.5)

    result = played(seed, play, run_for=(30.0, 30.0))
    assert (result.phase, result.counted) == ("Succeed", 0), run.tell(result)


@pytest.mark.parametrize("seed", SEEDS)
def test_masters_that_die_and_stand_still_cost_no_budget_and_no_restart(seed: int) -> None:
    def play(scene: World) -> None:
        for at in (2.0, 3.0, 4.0, 6.0, 7.0):
            scene.later(at, scene.faults.master_is_killed)
            scene.later(at + 0.5, scene.faults.master_is_stopped)
        scene.later(5.0, scene.faults.server_restarts)
        scene.later(20.0, scene.faults.calm)

    result = played(seed, play, replicas=3)
    assert (result.phase, result.counted) == ("Succeed", 0), run.tell(result)
    assert result.story and not any("i1 starts" in line for line in result.story), run.tell(result)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("at_once", [True, False], ids=["heard in one batch", "heard later"])
def test_what_a_preempted_worker_did_to_its_peers_is_not_counted(seed: int, at_once: bool) -> None:
    """Their error is stored first and is taken back, in the commit that counts it or in a later one."""

    def play(scene: World) -> None:
        def told_to_leave() -> None:
            agent = machine_of(scene, "w0").agent
            assert agent is not None and scene.check.state is not None
            scene.check.harmed(60.0)
            if at_once:
                owner = scene.replicas[scene.check.state.head.owner.replica].process
                owner.frozen = True
                scene.later(0.9, scene.loop.resume, owner)
            scene.network.cut([agent.process], 0.5)
            scene.later(0.05, agent.terminate)
            scene.later(0.1, fails, scene, "w1")

        when_it_runs(scene, told_to_leave)

    result = played(seed, play)
    assert any("kind=takenBack" in line for line in result.story), run.tell(result)
    assert (result.phase, result.retries) == ("Succeed", "0:0:0"), run.tell(result)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_nobody_could_order_is_no_healthy_run(seed: int) -> None:
    """All have passed the checks while nobody owned the job. It runs from its order on, and gives no budget back for the time before."""

    def play(scene: World) -> None:
        def dies() -> None:
            assert scene.check.state is not None
            scene.end_process(scene.replicas[scene.check.state.head.owner.replica].process)

        when_it_runs(scene, lambda: fails(scene, "w1"), after=0.1)
        when(scene, phase_is(scene, Phase.TROUBLESHOOTING), dies, every=0.002)

    result = played(seed, play, reset_after=2.0, run_for=(1.0, 1.0))
    assert (result.phase, result.counted, result.retries) == ("Succeed", 1, "1:1:1"), run.tell(result)
