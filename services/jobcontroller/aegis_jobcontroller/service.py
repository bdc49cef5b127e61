"""The job controller: makes the placement equal to the state, and tells the masters what the platform knows.

Any number of replicas. Owns nothing: what it needs is rebuilt from the store (`cache`) and from the platform (`platform`), done there, and told as
facts (`facts`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from aegis_bus.config import Config
from aegis_bus.connection import Bus
from aegis_bus.crashpoint import crashpoint
from aegis_bus.errors import BusError, Unreadable
from aegis_bus.replica import joined, replica_main
from aegis_bus.service import Service
from aegis_proto import subjects
from aegis_proto.messages import BadMessage, Era, decode, encode

from aegis_jobcontroller import metrics
from aegis_jobcontroller.api import Api
from aegis_jobcontroller.cache import FILTERS, Cache
from aegis_jobcontroller.facts import News, Teller
from aegis_jobcontroller.nodes import SHARE, Nodes
from aegis_jobcontroller.platform import Platform
from aegis_jobcontroller.world import World

log = logging.getLogger(__name__)

TICK = 1.0
"""Seconds after which the world is looked at again though nothing was heard: silence and deadlines make no noise."""
GATHER = 0.02
PAUSE, PAUSE_MAX = 0.5, 30.0
"""Seconds before what failed is done again: the bus is back soon, a fault of ours is waited for longer each time."""
TELLERS = 16


class Controller:
    """One replica. `run` until cancelled. `platform`: none = our own daemons, who are told `credentials` (host:port of the gRPC service)."""

    def __init__(self, bus: Bus, credentials: str, platform: Platform | None = None) -> None:
        self.cache = Cache(bus)
        self.platform = platform or Nodes(bus, self.cache, credentials)
        self._bus = bus
        self._teller = Teller()
        self._known_era, self._era_of = Era(""), -1

    async def start(self, service: Service) -> None:
        """Subscribe first, then read: nothing can go between."""
        cache = self.cache
        self._bus.on_link.append(cache.could_not_hear)
        await self._bus.subscribe("aegis.view.job.*.state", cache.on_head, timeout=30.0)
        await self._bus.subscribe("aegis.node.*.hb", cache.on_beat, timeout=30.0)
        for stream in FILTERS:
            service.spawn(cache.follow(stream), f"follow {stream}")
        service.spawn(cache.reread_heads(), "heads")
        service.spawn(cache.load_jobs(), "load")
        service.spawn(self._listen(service), "hearing")
        await self.platform.start(service, lambda: cache.touch("platform"))
        service.spawn(self._repeat(service, self._tell, cache.changed()), "facts")
        service.spawn(self._repeat(service, self.platform.place, cache.changed()), "placements")
        service.spawn(self._repeat(service, self.platform.ask, cache.changed("HELD", "heads", "platform")), "questions")
        await Api(self._bus, cache, self.tell, self.platform).start()

    @property
    def ready(self) -> bool:
        """Everything was read once, of the store and of the platform."""
        return self.cache.ready and self.platform.ready

    async def _listen(self, service: Service) -> None:
        """After a reconnect or a stall of our own, silence is ours."""
        generation, lag = self._bus.generation, service.lag.last_at
        while True:
            await asyncio.sleep(0.5)
            if (self._bus.generation, service.lag.last_at) != (generation, lag) or not self._bus.connected:
                generation, lag = self._bus.generation, service.lag.last_at
                self.cache.could_not_hear()

    async def _repeat(self, service: Service, work: Callable[[World], Awaitable[bool]], changed: asyncio.Event) -> None:
        """Do `work` on the present world whenever that has changed, and every TICK; at once again when it says that it changed something itself."""
        pause = PAUSE
        while not service.stopping.is_set():
            try:
                async with asyncio.timeout(TICK):
                    await changed.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(GATHER)
            changed.clear()
            if not self.ready or not self._bus.connected:
                continue
            try:
                if await work(self.cache.world()):
                    changed.set()
                pause = PAUSE
            except Exception as error:
                # Whatever it is: a service that ends places nobody and tells nothing.
                known = isinstance(error, BusError)
                metrics.FAILED.labels(work.__name__.strip("_"), "bus" if known else "fault").inc()
                log.log(
                    logging.WARNING if known else logging.ERROR,
                    "not finished, done again in %.1f s: %s",
                    pause,
                    error,
                    exc_info=None if known else error,
                )
                await asyncio.sleep(pause)
                pause = PAUSE if known else min(PAUSE_MAX, 2 * pause)
                changed.set()

    # --- facts -------------------------------------------------------------------------------------------------------------------

    async def _tell(self, world: World) -> bool:
        began = time.monotonic()
        due = self._teller.due(self.platform.facts(world), began, world.now)
        busy = time.monotonic() - began
        limit = asyncio.Semaphore(TELLERS)

        async def one(item: News) -> None:
            async with limit:
                await self.tell(item)
                self._teller.said(item, time.monotonic())

        results = await asyncio.gather(*map(one, due), return_exceptions=True)
        for error in results:
            if error is not None:
                raise error
        await asyncio.sleep(SHARE * busy)
        return False

    async def _era(self) -> Era:
        """The era of this connection: its salt keeps the ids of facts from being foretold by whoever reads views and may publish reports."""
        if self._era_of != self._bus.generation:
            generation = self._bus.generation
            stored = await self._bus.get("CTL", subjects.ERA)
            try:
                self._known_era = decode(Era, stored.data) if stored is not None else Era("")
            except BadMessage as error:
                raise Unreadable(f"{subjects.ERA}: {error}") from None
            self._era_of = generation
        return self._known_era

    async def tell(self, item: News) -> None:
        """Store one fact; the same fact from another replica is kept once."""
        crashpoint("jobcontroller.before-fact")
        msg_id = (await self._era()).dedup_id(item.msg_id)
        await self._bus.publish(subjects.fact(item.job, item.pod), encode(item.fact), msg_id=msg_id)
        crashpoint("jobcontroller.after-fact")
        metrics.FACTS.labels(item.fact.kind.value).inc()
        log.info("fact %s %s/%s attempt %d %s", item.fact.kind.value, item.job, item.pod, item.fact.attempt, item.fact.message)


async def start(service: Service) -> None:
    """Until the service is to stop."""
    async with joined(service) as replica:
        await replica.lease.start()
        controller = Controller(replica.bus, service.config.credentials.server)
        if service.config.jobcontroller.platform == "kubernetes":
            controller.platform = await _kubernetes(controller, replica.bus, service.config)
        service.health["read"] = lambda: controller.ready
        await controller.start(service)
        await service.stopping.wait()
        await controller.platform.stop()
        await replica.lease.stop()


async def _kubernetes(controller: Controller, bus: Bus, settings: Config) -> Platform:
    """Only who runs in a cluster loads its client."""
    from aegis_jobcontroller.kubernetes.client import Client
    from aegis_jobcontroller.kubernetes.platform import Kubernetes, site_of

    given = settings.jobcontroller
    client = await Client.connect(given.kubeconfig)
    site = site_of(given, settings.credentials.server, settings.credentials.tls_ca)
    return Kubernetes(bus, controller.cache, client, site, given.connect_deadline)


def main() -> int:
    """`python -m aegis_jobcontroller`. Settings: `aegis config show`; `credentials.server` is what agents are told."""
    return replica_main("jobcontroller", start, needs=("bus.servers", "bus.creds"))
