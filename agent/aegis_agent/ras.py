"""NCCL's RAS port of the processes here (NCCL 2.24 and newer): what it knows of the whole job, JSON where it can (2.28), else text.

The protocol is that of NVIDIA's client: lines `CLIENT PROTOCOL 2`, `TIMEOUT s`, `SET FORMAT json`, each answered by one line, and `VERBOSE STATUS`;
then comes the report until the end of the connection. The port is one for all jobs of a machine, of whichever process came first: so it is seen first
who holds the other end of the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

ADDRESS_VARIABLE = "NCCL_RAS_ADDR"
ADDRESS = ("localhost", 28028)
"""NCCL's own default."""
PROTOCOL = 2
PATIENCE = 5
"""Seconds for which the process asked waits for the others."""
DEADLINE = 2.0 * PATIENCE + 5.0
MOST_BYTES = 16 << 20


Ours = Callable[[int, int], bool]
"""Whether a process of the run has the end of a connection with these ports: (its own, ours). Blocking."""


class Foreign(Exception):
    """Who listens there is no process of the run that can be looked into."""


def address(text: str) -> tuple[str, int]:
    """Of NCCL_RAS_ADDR (`host:port`, `[v6]:port`, a port alone is not allowed by NCCL either); the default when it says nothing usable."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return ADDRESS
    return host.strip("[]"), int(port)


async def look(host: str, port: int, ours: Ours) -> str:
    """The report, "" where nobody listens or does not answer as RAS does. Raises Foreign alone."""
    try:
        async with asyncio.timeout(DEADLINE):
            for as_json in (True, False):
                try:
                    if text := await _ask(host, port, ours, as_json=as_json):
                        return text
                except (OSError, ValueError):  # a word it does not know may end the connection too
                    continue
    except TimeoutError:
        pass
    return ""


async def _ask(host: str, port: int, ours: Ours, *, as_json: bool) -> str:
    """ "" when this format is not known there: older ones have text alone, and then end the connection or say so."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        for word, wanted in (
            (f"CLIENT PROTOCOL {PROTOCOL}", b"SERVER PROTOCOL "),
            (f"TIMEOUT {PATIENCE}", b"OK"),
            *([("SET FORMAT json", b"OK")] if as_json else []),
        ):
            writer.write(f"{word}\n".encode())
            if not (await reader.readline()).upper().startswith(wanted):
                return ""
            if word.startswith("CLIENT") and not await asyncio.to_thread(ours, port, writer.get_extra_info("sockname")[1]):
                raise Foreign
        writer.write(b"VERBOSE STATUS\n")
        found = bytearray()
        while len(found) < MOST_BYTES and (data := await reader.read(65_536)):
            found += data
        return found.decode(errors="replace")
    finally:
        writer.close()
