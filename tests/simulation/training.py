"""Children of simulated workers: processes that run, finish, fail, hang and are killed, and the training that those of one incarnation are together.

Ground truth of a world: what really ran, where and when. Nothing here knows of Aegis; `check` compares it with what Aegis decided.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.world import World

PLAIN = -1
"""Incarnation of a child that runs as a plain job."""
PORT_WAIT = 15.0
"""Seconds a child waits for the others to come before it gives up."""


@dataclass(eq=False)
class Child:
    """One process tree of the user's command."""

    world: World
    node: str
    pod: str
    attempt: int
    incarnation: int
    began: float
    alive: bool = True
    code: int = 0
    signal: int = 0
    reason: str = "error"
    """What its last words say of why it failed: error | collateral | port."""
    ended_at: float = 0.0
    on_end: list[Callable[[], None]] = field(default_factory=list)
    training: Training | None = None

    @property
    def name(self) -> str:
        return f"{self.pod}/a{self.attempt}/i{self.incarnation}"

    def end(self, code: int, number: int = 0, reason: str = "error", ordered: bool = False) -> None:
        """The whole tree is gone; once. `ordered`: Aegis ended it, it is no failure of its own."""
        if not self.alive:
            return
        if code and not ordered:
            self.world.check.harmed(0.0)
        self.alive = False
        self.code, self.signal, self.reason, self.ended_at = code, number, reason, self.world.loop.now
        self.world.tell(self.node, f"child {self.name} ended: {'signal ' + str(number) if number else 'exit ' + str(code)}")
        self.world.children.remove(self)
        for told in self.on_end:
            told()
        if self.training is not None:
            self.training.ended(self)

    def kill(self, ordered: bool = False) -> None:
        self.end(128 + signal.SIGKILL, signal.SIGKILL, ordered=ordered)

    def terminate(self) -> None:
        """SIGTERM by order, soon obeyed."""
        self.end(128 + signal.SIGTERM, signal.SIGTERM, ordered=True)


class Training:
    """The children of one incarnation of one job. It runs once all are there; when one is lost the others fail soon, or stand still."""

    def __init__(self, world: World, incarnation: int) -> None:
        self.world = world
        self.incarnation = incarnation
        self.began = world.loop.now
        self.children: dict[str, Child] = {}
        self.running_since = -1.0
        self.stands_since = -1.0
        self.broken = False
        self.finished: set[str] = set()

    def step(self) -> int:
        """Steps done so far: two a second while it runs."""
        if self.running_since < 0:
            return -1
        until = self.stands_since if self.stands_since >= 0 else self.world.loop.now
        return int(2 * (until - self.running_since))

    def join(self, child: Child) -> None:
        world = self.world
        child.training = self
        self.children[child.pod] = child
        if self.broken:
            self._falls(child, PORT_WAIT)
        elif len(self.children) == world.spec.workers:
            self.running_since = world.loop.now
            length = world.rng.uniform(*world.options.run_for)
            for one in self.children.values():
                world.later(length + world.rng.uniform(0, 0.3), self._done, one)
        else:
            world.later(PORT_WAIT, self._alone, child)

    def _alone(self, child: Child) -> None:
        if self.running_since < 0:
            child.end(1, reason="collateral")

    def _done(self, child: Child) -> None:
        if not child.alive or self.broken:
            return
        if self.stands_since >= 0:  # stands still: what is left to do waits
            self.world.later(1.0, self._done, child)
            return
        self.finished.add(child.pod)
        child.end(0)

    def stand_still(self) -> None:
        if self.running_since >= 0 and self.stands_since < 0 and not self.broken:
            self.stands_since = self.world.loop.now
            self.world.tell("training", f"i{self.incarnation} makes no progress any more")

    def go_on(self) -> None:
        if self.stands_since >= 0 and not self.broken:
            self.running_since += self.world.loop.now - self.stands_since
            self.stands_since = -1.0
            self.world.tell("training", f"i{self.incarnation} makes progress again")

    def ended(self, child: Child) -> None:
        if child.pod not in self.finished:
            self._break(child)

    def cut_off(self, child: Child) -> None:
        """Its peers do not hear this child any more: they fail, it stands still. Who has no peers does not notice."""
        if child.alive and len(self.children) > 1:
            self._break(child)

    def _break(self, child: Child) -> None:
        if self.broken:
            return
        self.broken = True
        if self.stands_since < 0:
            self.stands_since = self.world.loop.now
        for other in self.children.values():
            if other.alive and other is not child:
                self._falls(other, self.world.rng.choice((0.005, 0.1, 2.0, 2.0)))

    def break_and_stand(self) -> None:
        """It is lost, and no child notices by itself: each stands still until somebody stops it."""
        self.stand_still()
        self.broken = True

    def time_out(self) -> None:
        """Every collective that still waits for a lost peer gives up in the end."""
        for child in list(self.children.values()):
            if self.broken and child.alive:
                child.end(1, reason="collateral")

    def _falls(self, child: Child, within: float) -> None:
        if self.world.rng.random() < 0.8:  # the others stand still until somebody stops them
            self.world.later(self.world.rng.uniform(0, within), child.end, 1, 0, "collateral")
