"""Scenes: worlds whose faults are told instead of drawn, each straight into one situation. The job is small and everything else goes well.

A scene begins its faults on the world it is given. `told` makes one of it; `TOLD` has a scene for each rule that `mutants` takes out of the code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aegis_proto import messages, subjects
from aegis_proto.messages import Era
from aegis_proto.phases import Phase
from simulation.machines import Machine
from simulation.world import Scene, World

Play = Callable[[World], None]
LONG = (8.0, 8.0)
LONGER = (60.0, 60.0)
LOOK = 0.1
IN_HAND = 0.003
"""Virtual seconds after which a report has been read and its commit is under way."""
"""Virtual seconds between two looks at what a scene waits for."""


def told(play: Play, **options: Any) -> Scene:
    """A job of three workers, two masters, one spare machine, maxRetry 2; `options` are those of `world.Options`."""
    settled = dict(workers=3, replicas=2, controllers=1, machines=4, max_retry=2, run_for=LONG, start_wait=20.0, reset_after=0.0)
    return Scene(play, {**settled, **options})


def when(scene: World, holds: Callable[[], bool], work: Callable[[], None], after: float = 0.0, every: float = LOOK) -> None:
    """`work` once, `after` seconds after `holds` does; it is looked `every` so many."""

    def look() -> None:
        if holds():
            scene.later(after, work)
        else:
            scene.later(every, look)

    look()


def when_it_runs(scene: World, work: Callable[[], None], after: float = 2.0, incarnation: int = 0) -> None:
    """`work` when the training of this incarnation has run for `after` seconds."""

    def runs() -> bool:
        training = scene.trainings.get(incarnation)
        return training is not None and training.running_since >= 0

    when(scene, runs, work, after)


def machine_of(scene: World, pod: str) -> Machine:
    return next(m for m in scene.machines.values() if m.agent is not None and m.agent.alive and m.agent.task.pod == pod)


def fails(scene: World, pod: str) -> None:
    """The command of this worker ends with an error."""
    for child in [child for child in scene.children if child.pod == pod]:
        child.end(1)


def phase_is(scene: World, *phases: Phase) -> Callable[[], bool]:
    return lambda: scene.check.state is not None and scene.check.state.head.phase in phases


def an_owner_stands_still_and_goes_on(scene: World) -> None:
    """Another has taken its job, and something happened, when it comes to itself in the middle of what it did."""

    def stands() -> None:
        assert scene.check.state is not None
        owner = scene.replicas[scene.check.state.head.owner.replica].process
        owner.frozen = True
        scene.later(0.1, fails, scene, "w1")
        scene.later(7.0, scene.loop.resume, owner)

    when_it_runs(scene, stands)


def an_owner_dies_after_a_restart_that_was_asked(scene: World) -> None:
    """The next one must know that it was done."""

    def dies() -> None:
        assert scene.check.state is not None
        scene.end_process(scene.replicas[scene.check.state.head.owner.replica].process)

    when_it_runs(scene, scene.faults.is_restarted)
    when_it_runs(scene, dies, incarnation=1)


def reports_come_a_second_time(scene: World) -> None:
    """What was said in the check comes again while the command runs."""
    scene.server.again = lambda subject: 4.0
    when_it_runs(scene, lambda: setattr(scene.server, "again", None), after=0.0)


def a_worker_is_lost_while_the_job_recovers(scene: World) -> None:
    def off() -> None:
        scene.check.harmed(60.0)
        machine_of(scene, "w2").kill_agent(children_too=True)

    when_it_runs(scene, lambda: fails(scene, "w1"))
    when(scene, phase_is(scene, Phase.TROUBLESHOOTING), off, after=0.05)


def a_machine_is_lost_and_a_victim_is_heard_first(scene: World) -> None:
    """What it dies of is known when the others diagnose already: the count goes to it."""

    def off() -> None:
        scene.check.harmed(60.0)
        machine_of(scene, "w1").power_off()
        for child in [child for child in scene.children if child.pod == "w2"]:
            scene.later(0.5, child.end, 1, 0, "collateral")

    when_it_runs(scene, off)


def a_worker_fails(scene: World) -> None:
    when_it_runs(scene, lambda: fails(scene, "w1"))


def a_machine_is_cut_off_and_its_command_runs_on(scene: World) -> None:
    """Its peers fail; the machine itself is whole, hears nobody and stops nothing yet."""

    def cut() -> None:
        scene.check.harmed(60.0)
        machine = machine_of(scene, "w1")
        machine.cut_until = scene.loop.now + 60.0
        scene.network.cut(machine.processes(), 60.0)
        scene.trainings[0].break_and_stand()
        fails(scene, "w2")

    when_it_runs(scene, cut)


def an_attempt_comes_back_after_it_was_replaced(scene: World) -> None:
    """Its machine was cut off and its command ended; the next attempt runs elsewhere when its agent hears orders again, before its daemon does."""

    def cut() -> None:
        scene.check.harmed(60.0)
        machine = machine_of(scene, "w1")
        agent, daemon = machine.agent, machine.daemon
        assert agent is not None and daemon is not None
        fails(scene, "w1")
        scene.network.cut([agent.process, daemon.process], 200.0)
        when_it_runs(scene, lambda: scene.network.heal([agent.process]), after=1.0, incarnation=1)

    when_it_runs(scene, cut)


def a_machine_is_off_for_good_and_there_is_no_other(scene: World) -> None:
    def off() -> None:
        scene.check.harmed(60.0)
        machine_of(scene, "w1").power_off()

    when_it_runs(scene, off)


def a_store_is_replaced_while_its_owner_decides(scene: World) -> None:
    """It has read what the copy does not know, and its commit waits for a connection; the head is the same in both."""

    def decides() -> None:
        backup, history = scene.server.backup(), scene.check.backup()
        scene.faults.is_suspended()

        def replaced() -> None:
            scene.server.stop()
            scene.server.restore(backup)
            scene.check.restored(history)
            scene.server.start()
            scene.server.handle(None, subjects.ERA, messages.encode(Era("era2", reason="restored")), None, "")

        scene.later(IN_HAND, replaced)

    when_it_runs(scene, decides)


TOLD: dict[str, Scene] = {
    "no_fence": told(an_owner_stands_still_and_goes_on),
    "cursor_not_in_the_commit": told(an_owner_dies_after_a_restart_that_was_asked),
    "stale_reports_taken": told(reports_come_a_second_time),
    "counted_twice": told(a_worker_is_lost_while_the_job_recovers),
    "aligned_early": told(a_machine_is_lost_and_a_victim_is_heard_first),
    "placed_before_gone": told(a_machine_is_cut_off_and_its_command_runs_on),
    "orders_of_others_obeyed": told(an_attempt_comes_back_after_it_was_replaced, run_for=LONGER),
    "budget_by_the_capped_count": told(a_worker_fails, max_retry=0),
    "placing_without_deadline": told(a_machine_is_off_for_good_and_there_is_no_other, machines=3),
    "commits_over_any_connection": told(a_store_is_replaced_while_its_owner_decides),
}
"""Rule, by the name of its mutant -> the scene in which it is needed."""
