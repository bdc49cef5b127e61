"""The same wish for several things: side by side, each with its own result or error. What went well is never lost to what did not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from aegis_bus.errors import BusError

from aegis_cli.errors import CliError, from_text
from aegis_cli.output import Output

N = TypeVar("N")
R = TypeVar("R")


async def each(things: Sequence[N], work: Callable[[N], Awaitable[R]]) -> tuple[list[R], list[CliError]]:
    """`work` for every one of `things`; the results and the errors, both in the order of `things`."""
    ends = await asyncio.gather(*(_one(work, thing) for thing in things))
    return [end for end in ends if not isinstance(end, CliError)], [end for end in ends if isinstance(end, CliError)]


async def _one(work: Callable[[N], Awaitable[R]], thing: N) -> R | CliError:
    try:
        return await work(thing)
    except CliError as error:
        return error
    except BusError as error:
        return from_text(str(error), error.code or "E108")


def report(out: Output, errors: Sequence[CliError]) -> int:
    """Every error on stderr; the highest of their exit codes, 0 when there are none."""
    for error in errors:
        out.error(error)
    return max((error.exit for error in errors), default=0)
