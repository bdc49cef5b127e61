"""netmon: the ports of all nodes and the fabric between them, judged; what gets worse is told, with the jobs it hits; questions are answered.

Any number of replicas read the polls of the nodes (METRICS) and follow the jobs (CTL); the one that holds the lease `aegis.lease.netmon` also sweeps
the fabric, tells verdicts (EVENTS) and answers. Owns its folder, and what it told: read back at its start, so that nothing is told twice.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.replica import joined, replica_main
from aegis_bus.service import Service
from aegis_bus.settings import NetmonSettings
from aegis_bus.sole import SoleLease
from aegis_proto import subjects
from aegis_proto.messages import BadMessage, Era, decode
from aegis_proto.net import SERVICE

from aegis_netmon import failures, kept, limits
from aegis_netmon.api import Api
from aegis_netmon.expected import Expected
from aegis_netmon.hostpoll import NodePoll
from aegis_netmon.hosts import Hosts
from aegis_netmon.incidents import Incidents
from aegis_netmon.intake import Intake
from aegis_netmon.picture import Picture
from aegis_netmon.places import Places
from aegis_netmon.rounds import Rounds
from aegis_netmon.sweeping import Sweeping

log = logging.getLogger(__name__)

PORT = re.compile(r"(?P<device>[A-Za-z0-9_.-]+)/(?P<port>\d{1,3})(?:@(?P<gbps>\d+(?:\.\d+)?))?")
KEEP_EVERY = 60.0


def manifest(ports: Sequence[str]) -> tuple[Expected, ...]:
    """ValueError (E130) names the one that is no port.

    >>> manifest(["mlx5_0/1@400"])[0].gbps
    400.0
    """
    found = []
    for text in ports:
        match = PORT.fullmatch(text)
        if match is None:
            raise ValueError(f'E130 netmon.expected "{text}": expected DEVICE/PORT or DEVICE/PORT@GBPS, as mlx5_0/1@400')
        found.append(Expected(match["device"], int(match["port"]), float(match["gbps"]) if match["gbps"] else None))
    return tuple(found)


def hosts_of(settings: NetmonSettings) -> Hosts:
    """By the site's manifest and limits. ValueError (E130)."""
    if not settings.limits:
        return Hosts(manifest(settings.expected))
    try:
        return Hosts(manifest(settings.expected), limits.of_site(Path(settings.limits).read_text(encoding="utf-8")))
    except (OSError, limits.BadLimits) as error:
        raise ValueError(f"E130 netmon.limits {settings.limits}: {error}") from None


async def era_of(bus: Bus) -> str:
    """Id of this store of states, however long it takes to learn it."""
    while True:
        try:
            stored = await bus.get("CTL", subjects.ERA)
            return decode(Era, stored.data).era if stored is not None else ""
        except BadMessage as error:
            log.error("%s: %s", subjects.ERA, error)
            return ""
        except BusError as error:
            log.info("era not known yet: %s", error)
            await asyncio.sleep(1.0)


class Memory:
    """What is written down now and then, and at the end."""

    def __init__(self, folder: Path, picture: Picture, incidents: Incidents, intake: Intake, era: str) -> None:
        self._folder, self._picture, self._incidents, self._intake, self._era = folder, picture, incidents, intake, era

    async def run(self) -> None:
        while True:
            await asyncio.sleep(KEEP_EVERY)
            await self.write()

    async def write(self) -> None:
        """A disk that refuses is told of: the file before stays."""
        made = kept.gather(self._picture.hosts, self._picture.watch, self._incidents.kept(), self._intake.seq, self._era)
        try:
            await asyncio.to_thread(kept.write, self._folder, made)
        except OSError as error:
            log.error("what is to be remembered could not be written: %s", error)


async def start(service: Service) -> None:
    """Until the service is to stop."""
    settings = service.config.netmon
    folder = Path(settings.state) if settings.state else None
    picture = Picture(hosts_of(settings))
    async with joined(service) as replica:
        bus = replica.bus
        await replica.lease.start()
        sole = SoleLease(bus, SERVICE, replica.name, service.config.bus.lease_ttl)
        era = await era_of(bus)
        remembered = kept.read(folder, era) if folder is not None else None
        if remembered is not None:
            kept.give_back(remembered, picture.hosts)
            picture.watch = remembered.watch
            log.info("remembered: %d ports, %d links", len(remembered.ports), len(remembered.watch.links))
        incidents = Incidents(picture.hosts.limits, remembered.incidents if remembered is not None else None)

        def take(poll: NodePoll) -> None:
            for port in picture.hosts.take(poll):
                incidents.counted((port.guid or f"{port.seen.node}/{port.seen.device}", port.seen.port), port.port, poll.at)

        intake = Intake(bus, take, remembered.seq if remembered is not None else 0)
        service.health["reading"] = lambda: intake.ready
        rounds = Rounds(bus, picture, incidents, settings)
        sweeping = Sweeping(settings, sole, picture, incidents, rounds.wake)
        api = Api(bus, picture, sweeping, rounds, replica.name)
        rounds.ready = lambda: intake.ready and sole.held
        api.active = lambda: sole.held
        await api.start()
        tasks = [
            service.spawn(sole.run(), "lease"),
            service.spawn(intake.run(), "polls"),
            service.spawn(Places(bus, picture.placed).run(), "places"),
            service.spawn(failures.follow(bus, incidents, picture), "failures"),
            service.spawn(rounds.run(), "rounds"),
            service.spawn(sweeping.run(), "sweeps"),
        ]
        memory = Memory(folder, picture, incidents, intake, era) if folder is not None else None
        if memory is not None:
            tasks.append(service.spawn(memory.run(), "memory"))
        await service.stopping.wait()
        sweeping.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if memory is not None:
            await memory.write()
        await sole.stop()
        await replica.lease.stop()


def main() -> int:
    """`python -m aegis_netmon`. Settings: sections [bus], [service] and [netmon]."""
    return replica_main(SERVICE, start, check=lambda config: hosts_of(config.netmon))
