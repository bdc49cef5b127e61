"""Rows of the table and kinds of events that drawn worlds seldom or never reach: each in a told scene, under the same checks as every world."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aegis_proto import messages, subjects
from aegis_proto.messages import Era, Fact
from aegis_proto.phases import FactKind, FailedReason, Phase
from simulation import run, world
from simulation.scenes import LONGER, LOOK, fails, machine_of, phase_is, told, when, when_it_runs
from simulation.training import PLAIN
from simulation.world import Result, World

Then = Callable[[World], None]
MOMENT = 0.002
"""Virtual seconds: less than an agent needs to be heard."""
THREE: dict[str, object] = {"machines": 3}


def fact(scene: World, kind: FactKind, pod: str = "job", attempt: int = 0, settings: dict[str, str] | None = None, *, step: int = -1) -> None:
    told_of = Fact(kind, scene.uid, attempt, at=scene.server.now_ms, who="ops", settings=settings or {}, step=step)
    scene.server.handle(None, subjects.fact(scene.job, pod), messages.encode(told_of), None, "")


def new_era(scene: World) -> None:
    scene.eras += 1
    scene.server.handle(None, subjects.ERA, messages.encode(Era(f"era{scene.eras}", reason="restored")), None, "")


def stop(scene: World) -> None:
    scene.faults.is_stopped()


def port_is_taken(scene: World) -> None:
    for child in [child for child in scene.children if child.pod == "w1"]:
        child.end(1, 0, "port")


def is_slow_and_saves(scene: World) -> None:
    agent = machine_of(scene, "w1").agent
    assert agent is not None
    agent.report_hang(False, "slow")
    scene.later(1.0, fact, scene, FactKind.CHECKPOINT)


def is_off(scene: World) -> None:
    scene.check.harmed(60.0)
    machine_of(scene, "w1").power_off()


def over_an_empty_place(then: Then) -> Then:
    """w0 has finished and its machine is off, for some time there is no other, when it happens to w1."""

    def play(scene: World) -> None:
        def done() -> None:
            training = scene.trainings[0]
            training.finished.add("w0")
            training.children["w0"].end(0)
            scene.later(0.5, leaves)

        def leaves() -> None:
            scene.check.harmed(60.0)
            machine = machine_of(scene, "w0")
            machine.power_off()
            fact(scene, FactKind.NODE_LOST, "w0", 1)
            scene.later(0.5, then, scene)
            scene.later(8.0, machine.power_on)

        when_it_runs(scene, done)

    return play


def checks_fail(phase: Phase, *, until_the_end: bool) -> Then:
    """A check of most machines fails in the rounds of this phase."""

    def play(scene: World) -> None:
        def begin() -> None:
            for machine in scene.machines.values():
                machine.failing.append("gpu")

        def end() -> None:
            for machine in scene.machines.values():
                machine.failing.clear()

        if phase is Phase.BOOT_CHECKING:
            begin()
        else:
            when_it_runs(scene, begin)
            when_it_runs(scene, lambda: fails(scene, "w1"), after=2.1)
        if not until_the_end:
            when(scene, lambda: scene.check.state is not None and scene.check.state.head.massQuitRounds > 0, end)

    return play


def in_phase(phase: Phase, then: Then, before: Then | None = None) -> Then:
    """`then`, as soon as the job is in this phase; `before` happens when its first training runs."""

    def play(scene: World) -> None:
        if before is not None:
            when_it_runs(scene, lambda: before(scene))
        when(scene, phase_is(scene, phase), lambda: then(scene))

    return play


def starts(scene: World, pod: str) -> Callable[[], bool]:
    """Whether its agent is there."""
    return lambda: any(machine.agent is not None and machine.agent.task.pod == pod for machine in scene.machines.values())


def new_era_in_a_long_diagnosis(scene: World) -> None:
    """Masters look for a new era every five seconds."""

    def begin() -> None:
        agent = machine_of(scene, "w2").agent
        assert agent is not None
        agent.process.frozen = True
        scene.later(8.0, scene.loop.resume, agent.process)
        new_era(scene)

    when_it_runs(scene, lambda: fails(scene, "w1"))
    when(scene, phase_is(scene, Phase.TROUBLESHOOTING), begin, every=MOMENT)


def new_era_before_all_are_heard(scene: World) -> None:
    def begin() -> None:
        agent = machine_of(scene, "w2").agent
        assert agent is not None
        agent.process.frozen = True
        scene.later(8.0, scene.loop.resume, agent.process)
        new_era(scene)

    when(scene, starts(scene, "w2"), begin, every=MOMENT)


def nobody_stays(scene: World) -> None:
    """w2 is never heard, and w1 is killed each time it is."""

    def look() -> None:
        scene.check.harmed(1.0)
        state = scene.check.state
        for machine in scene.machines.values():
            agent = machine.agent
            if agent is not None and agent.alive and agent.task.pod == "w2":
                agent.process.frozen = True
            if agent is not None and agent.alive and agent.task.pod == "w1" and state is not None and state.pod(1).present:
                machine.kill_agent(children_too=True)
        if not scene.over:
            scene.later(MOMENT, look)

    look()


def one_is_taken_away_in_the_diagnosis(scene: World) -> None:
    def leaves() -> None:
        agent = machine_of(scene, "w2").agent
        assert agent is not None
        scene.check.harmed(10.0)
        agent.terminate()

    when_it_runs(scene, lambda: fails(scene, "w1"))
    when(scene, phase_is(scene, Phase.TROUBLESHOOTING), leaves, every=MOMENT)


def one_is_taken_away_in_the_bootcheck(scene: World) -> None:
    def leaves() -> None:
        agent = machine_of(scene, "w2").agent
        assert agent is not None
        scene.check.harmed(10.0)
        agent.terminate()

    when(scene, phase_is(scene, Phase.BOOT_CHECKING), leaves, every=MOMENT)


def a_machine_is_off_before_anybody_is_placed(scene: World) -> None:
    def off() -> None:
        scene.check.harmed(60.0)
        next(iter(scene.machines.values())).power_off()

    scene.later(1.0, off)  # all machines are on by then, nobody is placed yet


def one_is_lost_again_and_again_while_another_is_awaited(scene: World) -> None:
    def look() -> None:
        scene.check.harmed(1.0)
        state = scene.check.state
        here = [m for m in scene.machines.values() if m.agent is not None and m.agent.alive and m.agent.task.pod == "w2"]
        if here and state is not None and state.head.phase is Phase.RESTARTING and state.pod(2).present:
            here[0].kill_agent(children_too=True)
        if not scene.over:
            scene.later(LOOK, look)

    when_it_runs(scene, lambda: is_off(scene))
    when(scene, phase_is(scene, Phase.RESTARTING), look)


def one_is_never_heard(scene: World) -> None:
    """The bus is out of reach of w2: it runs without Aegis in the end, under another era of the store."""

    def cut() -> None:
        agent = machine_of(scene, "w2").agent
        assert agent is not None
        scene.network.cut([agent.process], 300.0)
        scene.later(2.0, new_era, scene)

    scene.check.harmed(300.0)
    when(scene, starts(scene, "w2"), cut, every=MOMENT)


def recovers_and_is_healthy(scene: World) -> None:
    when_it_runs(scene, lambda: fails(scene, "w1"))


def budget_is_raised(scene: World) -> None:
    when_it_runs(scene, lambda: fact(scene, FactKind.SET, settings={"max-retry": "3"}))
    when_it_runs(scene, lambda: fails(scene, "w1"), after=3.0)


def a_fault_is_asked_for(scene: World) -> None:
    """Twice the same request: one fault."""
    for after in (2.0, 2.5):
        when_it_runs(scene, lambda: fact(scene, FactKind.INJECT, settings={"worker": "w1", "fault": "kill", "id": "one"}), after=after)


def a_monitor_notices(scene: World) -> None:
    """Twice the same of one run: noted once."""

    def notice() -> None:
        agent = machine_of(scene, "w1").agent
        assert agent is not None
        agent.notice()

    for after in (2.0, 2.5):
        when_it_runs(scene, notice, after=after)


def reports_are_lost_unread(scene: World) -> None:
    """The owner is dead when they come and when they are lost; the next one finds a gap."""

    def begin() -> None:
        assert scene.check.state is not None
        scene.end_process(scene.replicas[scene.check.state.head.owner.replica].process)
        scene.later(0.1, fact, scene, FactKind.SET, "job", 0, {"max-retry": "3"})
        scene.later(0.2, scene.faults.reports_are_lost)

    when_it_runs(scene, begin)


def cannot_be_started(scene: World) -> None:
    when_it_runs(scene, lambda: scene.trainings[0].children["w1"].end(127))


def one_is_never_heard_and_fails(scene: World) -> None:
    """All run without Aegis in the end; then the command of w1 ends with an error."""
    one_is_never_heard(scene)

    def plain() -> bool:
        training = scene.trainings.get(PLAIN)
        return training is not None and training.running_since >= 0

    when(scene, plain, lambda: fails(scene, "w1"), after=1.0)


def no_run_comes_further_than_the_checkpoint(scene: World) -> None:
    when_it_runs(scene, lambda: fact(scene, FactKind.CHECKPOINT, step=1), after=1.0)
    for incarnation in range(3):
        when_it_runs(scene, lambda: fails(scene, "w1"), incarnation=incarnation)


ROWS: dict[str, tuple[Then, dict[str, object]]] = {
    "RunCommand->Restarting error": (over_an_empty_place(lambda scene: fails(scene, "w1")), THREE),
    "RunCommand->Restarting port": (over_an_empty_place(port_is_taken), THREE),
    "RunCommand->Restarting restart": (over_an_empty_place(lambda scene: scene.faults.is_restarted()), THREE),
    "RunCommand->Restarting markPaid": (over_an_empty_place(is_slow_and_saves), THREE),
    "RunCommand->Failed command": (cannot_be_started, {}),
    "BootChecking->BootChecking common": (checks_fail(Phase.BOOT_CHECKING, until_the_end=False), {}),
    "BootChecking->Failed boot": (checks_fail(Phase.BOOT_CHECKING, until_the_end=True), {}),
    "Troubleshooting->Troubleshooting common": (checks_fail(Phase.TROUBLESHOOTING, until_the_end=False), {}),
    "Troubleshooting->Failed boot": (checks_fail(Phase.TROUBLESHOOTING, until_the_end=True), {}),
    "Restarting->Failed placing": (in_phase(Phase.RUN_COMMAND, lambda scene: when_it_runs(scene, lambda: is_off(scene))), THREE),
    "Restarting->Failed boot": (one_is_lost_again_and_again_while_another_is_awaited, THREE),
    "Troubleshooting->Restarting preempted": (one_is_taken_away_in_the_diagnosis, {}),
    "BootChecking->Restarting preempted": (one_is_taken_away_in_the_bootcheck, {}),
    "Pending->Failed placing": (a_machine_is_off_before_anybody_is_placed, THREE),
    "Pending->Failed boot": (nobody_stays, {}),
    "Pending->Failed stopped": (in_phase(Phase.PENDING, stop), {}),
    "BootChecking->Failed stopped": (in_phase(Phase.BOOT_CHECKING, stop), {}),
    "Restarting->Failed stopped": (in_phase(Phase.RESTARTING, stop, is_off), {}),
    "Troubleshooting->Failed stopped": (in_phase(Phase.TROUBLESHOOTING, stop, lambda scene: fails(scene, "w1")), {}),
    "BootChecking->Pending suspend": (in_phase(Phase.BOOT_CHECKING, lambda scene: scene.faults.is_suspended()), {}),
    "Restarting->Pending suspend": (in_phase(Phase.RESTARTING, lambda scene: scene.faults.is_suspended(), is_off), {}),
    "Troubleshooting->Pending suspend": (
        in_phase(Phase.TROUBLESHOOTING, lambda scene: scene.faults.is_suspended(), lambda scene: fails(scene, "w1")),
        {},
    ),
    "Pending->Restarting era": (new_era_before_all_are_heard, {}),
    "Restarting->Restarting era": (in_phase(Phase.RESTARTING, new_era, is_off), {}),
    "Troubleshooting->Restarting era": (new_era_in_a_long_diagnosis, {}),
    "Restarting->RunCommand plain": (one_is_never_heard, {"start_wait": 6.0}),
}
EVENTS: dict[str, tuple[Then, dict[str, object]]] = {
    "PlainFact": (one_is_never_heard, {"start_wait": 6.0}),
    "SettingChanged": (budget_is_raised, {}),
    "InjectAsked": (a_fault_is_asked_for, {}),
    "Noticed": (a_monitor_notices, {}),
    "GapFound": (reports_are_lost_unread, {}),
    "Healthy": (recovers_and_is_healthy, {"reset_after": 3.0}),
}


ENDS: dict[FailedReason, tuple[Then, dict[str, object]]] = {
    FailedReason.BUDGET: (lambda scene: when_it_runs(scene, lambda: fails(scene, "w1")), {"max_retry": 0}),
    FailedReason.BOOT: ROWS["BootChecking->Failed boot"],
    FailedReason.PLACING: ROWS["Restarting->Failed placing"],
    FailedReason.STOPPED: ROWS["Troubleshooting->Failed stopped"],
    FailedReason.COMMAND: ROWS["RunCommand->Failed command"],
    FailedReason.EXITED: (one_is_never_heard_and_fails, {"start_wait": 6.0, "run_for": LONGER}),
    FailedReason.PROGRESS: (no_run_comes_further_than_the_checkpoint, {"max_retry": 5}),
}


def played(play: Then, options: dict[str, object]) -> Result:
    result = world.run(1, True, told(play, **options))
    assert result.ok, run.tell(result)
    return result


@pytest.mark.parametrize("row", ROWS)
def test_a_seldom_row_is_taken_and_everything_holds(row: str) -> None:
    result = played(*ROWS[row])
    assert result.coverage.rows[row], run.tell(result)


@pytest.mark.parametrize("event", EVENTS)
def test_a_seldom_event_is_taken_and_everything_holds(event: str) -> None:
    result = played(*EVENTS[event])
    assert result.coverage.events[event], run.tell(result)


@pytest.mark.parametrize("reason", FailedReason)
def test_a_job_fails_for_each_reason_there_is(reason: FailedReason) -> None:
    result = played(*ENDS[reason])
    assert (result.phase, result.reason) == ("Failed", reason.value), run.tell(result)
