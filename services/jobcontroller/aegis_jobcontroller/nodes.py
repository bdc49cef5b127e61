"""Platform `nodes`: workers are started by our own daemons, one slot each. Placements lie in the store, written by compare-and-set.

What is decided is pure: `plan`, `facts`, `lost`; written by `placer`. Here is only when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from aegis_bus.connection import Bus
from aegis_bus.service import Service
from aegis_proto import subjects
from aegis_proto.api import AdoptReply, RequestRefused, read_reply
from aegis_proto.api_nodes import JobPending, WorkerRecord
from aegis_proto.job import CLUSTER_LABEL
from aegis_proto.messages import BadMessage, encode

from aegis_jobcontroller import metrics
from aegis_jobcontroller.cache import Cache
from aegis_jobcontroller.facts import News, facts
from aegis_jobcontroller.lost import LATER, REFUSED_FOR, lost
from aegis_jobcontroller.pending import pending, record
from aegis_jobcontroller.placer import Placer
from aegis_jobcontroller.plan import plan, waiting
from aegis_jobcontroller.world import Job, World, excluded

log = logging.getLogger(__name__)

SHARE = 5
"""A pass that took t seconds is followed by at least SHARE times t of rest."""
ADOPT_TIMEOUT = 20.0
"""Seconds: as long as a master takes at most to answer."""


class Nodes:
    """See `platform.Platform`. `credentials`: host:port of the gRPC service, passed on to the agents."""

    name = "nodes"

    def __init__(self, bus: Bus, cache: Cache, credentials: str) -> None:
        self._bus = bus
        self._cache = cache
        self._placer = Placer(bus, credentials)
        self._asked: dict[tuple[object, ...], float] = {}

    async def start(self, service: Service, wake: Callable[[], None]) -> None:
        """Nothing: all that is known of nodes is in the store, and the cache follows that."""

    async def stop(self) -> None:
        """Nothing to let go of."""

    def has_node(self, name: str) -> bool:
        return False

    def pending(self, job: Job, world: World) -> JobPending | None:
        return None if CLUSTER_LABEL in job.spec.labels else pending(job, world)

    def record(self, job: Job, world: World) -> Iterable[WorkerRecord]:
        return () if CLUSTER_LABEL in job.spec.labels else record(job, world)

    @property
    def ready(self) -> bool:
        return True

    def facts(self, world: World) -> Iterable[News]:
        return facts(world)

    async def place(self, world: World) -> bool:
        began = time.monotonic()
        mine = _of_nodes(world)
        actions = plan(mine)
        _gauges(mine)
        busy = time.monotonic() - began
        metrics.PASS.observe(busy)
        if actions:
            seq = await self._placer.apply(actions, mine)
            if not await self._cache.seen(seq):
                log.warning("own write %d of NODES not seen yet", seq)
        await asyncio.sleep(SHARE * busy)
        return bool(actions)

    async def ask(self, world: World) -> bool:
        """Ask the master to bring back what runs and is not known; each question again while it stands, not at once."""
        now = time.monotonic()
        self._asked = {key: until for key, until in self._asked.items() if until > now}
        for question in lost(world):
            if question.key in self._asked:
                continue
            job = question.request.job
            try:
                reply = read_reply(AdoptReply, await self._bus.request(subjects.ADOPT, encode(question.request), timeout=ADOPT_TIMEOUT))
            except (RequestRefused, BadMessage) as error:
                later = isinstance(error, RequestRefused) and error.code == "E108"
                self._asked[question.key] = now + (LATER if later else REFUSED_FOR)
                log.warning("job %s runs, the store does not know it, and it is not brought back: %s", job, error)
            else:
                self._asked[question.key] = now + LATER
                log.warning("job %s was found running and is %s", job, "known already" if reply.existed else "brought back")
        return False


def _of_nodes(world: World) -> World:
    """Without the jobs that belong to a cluster: its own controller places them."""
    theirs = {name for name, job in world.jobs.items() if CLUSTER_LABEL in job.spec.labels}
    return replace(world, jobs={name: job for name, job in world.jobs.items() if name not in theirs}) if theirs else world


def _gauges(world: World) -> None:
    alive = sum(node.alive for node in world.nodes.values())
    metrics.NODES.labels("alive").set(alive)
    metrics.NODES.labels("silent").set(len(world.nodes) - alive)
    metrics.NODES_EXCLUDED.set(sum(excluded(node.taint, world.now) for node in world.nodes.values()))
    metrics.WAITING.set(sum(len(list(waiting(job, world))) for job in world.jobs.values()))
