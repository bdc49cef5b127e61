"""Commands that work without any service: the pure core of a service's package, imported here when such a command runs and not before.

The table is the whole exception to "services never import each other, and the command line imports none": a test holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from aegis_proto.job import duration

from aegis_cli.errors import CliError

CORES: dict[str, str] = {
    "aegis_lognexus": "lognexus",
    "aegis_lemon": "lemon",
    "aegis_netmon": "netmon",
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


@contextmanager
def refusals() -> Iterator[None]:
    """Around the work of a core: a ValueError of its own, which names its code, is the command's error, as is a file; any other goes on."""
    try:
        yield
    except ValueError as error:
        code = getattr(error, "code", "")
        if not code:
            raise
        raise CliError(code, str(error)) from None
    except OSError as error:
        raise CliError("E107", f"{error.filename}: {error.strerror}", exit=2) from None


def seconds(text: str, option: str) -> float:
    """Seconds of an option that takes `300` or `5min`."""
    try:
        return duration(text, option)
    except ValueError as error:
        raise CliError("E116", str(error).removeprefix("E117 "), exit=2) from None
