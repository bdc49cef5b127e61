"""The master: start, loop, stop. Any number of replicas, each with a lease; each job has one owner among them.

Reads and writes through the parts: `heads` (all heads), `ownership` (who owns what), `owner` (one job), `api` (requests), `publish` (effects).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog
from aegis_bus import errors
from aegis_bus.config import Config
from aegis_bus.connection import Bus
from aegis_bus.jobstore import JobStore
from aegis_bus.lease import Lease
from aegis_bus.replica import joined, replica_main
from aegis_bus.service import Service
from aegis_proto import subjects
from aegis_proto.messages import BadMessage, Era, decode

from aegis_master import metrics
from aegis_master.api import Api
from aegis_master.clock import ServerClock
from aegis_master.effects import Effects
from aegis_master.heads import Heads
from aegis_master.judge import JudgeTimes
from aegis_master.owner import Shared
from aegis_master.ownership import Ownership
from aegis_master.publish import Publisher
from aegis_master.queries import Queries
from aegis_master.settings import MasterSettings, OwnerSettings
from aegis_master.trace import Trace

log = structlog.get_logger("aegis.master.service")
READ_AGAIN = 0.2
"""Seconds until era and heads are read again when they could not be."""
HEADS_AGAIN = 300.0
"""Seconds between full reads of all heads (ended ones expire without a view)."""


@dataclass(slots=True)
class EraHolder:
    """Era of the store, as last read."""

    era: str = ""


class Master:
    """One replica. `start` until it serves, `run` until cancelled, `stop` gives everything away."""

    def __init__(self, bus: Bus, settings: MasterSettings, replica: str) -> None:
        self.bus = bus
        self.settings = settings
        self.replica = replica
        self.clock = ServerClock()
        self.store = JobStore(bus)
        self.lease = Lease(bus, replica, "master", settings.lease_ttl)
        self.era = EraHolder()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.trace = Trace(settings.trace)
        self.effects = Effects(Publisher(bus))
        shared = Shared(
            replica,
            bus,
            self.store,
            self.effects,
            self.clock,
            settings.owner,
            self.trace,
            self.may_write,
            lambda: self.era.era,
        )
        self.heads = Heads(bus, self.clock)
        self.ownership = Ownership(shared, self.heads, settings)
        self.heads.changed = self.ownership.job_changed
        self.api = Api(bus, self.store, self.ownership, Queries(bus, self.store, self.heads, self.ownership), settings)
        self.lease.on_change = self._lease_changed
        self._linked = asyncio.Event()
        bus.on_link.append(self._linked.set)

    async def start(self) -> None:
        """Be ready to own jobs and to answer. BusError when the bus or its streams are not there."""
        await self._read_era()
        await self.lease.start()
        await self.heads.start()
        await self.api.start()
        log.info("master ready", replica=self.replica, era=self.era.era, jobs=len(self.heads))

    async def run(self, service: Service | None = None) -> None:
        """Everything that goes on beside the owners, until cancelled."""
        if service is not None:
            service.lag.on_lag = self._lagged
        async with asyncio.TaskGroup() as group:
            group.create_task(self.ownership.watch(), name="ownership")
            group.create_task(self._watch_links(), name="links")
            group.create_task(self._watch_store(), name="store")

    def _lease_changed(self) -> None:
        """While our lease is lost we only wait: others may own what was ours."""
        (self.may_write.clear if self.lease.lost.is_set() else self.may_write.set)()

    def _lagged(self) -> None:
        """We may not have heard for a while: nobody is judged."""
        metrics.LAGS.inc()
        self.ownership.quiet()

    async def _watch_links(self) -> None:
        """After each reconnect: we may have missed something, so nobody is judged, and era and heads are read anew."""
        while True:
            await self._linked.wait()
            self._linked.clear()
            self.ownership.quiet()
            try:
                await self._read_era()
                await self.heads.load()
            except errors.BusError as error:
                log.info("after a reconnect: not readable yet", error=str(error))
                await asyncio.sleep(READ_AGAIN)
                if self.bus.connected:
                    self._linked.set()

    async def _watch_store(self) -> None:
        """Era and fill of the store."""
        waited = 0.0
        while True:
            await asyncio.sleep(self.settings.era_poll)
            waited += self.settings.era_poll
            try:
                await self._read_era()
                await self.api.store_used()
                if waited >= HEADS_AGAIN:
                    waited = 0.0
                    await self.heads.load()
            except errors.BusError as error:
                log.info("store not readable now", error=str(error))

    async def _read_era(self) -> None:
        item = await self.bus.get("CTL", subjects.ERA)
        if item is None:
            return
        try:
            era = decode(Era, item.data).era
        except BadMessage as error:
            log.error("the era of the store is not readable", error=str(error))
            return
        if era != self.era.era:
            known = self.era.era
            if known:
                log.warning("the store is another one", era=era, before=known)
                self.ownership.quiet()
                await self.heads.load(anew=True)
            self.era.era = era
            self.ownership.poke()

    async def stop(self, grace: float) -> None:
        """Give all jobs away, then the lease, so that others take over at once."""
        await self.ownership.stop(grace)
        await self.lease.stop()
        await self.effects.close()
        self.trace.close()


async def serve(service: Service) -> None:
    """`start` of `aegis_bus.replica.replica_main`."""
    serving = False
    service.health["serving"] = lambda: serving  # requests are answered, jobs can be owned
    async with joined(service) as replica:
        master = Master(replica.bus, settings_of(service.config), replica.name)
        await master.start()
        serving = True
        service.health["lease"] = lambda: not master.lease.lost.is_set()
        service.spawn(master.run(service), "master")
        await service.stopping.wait()
        await master.stop(max(1.0, service.config.service.drain_grace - 3.0))


def main() -> int:
    """`python -m aegis_master`: one replica."""
    return replica_main("master", serve, check=settings_of)


def settings_of(config: Config) -> MasterSettings:
    """The settings of this service out of the whole configuration."""
    given = config.master
    judge = JudgeTimes(silent=given.silent, unconfirmed=given.unconfirmed, quiet=given.quiet, common_share=given.common_share)
    owner = OwnerSettings(judge=judge, ack_after=given.ack_after, progress=given.progress, tick=given.tick)
    clocks = dict(scan=given.scan, takeover_delay=given.takeover_delay)
    return MasterSettings(owner, config.bus.lease_ttl, **clocks, trace=given.trace, actions=config.actions.mode)
