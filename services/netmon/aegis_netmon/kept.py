"""What is remembered over a restart, in one file: `<netmon.state>/netmon.msgpack`, written whole or not at all.

Of each port its counters, exposure and dips, and the steps in which something rose; of the fabric the links that should be there; incidents, and what
ports and sensors said in the weeks before. A file of another version, or a damaged one, is left out and said to be.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from aegis_netmon.expected import Seen
from aegis_netmon.flaps import History
from aegis_netmon.hosts import HostPort, Hosts
from aegis_netmon.incidents import KeptIncidents
from aegis_netmon.series import Port
from aegis_netmon.watch import Watch

log = logging.getLogger(__name__)

VERSION = 1
NAME = "netmon.msgpack"


class KeptPort(msgspec.Struct, frozen=True, array_like=True):
    """One port of a host."""

    seen: Seen
    guid: str
    port: Port | None
    flap: History
    at: float
    every: float
    booted: float | None
    expected: bool
    was_up: bool
    firmware: str


class Kept(msgspec.Struct, frozen=True):
    """`seq`: the last message of METRICS that is in it; `era`: of which store."""

    v: int
    era: str
    seq: int
    ports: tuple[KeptPort, ...]
    watch: Watch
    incidents: KeptIncidents = KeptIncidents()


def quiet(port: Port | None) -> Port | None:
    """Without the steps of a port that counted nothing: its totals say the same."""
    if port is None or any(step.counts for step in port.steps):
        return port
    return msgspec.structs.replace(port, steps=())


def gather(hosts: Hosts, watch: Watch, incidents: KeptIncidents, seq: int, era: str) -> Kept:
    """All of it, as it is now."""
    ports = tuple(
        KeptPort(port.seen, port.guid, quiet(port.port), port.flap, port.at, port.every, port.booted, port.expected, port.was_up, port.firmware)
        for port in hosts.ports.values()
    )
    return Kept(VERSION, era, seq, ports, watch, incidents)


def give_back(kept: Kept, hosts: Hosts) -> None:
    """Fill `hosts`, which knows nothing yet."""
    for row in kept.ports:
        port = HostPort(row.seen, row.guid)
        port.port, port.flap, port.at, port.every, port.booted = row.port, row.flap, row.at, row.every, row.booted
        port.expected, port.was_up, port.firmware = row.expected, row.was_up, row.firmware
        key = (row.seen.node, row.seen.device, row.seen.port)
        hosts.ports[key] = port
        hosts.of_node.setdefault(row.seen.node, set()).add(key)
        if row.guid:
            hosts.by_guid[row.guid, row.seen.port] = port
        hosts.judge(port, row.at)


def write(folder: Path, kept: Kept) -> None:
    """OSError when the disk refuses: the file before stays."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = folder / f".{NAME}"
    with open(partial, "wb") as file:
        file.write(msgspec.msgpack.encode(kept))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, folder / NAME)


def read(folder: Path, era: str) -> Kept | None:
    """None where there is none that is ours."""
    try:
        kept = msgspec.msgpack.decode((folder / NAME).read_bytes(), type=Kept)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.error("%s cannot be read, begun anew: %s", folder / NAME, error)
        return None
    if kept.v != VERSION:
        log.error("%s has version %d, begun anew", folder / NAME, kept.v)
        return None
    if kept.era == era:
        return kept
    return msgspec.structs.replace(kept, seq=0, incidents=msgspec.structs.replace(kept.incidents, seq=0))
