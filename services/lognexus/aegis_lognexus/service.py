"""lognexus: the lines of all workers into the store, a verdict for each failure, answers to questions for lines, and the sinks.

Any number of replicas, each with a folder of its own: the jobs are shared among those that live (`share`). Reads LOGS, EVENTS and CTL; writes its
folder, `aegis.verdict.lognexus.job.<id>`, its lease and DLQ.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from aegis_bus.config import Config
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.replica import joined, replica_main
from aegis_bus.service import Service
from aegis_proto import subjects
from aegis_proto.logs import SERVICE
from aegis_proto.messages import BadMessage, Era, decode

from aegis_lognexus.api import Api
from aegis_lognexus.intake import Intake
from aegis_lognexus.judging import Judging
from aegis_lognexus.notify import Notifier, addresses
from aegis_lognexus.share import Shares
from aegis_lognexus.sinks import Sender, target
from aegis_lognexus.store import LogStore, StoreSettings

log = logging.getLogger(__name__)

ERA_EVERY = 1.0


class EraWatch:
    """The era of this store of states; asked again after each new connection."""

    def __init__(self, bus: Bus) -> None:
        self._bus, self._of = bus, -1
        self.known_era = Era("")

    @property
    def era(self) -> str:
        return self.known_era.era

    async def read(self) -> None:
        if self._of == self._bus.generation:
            return
        generation = self._bus.generation
        stored = await self._bus.get("CTL", subjects.ERA)
        try:
            self.known_era = decode(Era, stored.data) if stored is not None else Era("")
        except BadMessage as error:
            log.error("%s: %s", subjects.ERA, error)
        self._of = generation

    async def known(self) -> None:
        """Read it, however long that takes."""
        while self._of < 0:
            try:
                await self.read()
            except BusError as error:
                log.info("era not known yet: %s", error)
                await asyncio.sleep(ERA_EVERY)

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(ERA_EVERY)
            try:
                await self.read()
            except BusError as error:
                log.info("era not known now: %s", error)


async def start(service: Service) -> None:
    """Until the service is to stop."""
    settings = service.config.lognexus
    store = LogStore(Path(settings.store), StoreSettings(max_bytes=settings.max_bytes, max_age=settings.max_age))
    async with joined(service) as replica:
        bus = replica.bus
        await replica.lease.start()
        era = EraWatch(bus)
        await era.known()
        store.begin(era.era)
        shares = Shares(replica.name)
        intake = Intake(bus, store, shares, lambda: era.era)
        service.health["reading"] = lambda: intake.ready
        judging = Judging(
            bus,
            store.folder / "jobs",
            intake,
            shares,
            settle=settings.settle,
            hang_settle=settings.hang_settle,
            start=store.events,
            done=store.judged,
            era=lambda: era.known_era,
        )
        urls = service.config.notify.urls
        notifier = Notifier(bus, replica.name, store.folder, urls, shares.mine, lambda: era.era) if urls else None
        tasks = [
            service.spawn(era.follow(), "era"),
            service.spawn(intake.run(), "lines"),
            service.spawn(judging.run(), "verdicts"),
            *([service.spawn(notifier.run(), "notify")] if notifier is not None else []),
            *(service.spawn(Sender(store.folder, target(url)).run(), f"sink {n}") for n, url in enumerate(settings.sinks)),
        ]
        await Api(bus, store, shares, intake).start()
        await service.stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await intake.stop()
        await replica.lease.stop()


def check(config: Config) -> None:
    """ValueError for a sink that cannot be, or an address of nobody."""
    for url in config.lognexus.sinks:
        target(url)
    if config.notify.urls:
        addresses(config.notify.urls)


def main() -> int:
    """`python -m aegis_lognexus`. Settings: sections [bus], [service], [lognexus] and [notify]."""
    return replica_main(SERVICE, start, needs=("bus.servers", "lognexus.store"), check=check)
