"""`python -m aegis_credentials`: the credentials service. Configuration: sections [bus], [service], [credentials], [logs]."""

from __future__ import annotations

import sys

from aegis_bus import config
from aegis_bus.service import Service, run_service

from aegis_credentials.keys import BadKey
from aegis_credentials.service import run, site_of
from aegis_credentials.setup import SetupError


def main() -> int:
    try:
        settings = config.load()
        site = site_of(settings)
    except (config.ConfigError, SetupError, BadKey) as error:
        print(error, file=sys.stderr)
        return 2

    async def start(service: Service) -> None:
        await run(service, site)

    return run_service("credentials", start, settings)


if __name__ == "__main__":
    sys.exit(main())
