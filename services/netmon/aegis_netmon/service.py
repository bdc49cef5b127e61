"""netmon: the ports of all nodes and the fabric between them, judged; what gets worse is told, with the jobs it hits; questions are answered.

Any number of replicas read the polls of the nodes (METRICS) and follow the jobs (CTL); the one that holds the lease `aegis.lease.netmon` also sweeps
the fabric, tells verdicts (EVENTS) and answers. Owns its folder, and what it told: read back at its start, so that nothing is told twice.
"""

from __future__ import annotations

import asyncio
import logging
import re
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
from aegis_bus.settings import NetmonSettings
from aegis_bus.sole import SoleLease
from aegis_proto import subjects
from aegis_proto.ids import is_id, nearest_id
from aegis_proto.messages import BadMessage, Era, decode
from aegis_proto.net import SERVICE

from aegis_netmon import kept, limits
from aegis_netmon.api import Api
from aegis_netmon.expected import Expected
from aegis_netmon.hosts import Hosts
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


async def keep(folder: Path, picture: Picture, intake: Intake, era: str) -> None:
    """Write what is to be remembered, now and then."""
    while True:
        await asyncio.sleep(KEEP_EVERY)
        await keep_now(folder, picture, intake, era)


async def keep_now(folder: Path, picture: Picture, intake: Intake, era: str) -> None:
    try:
        await asyncio.to_thread(kept.write, folder, kept.gather(picture.hosts, picture.watch, intake.seq, era))
    except OSError as error:
        log.error("what is to be remembered could not be written: %s", error)


async def start(service: Service) -> None:
    """Until the service is to stop."""
    settings = service.config
    replica = settings.service.replica or f"{SERVICE}-{socket.gethostname().split('.')[0].lower()}-{secrets.token_hex(3)}"
    picture = Picture(hosts_of(settings.netmon))
    bus = await Bus.connect(
        Identity.from_creds_file(settings.bus.creds) if settings.bus.creds else Identity.new(),
        settings.bus.servers,
        name=replica if replica.startswith(SERVICE) else f"{SERVICE}-{replica}",
        tls_ca=settings.bus.tls_ca or None,
        timeout=settings.bus.connect_timeout,
    )
    service.health["bus"] = lambda: bus.connected
    await require_suitable(bus)
    lease, sole = Lease(bus, replica, SERVICE, settings.bus.lease_ttl), SoleLease(bus, SERVICE, replica, settings.bus.lease_ttl)
    folder = Path(settings.netmon.state) if settings.netmon.state else None
    try:
        await lease.start()
        era = await era_of(bus)
        remembered = kept.read(folder, era) if folder is not None else None
        if remembered is not None:
            kept.give_back(remembered, picture.hosts)
            picture.watch = remembered.watch
            log.info("remembered: %d ports, %d links", len(remembered.ports), len(remembered.watch.links))
        intake = Intake(bus, picture.hosts.take, remembered.seq if remembered is not None else 0)
        service.health["reading"] = lambda: intake.ready
        places = Places(bus, picture.placed)
        rounds = Rounds(bus, picture, settings.netmon)
        sweeping = Sweeping(settings.netmon, sole, picture, rounds.swept)
        api = Api(bus, picture, sweeping, replica)
        rounds.ready = lambda: intake.ready and sole.held
        api.active = lambda: sole.held
        await api.start()
        tasks = [
            service.spawn(sole.run(), "lease"),
            service.spawn(intake.run(), "polls"),
            service.spawn(places.run(), "places"),
            service.spawn(rounds.run(), "rounds"),
            service.spawn(sweeping.run(), "sweeps"),
        ]
        if folder is not None:
            tasks.append(service.spawn(keep(folder, picture, intake, era), "memory"))
        await service.stopping.wait()
        sweeping.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if folder is not None:
            await keep_now(folder, picture, intake, era)
        await sole.stop()
        await lease.stop()
    finally:
        await bus.close()


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m aegis_netmon`. Settings: sections [bus], [service] and [netmon]."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words:
        sys.stderr.write(f"aegis-netmon: {' '.join(words)}: takes no arguments, only aegis.toml and AEGIS_ variables\n")
        return 2
    try:
        settings = config.load()
        hosts_of(settings.netmon)
    except (config.ConfigError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not settings.bus.servers:
        sys.stderr.write("E130 netmon needs bus.servers (AEGIS_BUS_SERVERS)\n")
        return 2
    if (replica := settings.service.replica) and not is_id(replica):
        sys.stderr.write(f'E130 service.replica "{replica}": use a-z, 0-9 and -, at most 40. Nearest: {nearest_id(replica)}\n')
        return 2
    return run_service(SERVICE, start, settings)
