"""netmon: the ports of all nodes and the fabric between them, judged; what gets worse is told, with the jobs it hits; questions are answered.

Any number of replicas read the polls of the nodes (METRICS) and follow the jobs (CTL); the one that holds the lease `aegis.lease.netmon` also sweeps
the fabric, tells verdicts (EVENTS) and facts (REPORTS), answers, and writes what its successor must know (KEPT). What it told is read back at its
start, so that nothing is told twice.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from aegis_bus.errors import BusError
from aegis_bus.replica import era_of, joined, replica_main
from aegis_bus.service import Service
from aegis_bus.settings import NetmonSettings
from aegis_bus.sole import SoleLease
from aegis_proto.net import SERVICE

from aegis_netmon import failures, kept, limits, metrics
from aegis_netmon.api import Api
from aegis_netmon.expected import Expected
from aegis_netmon.hostpoll import NodePoll
from aegis_netmon.hosts import Hosts
from aegis_netmon.incidents import Incidents
from aegis_netmon.intake import Intake
from aegis_netmon.kept import Kept
from aegis_netmon.linkmetrics import LinkMetrics
from aegis_netmon.memory import Memory
from aegis_netmon.picture import Picture
from aegis_netmon.places import Places
from aegis_netmon.rounds import Rounds
from aegis_netmon.sweeping import Sweeping, zone_of

log = logging.getLogger(__name__)

PORT = re.compile(r"(?P<device>[A-Za-z0-9_.-]+)/(?P<port>\d{1,3})(?:@(?P<gbps>\d+(?:\.\d+)?))?")


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


async def remembered(memory: Memory) -> Kept | None:
    """What was remembered, however long the bus is away."""
    while True:
        try:
            return await memory.read()
        except BusError as error:
            log.warning("what was remembered is not known yet (stream KEPT; a site set up before needs `aegis setup` once more): %s", error)
            await asyncio.sleep(1.0)


async def start(service: Service) -> None:
    """Until the service is to stop."""
    settings = service.config.netmon
    picture = Picture(hosts_of(settings))
    async with joined(service) as replica:
        bus = replica.bus
        await replica.lease.start()
        sole = SoleLease(bus, SERVICE, replica.name, service.config.bus.lease_ttl)
        era = await era_of(bus)
        memory = Memory(bus, replica.name, era.era, settings.keep, lambda: sole.held)
        found = await remembered(memory)
        if found is not None:
            kept.give_back(found, picture.hosts)
            picture.watch = found.watch
            log.info("remembered: %d ports, %d links", len(found.ports), len(found.watch.links))
        incidents = Incidents(picture.hosts.limits, found.incidents if found is not None else None)

        def take(poll: NodePoll) -> None:
            for port in (port for port in picture.hosts.take(poll) if not port.aside):
                incidents.counted((port.guid or f"{port.seen.node}/{port.seen.device}", port.seen.port), port.port, poll.at)

        intake = Intake(bus, take, found.seq if found is not None else 0)
        service.health["reading"] = lambda: intake.ready
        rounds = Rounds(bus, picture, incidents, settings, era)
        sweeping = Sweeping(settings, lambda: memory.mine and sole.held, picture, incidents, rounds.wake)
        api = Api(bus, picture, sweeping, rounds, replica.name)
        rounds.ready = lambda: intake.ready and memory.mine and sole.held
        api.active = lambda: memory.mine and sole.held
        metrics.REGISTRY.register(LinkMetrics(picture, api.active))
        await api.start()
        tasks = [
            service.spawn(sole.run(), "lease"),
            service.spawn(intake.run(), "polls"),
            service.spawn(Places(bus, picture.placed).run(), "places"),
            service.spawn(failures.follow(bus, incidents, picture), "failures"),
            service.spawn(rounds.run(), "rounds"),
            service.spawn(sweeping.run(), "sweeps"),
            service.spawn(memory.run(picture, incidents, intake), "memory"),
        ]
        await service.stopping.wait()
        sweeping.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await memory.write(picture, incidents, intake)
        except BusError as error:
            log.warning("what is to be remembered could not be written: %s", error)
        await sole.stop()
        await replica.lease.stop()


def main() -> int:
    """`python -m aegis_netmon`. Settings: sections [bus], [service] and [netmon]."""
    return replica_main(SERVICE, start, check=lambda config: (hosts_of(config.netmon), zone_of(config.netmon)))
