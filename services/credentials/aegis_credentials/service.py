"""The credentials service: two connections (role credentials, and the user of SYS), the gRPC server, the requests, the level loop.

Alone in holding SYS and the operator's signing key. Its own JWTs are minted from the root secret at start and live in memory.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog
from aegis_bus.config import Config
from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_bus.service import Service
from aegis_proto.messages import BadMessage

from aegis_credentials.authority import Authority
from aegis_credentials.claims import Claims
from aegis_credentials.grpc_server import serve
from aegis_credentials.keys import write_private
from aegis_credentials.level import Level
from aegis_credentials.rpc import Requests
from aegis_credentials.setup import SetupError, Site, open_site

log = structlog.get_logger()


def site_of(config: Config) -> Site:
    """The site that the configuration names. SetupError, BadKey."""
    settings = config.credentials
    if not settings.state:
        raise SetupError("E130 credentials.state (AEGIS_CREDENTIALS_STATE) must name the folder that `aegis setup` made")
    return open_site(Path(settings.state), Path(settings.root_secret) if settings.root_secret else None)


async def run(service: Service, site: Site) -> None:
    """Until `service.stopping`: start, serve, drain."""
    config = service.config
    settings = config.credentials
    name = config.service.replica or "credentials"
    levels: list[Level] = []

    def reconnected() -> None:
        for level in levels:
            level.everything()

    identity = Identity.from_creds(site.issue("credentials", name=name))
    bus = await Bus.connect(
        identity,
        config.bus.servers,
        name=f"credentials-{name}",
        tls_ca=config.bus.tls_ca or None,
        timeout=config.bus.connect_timeout,
        on_connected=reconnected,
    )
    sys_bus = await Bus.connect(
        Identity.from_creds(site.system_user()),
        config.bus.servers,
        name=f"credentials-{name}-sys",
        tls_ca=config.bus.tls_ca or None,
        timeout=config.bus.connect_timeout,
        on_connected=reconnected,
    )
    service.health["bus"] = lambda: bus.connected
    service.health["sys"] = lambda: sys_bus.connected
    authority = Authority(site, bus, Claims(sys_bus, site.secret), lifetime=int(settings.ttl))
    level = Level(authority, bus, interval=settings.interval, grace=settings.account_grace)
    levels.append(level)
    try:
        await authority.ensure_site()
    except BadMessage as error:
        log.error("a record of a newer version is left alone", error=str(error))
    await level.start()
    await Requests(authority, bus).start()
    service.spawn(level.run(), "level")
    server, port = await serve(authority, settings.listen, settings.bus_servers or config.bus.servers)
    address = f"{settings.listen.rpartition(':')[0]}:{port}"
    write_private(site.folder / f"grpc-{name}.addr", address + "\n")
    log.info("serving", grpc=address)
    try:
        await service.stopping.wait()
    finally:
        await server.stop(grace=min(5.0, config.service.drain_grace))
        await asyncio.gather(bus.close(), sys_bus.close())
