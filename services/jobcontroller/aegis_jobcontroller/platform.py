"""What the job controller needs of a platform, and all that it knows of one: place workers, say what is known of them, ask the masters.

A platform makes its machines equal to the state (`place`), derives what holds now (`facts`), and asks for what only masters may do (`ask`). It keeps
nothing that it could not read again; any number of replicas may do the same at once. `nodes` (our own daemons) and `kubernetes` stand behind this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from aegis_bus.service import Service
from aegis_proto.api_nodes import JobPending, WorkerRecord

from aegis_jobcontroller.facts import News
from aegis_jobcontroller.world import Job, World


class Platform(Protocol):
    """`name` is what the setting `jobcontroller.platform` says."""

    name: str

    async def start(self, service: Service, wake: Callable[[], None]) -> None:
        """Begin to listen. `wake` is called whenever the platform has changed."""

    @property
    def ready(self) -> bool:
        """Everything was read once: what is absent is absent."""

    async def place(self, world: World) -> bool:
        """Make the platform equal to the state; True when something was changed, so that it is looked at again. Raises what made it impossible."""

    def facts(self, world: World) -> Iterable[News]:
        """Every fact that holds now."""

    async def ask(self, world: World) -> bool:
        """Ask the masters for what only they may do. True to be called again at once."""

    def has_node(self, name: str) -> bool:
        """There is such a machine, though no daemon of ours has registered it."""

    def pending(self, job: Job, world: World) -> JobPending | None:
        """Which workers of a job wait and why; None when none does, or when the job is not this platform's."""

    def record(self, job: Job, world: World) -> Iterable[WorkerRecord]:
        """What the platform has of the workers of a job, in its own words."""

    async def stop(self) -> None:
        """Let go of what `start` took."""
