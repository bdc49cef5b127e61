"""lognexus: the lines of all workers into the store, a verdict for each failure, answers to questions for lines, and the sinks.

Any number of replicas, each with a folder of its own: the jobs are shared among those that live (`share`). Reads LOGS, EVENTS and CTL; writes its
folder, `aegis.verdict.lognexus.job.<id>`, its lease and DLQ.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from aegis_bus import config
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.identity import Identity
from aegis_bus.lease import Lease
from aegis_bus.service import Service, require_suitable, run_service
from aegis_proto import subjects
from aegis_proto.ids import is_id, nearest_id
from aegis_proto.logs import SERVICE
from aegis_proto.messages import BadMessage, Era, decode

from aegis_lognexus.api import Api
from aegis_lognexus.intake import Intake
from aegis_lognexus.judging import Judging
from aegis_lognexus.share import Shares
from aegis_lognexus.sinks import Sender, target
from aegis_lognexus.store import LogStore, StoreSettings

log = logging.getLogger(__name__)

ERA_EVERY = 1.0


class EraWatch:
    """The era of this store of states; asked again after each new connection."""

    def __init__(self, bus: Bus) -> None:
        self._bus, self._of = bus, -1
        self.era = ""

    async def read(self) -> None:
        if self._of == self._bus.generation:
            return
        generation = self._bus.generation
        stored = await self._bus.get("CTL", subjects.ERA)
        try:
            self.era = decode(Era, stored.data).era if stored is not None else ""
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
    settings = service.config
    replica = settings.service.replica or f"{SERVICE}-{socket.gethostname().split('.')[0].lower()}-{secrets.token_hex(3)}"
    store = LogStore(Path(settings.lognexus.store), StoreSettings(max_bytes=settings.lognexus.max_bytes, max_age=settings.lognexus.max_age))
    bus = await Bus.connect(
        Identity.from_creds_file(settings.bus.creds) if settings.bus.creds else Identity.new(),
        settings.bus.servers,
        name=replica if replica.startswith(SERVICE) else f"{SERVICE}-{replica}",
        tls_ca=settings.bus.tls_ca or None,
        timeout=settings.bus.connect_timeout,
    )
    service.health["bus"] = lambda: bus.connected
    await require_suitable(bus)
    lease = Lease(bus, replica, SERVICE, settings.bus.lease_ttl)
    try:
        await lease.start()
        era = EraWatch(bus)
        await era.known()
        store.begin(era.era)
        shares = Shares(replica)
        intake = Intake(bus, store, shares, lambda: era.era)
        service.health["reading"] = lambda: intake.ready
        judging = Judging(bus, store.folder / "jobs", intake, shares, settle=settings.lognexus.settle, start=store.events, done=store.judged)
        tasks = [
            service.spawn(era.follow(), "era"),
            service.spawn(intake.run(), "lines"),
            service.spawn(judging.run(), "verdicts"),
            *(service.spawn(Sender(store.folder, target(url)).run(), f"sink {n}") for n, url in enumerate(settings.lognexus.sinks)),
        ]
        await Api(bus, store, shares).start()
        await service.stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await intake.stop()
        await lease.stop()
    finally:
        await bus.close()


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m aegis_lognexus`. Settings: sections [bus], [service] and [lognexus]."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words:
        sys.stderr.write(f"aegis-lognexus: {' '.join(words)}: takes no arguments, only aegis.toml and AEGIS_ variables\n")
        return 2
    try:
        settings = config.load()
    except config.ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not settings.bus.servers or not settings.lognexus.store:
        sys.stderr.write("E130 lognexus needs bus.servers (AEGIS_BUS_SERVERS) and lognexus.store (AEGIS_LOGNEXUS_STORE), a folder\n")
        return 2
    if (replica := settings.service.replica) and not is_id(replica):
        sys.stderr.write(f'E130 service.replica "{replica}": use a-z, 0-9 and -, at most 40. Nearest: {nearest_id(replica)}\n')
        return 2
    try:
        for url in settings.lognexus.sinks:
            target(url)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return run_service(SERVICE, start, settings)
