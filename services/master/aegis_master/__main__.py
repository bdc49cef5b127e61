"""`python -m aegis_master`: one replica of the master."""

from __future__ import annotations

import sys

from aegis_bus.config import ConfigError, load
from aegis_bus.service import run_service

from aegis_master.service import replica_name, serve, settings_of


def main() -> int:
    try:
        config = load()
        settings_of(config), replica_name(config.service.replica)  # say what is wrong before anything starts
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return run_service("master", serve, config)


if __name__ == "__main__":
    sys.exit(main())
