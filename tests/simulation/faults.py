"""What goes wrong in a simulated world: each fault is a method, drawn with its time and its victims from the seed.

`Faults.draw` plans them; after `calm` everything is repaired and nothing fails any more, so that the job must end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aegis_proto import messages, subjects
from aegis_proto.messages import Era, Fact
from aegis_proto.phases import FactKind
from simulation.loop import kill
from simulation.people import People

if TYPE_CHECKING:
    from simulation.services import JobController, Replica
    from simulation.world import World

WEIGHTS = {
    "child_fails": 8,
    "child_is_killed": 3,
    "port_is_taken": 2,
    "command_is_not_there": 0.5,
    "one_is_done_and_leaves": 2,
    "agent_is_killed": 6,
    "machine_is_off": 5,
    "daemon_is_killed": 3,
    "is_preempted": 2,
    "machine_is_cut": 4,
    "stands_still": 3,
    "is_slow": 2,
    "check_fails": 2,
    "cannot_diagnose": 1,
    "master_is_killed": 6,
    "master_dies_between_two_steps": 8,
    "master_is_stopped": 6,
    "master_is_cut": 4,
    "master_leaves": 1,
    "controller_is_killed": 3,
    "controller_is_stopped": 2,
    "controller_is_cut": 2,
    "credentials_are_away": 2,
    "connection_is_lost": 4,
    "server_restarts": 3,
    "store_is_restored": 1,
    "reports_are_lost": 1,
    "network_is_slow": 2,
    "deliveries_are_lost": 3,
    "requests_are_lost": 2,
    "reports_come_again": 3,
    "is_stopped": 0.3,
    "is_suspended": 1,
    "is_restarted": 2,
    "is_set": 1,
}
"""Fault -> how often it is drawn."""
LAST = 40.0
"""Virtual seconds after which no fault begins."""
CALM = 45.0


class Faults(People):
    """The faults of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.drawn: list[tuple[float, str]] = []
        self._present = ""

    def draw(self) -> None:
        names, weights = list(WEIGHTS), list(WEIGHTS.values())
        number = self.rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 8))
        at, gap = self.rng.uniform(0.0, 3.0), self.rng.choice((0.3, 1.0, 2.0, 4.0))
        for name in self.rng.choices(names, weights, k=number):
            at = min(LAST, at + self.rng.expovariate(1 / gap))
            self.drawn.append((at, name))
            self.world.later(at, self._happen, name)
        self.world.later(CALM, self.calm)

    def _happen(self, name: str) -> None:
        self._present = name
        getattr(self, name)()
        self._present = ""

    def _tell(self, text: str, name: str = "") -> None:
        """It happens: not every fault that is drawn finds a victim."""
        self.world.tell("FAULT", text)
        if name or self._present:
            self.world.coverage.faults[name or self._present] += 1

    def _harm(self, seconds: float = 0.0) -> None:
        self.world.check.harmed(seconds)

    def calm(self) -> None:
        """Everything is repaired, nothing fails any more."""
        world = self.world
        self._tell("no more: everything is repaired")
        world.network.latency = world.latency
        world.server.lose_delivery = world.server.lose_request = world.server.again = None
        if world.server.down:
            world.server.start()
        for machine in world.machines.values():
            machine.failing.clear()
            machine.checks_raise = False
            machine.cut_until = 0.0
            machine.power_on()
            machine.start_daemon()
        world.network.heal(world.processes)
        for process in world.processes:
            if process.frozen:
                world.loop.resume(process)
        for replica in list(world.replicas.values()):
            if not replica.process.alive:
                world.start_replica(replica.process.name)
        for controller in list(world.controllers.values()):
            if not controller.process.alive:
                world.start_controller(controller.process.name)
        world.start_credentials("credentials")
        for training in world.trainings.values():
            training.go_on()
            training.time_out()
        self._fact(FactKind.RESUME)  # a store restored to a suspended job waits for somebody to say so

    # --- workers and machines ----------------------------------------------------------------------------------------------------------

    def _child(self, end: Callable[..., None], *args: object) -> None:
        if self.world.children:
            child = self.rng.choice(self.world.children)
            self._tell(f"{child.name} on {child.node} fails")
            self._harm()
            end(child, *args)

    def child_fails(self) -> None:
        self._child(lambda child: child.end(1))

    def child_is_killed(self) -> None:
        self._child(lambda child: child.kill())

    def port_is_taken(self) -> None:
        self._child(lambda child: child.end(1, 0, "port"))

    def command_is_not_there(self) -> None:
        self._child(lambda child: child.end(self.rng.choice((126, 127))))

    def one_is_done_and_leaves(self) -> None:
        """A worker ends before the others, its machine is taken away, and then something happens to one of those that still run."""
        running = [child for child in self.world.children if child.training is not None and child.training.running_since >= 0]
        if len(running) < 2 or running[0].training is None or running[0].training.broken or running[0].training.stands_since >= 0:
            return
        child = self.rng.choice(running)
        self._tell(f"{child.name} on {child.node} is done, and soon away")
        running[0].training.finished.add(child.pod)
        child.end(0)
        machine = self.world.machines[child.node]

        def leaves() -> None:
            self._harm()
            machine.power_off()
            fact = Fact(FactKind.NODE_LOST, self.world.uid, child.attempt, child.node, at=self.world.server.now_ms, who="ops")
            if not self.world.server.down:
                self.world.server.handle(None, subjects.fact(self.world.job, child.pod), messages.encode(fact), None, "")
            self.world.later(self.rng.uniform(2.0, 15.0), machine.power_on)

        self.world.later(self.rng.uniform(0.1, 1.0), leaves)
        then = self.rng.choice((self.child_fails, self.port_is_taken, self.is_restarted, self.is_slow))
        self.world.later(self.rng.uniform(1.0, 2.0), then)

    def agent_is_killed(self) -> None:
        alive = [m for m in self.world.machines.values() if m.agent is not None and m.agent.alive]
        if alive:
            machine = self.rng.choice(alive)
            self._tell(f"the agent on {machine.name} is killed")
            self._harm()
            machine.kill_agent(children_too=self.rng.random() < 0.5)

    def machine_is_off(self) -> None:
        machine = self.rng.choice(list(self.world.machines.values()))
        for_good = self.rng.random() < 0.4
        self._tell(f"{machine.name} is off{' until the end' if for_good else ''}")
        self._harm()
        machine.power_off()
        if not for_good:
            self.world.later(self.rng.uniform(2.0, 15.0), machine.power_on)

    def daemon_is_killed(self) -> None:
        machine = self.rng.choice(list(self.world.machines.values()))
        if machine.daemon is not None:
            self._tell(f"the daemon of {machine.name} is killed")
            self.world.end_process(machine.daemon.process)
            self.world.later(self.rng.uniform(0.5, 6.0), machine.start_daemon)

    def is_preempted(self) -> None:
        alive = [m.agent for m in self.world.machines.values() if m.agent is not None and m.agent.alive]
        if alive:
            agent = self.rng.choice(alive)
            self._tell(f"{agent.process.name} is told to leave by the platform")
            self._harm()
            agent.terminate()

    def machine_is_cut(self) -> None:
        machine = self.rng.choice(list(self.world.machines.values()))
        seconds = self.rng.uniform(1.0, 40.0)
        self._tell(f"{machine.name} is cut off for {seconds:.1f} s")
        self._harm(seconds)
        machine.cut_until = self.world.loop.now + seconds
        self.world.network.cut(machine.processes(), seconds)
        if self.rng.random() < 0.5:
            for child in [child for child in self.world.children if child.node == machine.name]:
                if child.training is not None:
                    child.training.cut_off(child)

    def stands_still(self) -> None:
        running = [t for t in self.world.trainings.values() if t.running_since >= 0 and not t.broken]
        if not running:
            return
        training = running[-1]
        self._tell("the training hangs")
        self._harm()
        training.stand_still()
        agents = [m.agent for m in self.world.machines.values() if m.agent is not None and m.agent.alive]
        self.rng.shuffle(agents)
        for agent in agents[: self.rng.randint(1, max(1, len(agents)))]:
            self.world.later(self.rng.uniform(1.5, 3.0), agent.report_hang, False)
            if self.rng.random() < 0.4:
                self.world.later(self.rng.uniform(4.0, 9.0), agent.report_hang, True)
        if self.rng.random() < 0.4:
            self.world.later(self.rng.uniform(3.0, 6.0), training.go_on)

    def is_slow(self) -> None:
        alive = [m.agent for m in self.world.machines.values() if m.agent is not None and m.agent.alive]
        if alive:
            agent = self.rng.choice(alive)
            self._tell(f"{agent.process.name} is slow")
            self._harm()
            agent.report_hang(False, "slow")
            if self.rng.random() < 0.7:
                self.world.later(self.rng.uniform(0.5, 5.0), self._fact, FactKind.CHECKPOINT)

    def check_fails(self) -> None:
        machine = self.rng.choice(list(self.world.machines.values()))
        check = self.rng.choice(("gpu", "runtime", "io", "performance"))
        self._tell(f"check {check} fails on {machine.name}")
        machine.failing.append(check)
        self.world.later(self.rng.uniform(1.0, 20.0), machine.failing.clear)

    def cannot_diagnose(self) -> None:
        machine = self.rng.choice(list(self.world.machines.values()))
        self._tell(f"{machine.name} cannot run checks")
        machine.checks_raise = True

        def over() -> None:
            machine.checks_raise = False

        self.world.later(self.rng.uniform(1.0, 10.0), over)

    # --- masters and job controllers -----------------------------------------------------------------------------------------------------

    def _one(self, group: dict[str, Replica] | dict[str, JobController]) -> Replica | JobController | None:
        alive = [service for service in group.values() if service.process.alive and not service.process.frozen]
        owner = self.world.check.state.head.owner.replica if self.world.check.state is not None else ""
        if owner in group and self.rng.random() < 0.7 and group[owner] in alive:
            return group[owner]
        return self.rng.choice(alive) if alive else None

    def _killed(self, name: str) -> None:
        """It comes back under its name, or under a new one: a pod of a deployment."""
        world = self.world
        start = world.start_replica if name in world.replicas else world.start_controller
        new = name if self.rng.random() < 0.5 else world.new_name(name)
        world.later(self.rng.uniform(0.3, 8.0), start, new)

    def _kill(self, victim: Replica | JobController | None) -> None:
        if victim is not None:
            self._tell(f"{victim.process.name} is killed")
            self.world.end_process(victim.process)
            self._killed(victim.process.name)

    def master_is_killed(self) -> None:
        self._kill(self._one(self.world.replicas))

    def controller_is_killed(self) -> None:
        self._kill(self._one(self.world.controllers))

    def master_dies_between_two_steps(self) -> None:
        """Soon, at any await: where nobody would think of."""
        victim = self._one(self.world.replicas)
        if victim is None:
            return
        process = victim.process
        process.die_at_step = process.steps + self.rng.randint(1, 400)
        steps = process.die_at_step

        def died() -> None:
            if process.steps >= steps:
                self._tell(f"{process.name} is killed at its step {steps}", "master_dies_between_two_steps")
                self._killed(process.name)

        process.on_death.append(died)

    def _freeze(self, victim: Replica | JobController | None) -> None:
        """SIGSTOP, or a machine that swaps: afterwards it goes on as if no time had passed."""
        if victim is None:
            return
        seconds = self.rng.choice((self.rng.uniform(0.2, 2.0), self.rng.uniform(2.0, 15.0)))
        process = victim.process
        self._tell(f"{process.name} stands for {seconds:.1f} s")
        process.frozen = True
        self.world.later(seconds, self.world.loop.resume, process)

    def master_is_stopped(self) -> None:
        self._freeze(self._one(self.world.replicas))

    def controller_is_stopped(self) -> None:
        self._freeze(self._one(self.world.controllers))

    def _cut(self, victim: Replica | JobController | None) -> None:
        if victim is not None:
            seconds = self.rng.uniform(0.5, 25.0)
            self._tell(f"{victim.process.name} is cut off for {seconds:.1f} s")
            self.world.network.cut([victim.process], seconds)

    def master_is_cut(self) -> None:
        self._cut(self._one(self.world.replicas))

    def controller_is_cut(self) -> None:
        self._cut(self._one(self.world.controllers))

    def master_leaves(self) -> None:
        victim = self._one(self.world.replicas)
        if victim is not None and victim.process.name in self.world.replicas:
            self._tell(f"{victim.process.name} gets SIGTERM")
            self.world.replicas[victim.process.name].stop()
            self._killed(victim.process.name)

    def credentials_are_away(self) -> None:
        victim = self.world.credentials
        if victim is not None and victim.process.alive:
            self._tell("the credentials service is killed")
            self.world.end_process(victim.process)
            self.world.later(self.rng.uniform(0.5, 15.0), self.world.start_credentials, "credentials")

    # --- the road ------------------------------------------------------------------------------------------------------------------------

    def connection_is_lost(self) -> None:
        if self.world.network.clients:
            client = self.rng.choice(self.world.network.clients)
            self._tell(f"the connection of {client.process.name} is lost")
            client.end("reset by peer")

    def server_restarts(self) -> None:
        server = self.world.server
        if not server.down:
            seconds = self.rng.choice((self.rng.uniform(0.1, 1.0), self.rng.uniform(1.0, 8.0)))
            self._tell(f"the server is away for {seconds:.1f} s")
            server.stop()
            self.world.later(seconds, server.start)

    def store_is_restored(self) -> None:
        """The store of now is kept; some time later it is what there is again, under a new era."""
        world = self.world
        if world.check.state is None or world.server.down:
            return
        self._tell("a backup is taken")
        backup, history = world.server.backup(), world.check.backup()

        def restore() -> None:
            if world.server.down or world.over:
                return
            self._tell("the store is restored from the backup")
            world.server.stop()
            world.server.restore(backup)
            world.check.restored(history)
            self._harm()
            world.eras += 1
            world.server.start()
            era = messages.encode(Era(f"era{world.eras}", reason="restored"))
            world.server.handle(None, subjects.ERA, era, None, "")

        world.later(self.rng.uniform(0.5, 15.0), restore)

    def reports_are_lost(self) -> None:
        reports = self.world.server.streams["REPORTS"]
        self._tell(f"all reports up to {reports.last} are lost")
        for seq in list(reports.messages):
            reports.drop(seq)

    def network_is_slow(self) -> None:
        most = self.rng.choice((0.1, 0.5, 2.0))
        self._tell(f"messages take up to {most} s")
        self.world.network.latency = lambda: self.rng.uniform(0.001, most)

        def over() -> None:
            self.world.network.latency = self.world.latency

        self.world.later(self.rng.uniform(2.0, 10.0), over)

    def deliveries_are_lost(self) -> None:
        """Slow consumers: views, heartbeats, deliveries of readers and answers do not all arrive."""
        share = self.rng.choice((0.05, 0.2, 0.5))
        self._tell(f"{share:.0%} of all deliveries are lost")
        self.world.server.lose_delivery = lambda client, subject: self.rng.random() < share

        def over() -> None:
            self.world.server.lose_delivery = None

        self.world.later(self.rng.uniform(1.0, 10.0), over)

    def requests_are_lost(self) -> None:
        """What is sent to the server does not all arrive: a publish without an answer, an answer that never comes, half a batch."""
        share = self.rng.choice((0.02, 0.1, 0.3))
        self._tell(f"{share:.0%} of all that is sent to the server is lost")
        self.world.server.lose_request = lambda subject: self.rng.random() < share

        def over() -> None:
            self.world.server.lose_request = None

        self.world.later(self.rng.uniform(1.0, 10.0), over)

    def reports_come_again(self) -> None:
        """Some of what agents and job controllers report is stored a second time, later, behind what was said after it."""
        share, late = self.rng.choice((0.2, 0.5)), self.rng.choice((0.1, 1.0, 8.0))
        self._tell(f"{share:.0%} of all reports come a second time, up to {late} s later")
        self.world.server.again = lambda subject: self.rng.uniform(0.0, late) if self.rng.random() < share else None

        def over() -> None:
            self.world.server.again = None

        self.world.later(self.rng.uniform(2.0, 15.0), over)


__all__ = ["CALM", "Faults", "kill"]
