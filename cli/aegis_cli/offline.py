"""Commands that work without any service: the pure core of a service's package, imported here when such a command runs and not before.

The table is the whole exception to "services never import each other, and the command line imports none": a test holds it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from aegis_cli.errors import CliError

CORES: dict[str, str] = {
    "aegis_lognexus": "lognexus",
}
"""Package -> the extra of the distribution that brings what it needs."""


def core(module: str, command: str) -> Any:
    """The module of one of these packages; E124 with what to install when something it needs is not there.

    Raises KeyError for a package that is not in the table.
    """
    extra = CORES[module.partition(".")[0]]
    try:
        return import_module(module)
    except ImportError as error:
        missing = error.name or str(error)
        raise CliError(
            "E124", f"{command} needs {missing}, which is not installed", hint=f"pip install 'aegis-train[{extra}]'", missing=missing
        ) from None
