"""What people ask of the job of a simulated world, at any moment: stop, suspend, restart, another budget."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from aegis_proto import messages, subjects
from aegis_proto.messages import Fact
from aegis_proto.phases import FactKind

if TYPE_CHECKING:
    from simulation.world import World


class People:
    """The part of `faults.Faults` that is nobody's fault."""

    world: World
    rng: random.Random

    def _tell(self, text: str, name: str = "") -> None:
        raise NotImplementedError

    def _fact(self, kind: FactKind, settings: dict[str, str] | None = None) -> None:
        world = self.world
        world.check.asked[kind.value] += 1
        fact = Fact(kind, world.uid, at=world.server.now_ms, who="ops", step=world.check.asked[kind.value], settings=settings or {})
        subject = subjects.fact(world.job, "job")
        if world.server.down:
            world.later(1.0, world.server.handle, None, subject, messages.encode(fact), None, "")
        else:
            world.server.handle(None, subject, messages.encode(fact), None, "")

    def is_stopped(self) -> None:
        self._tell("stop is asked")
        self._fact(FactKind.STOP)

    def is_suspended(self) -> None:
        self._tell("suspend is asked")
        self._fact(FactKind.SUSPEND)
        self.world.later(self.rng.uniform(1.0, 12.0), self._fact, FactKind.RESUME)

    def is_restarted(self) -> None:
        self._tell("restart is asked")
        self._fact(FactKind.RESTART)

    def is_set(self) -> None:
        text = str(self.rng.randint(0, 4))
        self._tell(f"max-retry is set to {text}")
        self._fact(FactKind.SET, {"max-retry": text})
