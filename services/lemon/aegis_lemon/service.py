"""lemon: which nodes are bad, from what the bus tells; verdicts, risks for whoever places jobs, and, where it may act, drains, tests and tickets.

Any number of replicas keep the history (EVENTS, registrations, taints), each in a folder of its own; the one that holds the lease `aegis.lease.lemon`
decides and answers. What it decided lies in the streams: another goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from aegis_bus.config import Config
from aegis_bus.replica import era_of, joined, replica_main
from aegis_bus.service import Service
from aegis_bus.sole import SoleLease
from aegis_proto.lemon import SERVICE

from aegis_lemon.api import Api
from aegis_lemon.detect import DETECTORS
from aegis_lemon.watch.collector import Collector
from aegis_lemon.watch.kept import Files
from aegis_lemon.watch.reading import Reading
from aegis_lemon.watch.rounds import Rounds
from aegis_lemon.watch.slurm import SlurmSide
from aegis_lemon.watch.stories import Stories
from aegis_lemon.watch.tickets import Tickets, check_webhook

log = logging.getLogger(__name__)


async def start(service: Service) -> None:
    """Until the service is to stop."""
    settings = service.config.lemon
    folder = Path(settings.state)
    async with joined(service) as replica:
        bus = replica.bus
        await replica.lease.start()
        sole = SoleLease(bus, SERVICE, replica.name, service.config.bus.lease_ttl)
        files = Files(folder / "history")
        kept = await asyncio.to_thread(files.open, (await era_of(bus)).era)
        reading = Reading(bus, Collector(kept.known(), settings.settle), kept.seq)
        service.health["reading"] = lambda: reading.ready
        tickets = Tickets(Path(settings.tickets) if settings.tickets else folder / "tickets", settings.webhook)
        slurm = SlurmSide(folder / "slurm", settings.window) if settings.slurm else None
        rounds = Rounds(bus, reading, files, tickets, settings=settings, mode=service.config.actions.mode, slurm=slurm)
        rounds.ready = lambda: reading.ready and sole.held
        stories = Stories(bus)
        api = Api(bus, rounds, tickets, stories, replica.name)
        api.active = lambda: sole.held
        await api.start()
        tasks = [
            service.spawn(sole.run(), "lease"),
            service.spawn(reading.run(), "events"),
            service.spawn(rounds.run(), "rounds"),
            service.spawn(stories.run(), "ledgers"),
        ]
        await service.stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await sole.stop()
        await replica.lease.stop()


def check(config: Config) -> None:
    """ValueError (E130) for what cannot be."""
    settings = config.lemon
    if settings.detector not in DETECTORS:
        raise ValueError(f'E130 lemon.detector "{settings.detector}": expected one of {", ".join(DETECTORS)}')
    for name in ("window", "recent", "round"):
        if not getattr(settings, name) > 0:
            raise ValueError(f"E130 lemon.{name} {getattr(settings, name):g}: expected more than 0")
    check_webhook(settings.webhook)


def main() -> int:
    """`python -m aegis_lemon`. Settings: sections [bus], [service], [lemon] and [actions]."""
    return replica_main(SERVICE, start, needs=("bus.servers", "lemon.state"), check=check)
