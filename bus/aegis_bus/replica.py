"""One replica of a service on the bus: its name, its connection with credentials that are read again, its lease; and the main around them.

def main() -> int:
    return replica_main("lognexus", start, needs=("bus.servers", "lognexus.store"))

async def start(service: Service) -> None:
    async with joined(service) as replica:
        ...replica.name, replica.bus, replica.lease...
        await service.stopping.wait()
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aegis_proto import subjects
from aegis_proto.ids import nearest_id
from aegis_proto.messages import BadMessage, Era, decode

from aegis_bus.config import Config, ConfigError, load
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.identity import Identity
from aegis_bus.lease import Lease
from aegis_bus.service import Service, Start, require_suitable, run_service

log = logging.getLogger(__name__)

EXIT_CONFIG = 2
CLOSE_GRACE = 2.0


@dataclass(frozen=True, slots=True)
class Replica:
    """What `joined` gives. The lease is taken when the service calls `lease.start()`: a replica that cannot serve yet owns nothing."""

    name: str
    bus: Bus
    lease: Lease


def replica_name(service: str, configured: str) -> str:
    """The configured name, or one that no other process has. ConfigError (E130) when it is no id."""
    if not configured:
        tail = f"-{os.getpid()}-{secrets.token_hex(3)}"
        return nearest_id(f"{service}-{socket.gethostname().split('.')[0]}"[: 40 - len(tail)] + tail)
    if nearest_id(configured) != configured:
        raise ConfigError(f'E130 service.replica "{configured}": use a-z, 0-9 and -, at most 40. Nearest: {nearest_id(configured)}')
    return configured


async def era_of(bus: Bus) -> Era:
    """This store of states, however long it takes to learn it; without a name where there is none, or it cannot be read."""
    while True:
        try:
            stored = await bus.get("CTL", subjects.ERA)
            return decode(Era, stored.data) if stored is not None else Era("")
        except BadMessage as error:
            log.error("%s: %s", subjects.ERA, error)
            return Era("")
        except BusError as error:
            log.info("era not known yet: %s", error)
            await asyncio.sleep(1.0)


@asynccontextmanager
async def joined(service: Service) -> AsyncIterator[Replica]:
    """Connect as this replica; `/healthz` tells `bus`. At the end the connection is drained. BusError, E120 as `Bus.connect` and `require_suitable`.

    The operator renews the credentials file; it is read again when the server refuses the old JWT. One that holds another key is another identity, to
    which readers cannot move: the service ends, and is started again by what keeps it running. Without a file (a bus without accounts, in tests and
    trials) the identity is a new one.
    """
    config = service.config
    name = replica_name(service.name, config.service.replica)
    identity = Identity.from_creds_file(config.bus.creds) if config.bus.creds else Identity.new()

    async def reread() -> str:
        if not config.bus.creds:
            return identity.jwt
        fresh = Identity.from_creds_file(config.bus.creds)
        if fresh.public != identity.public:
            error = ConfigError(f"{config.bus.creds} holds another key now: {service.name} ends, to start again with it")
            log.error("%s", error)
            service.fail(error)
            raise error
        return fresh.jwt

    service.health["bus"] = lambda: False
    bus = await Bus.connect(
        identity,
        list(config.bus.servers),
        name=name if name.startswith(f"{service.name}-") else f"{service.name}-{name}",
        tls_ca=config.bus.tls_ca or None,
        timeout=config.bus.connect_timeout,
        jwt_source=reread,
    )
    service.health["bus"] = lambda: bus.connected
    try:
        await require_suitable(bus)
        yield Replica(name, bus, Lease(bus, name, service.name, config.bus.lease_ttl))
    finally:
        await bus.close(CLOSE_GRACE)


def replica_main(
    service: str,
    start: Start,
    *,
    needs: Iterable[str] = ("bus.servers",),
    check: Callable[[Config], object] = lambda config: None,
    argv: Sequence[str] | None = None,
) -> int:
    """Main of a service: exit code 2 with a sentence for a wrong configuration, before anything starts; else `run_service`.

    `needs`: settings ("section.key") that must not be empty. `check` may raise ValueError (ConfigError is one).
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words:
        sys.stderr.write(f"aegis-{service}: {' '.join(words)}: takes no arguments, only aegis.toml and AEGIS_ variables\n")
        return EXIT_CONFIG
    try:
        config = load()
        replica_name(service, config.service.replica)
        for need in needs:
            section, key = need.split(".")
            if not getattr(getattr(config, section), key):
                raise ConfigError(f"E130 {service} needs {need}: [{section}] {key} = ... in aegis.toml, or AEGIS_{section.upper()}_{key.upper()}")
        check(config)
        if config.bus.creds:
            Identity.from_creds_file(config.bus.creds)
    except OSError as error:
        sys.stderr.write(f"E130 bus.creds {config.bus.creds} cannot be read: {error.strerror}. The file of `aegis creds issue` for this service\n")
        return EXIT_CONFIG
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CONFIG
    return run_service(service, start, config)
