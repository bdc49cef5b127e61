"""What is remembered over a restart and for a successor, as bytes. Pure.

Of each port its counters, exposure and dips, and the steps in which something rose; of the fabric the links that should be there; incidents, and what
ports and sensors said in the weeks before. What is of another version, or damaged, is refused with the reason: then it is begun anew.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

import msgspec
from aegis_proto.net import KeptHead

from aegis_netmon.expected import Seen
from aegis_netmon.flaps import History
from aegis_netmon.hosts import HostPort, Hosts
from aegis_netmon.incidents import KeptIncidents
from aegis_netmon.series import Port
from aegis_netmon.watch import Watch

VERSION = 2
PIECE = 48_000
"""Octets of one message."""
MOST = 1 << 30
"""Octets of all of it, unpacked: more is no memory of ours."""


class Damaged(ValueError):
    """What was read is not what was written, or not for this release; the message says which."""


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
    """Of the steps of a port that counted nothing the last alone: its totals say the same, and with the next one there is a rate."""
    if port is None or any(step.counts for step in port.steps):
        return port
    return msgspec.structs.replace(port, steps=port.steps[-1:])


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
        owner = hosts.by_guid.get((row.guid, row.seen.port))
        if row.guid and (owner is None or owner.silent(port.at)):
            hosts.by_guid[row.guid, row.seen.port] = port
        hosts.judge(port, row.at)
    for node in hosts.of_node:
        hosts.sort(node)


def pack(kept: Kept) -> bytes:
    """Half a second and a few MB for a fleet of 24,576 ports: not for a loop."""
    return zlib.compress(msgspec.msgpack.encode(kept), 1)


def pieces(packed: bytes) -> list[bytes]:
    return [packed[at : at + PIECE] for at in range(0, len(packed), PIECE)]


def names(head: KeptHead) -> list[str]:
    """Of the pieces of a generation. Two generations lie side by side: one is whole while the next is written."""
    return [f"{'ab'[head.generation % 2]}{n}" for n in range(head.pieces)]


def digest(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()


def unpack(head: KeptHead, found: Sequence[bytes], era: str) -> Kept:
    """What `head` and its pieces say. Of another store nothing counts that goes by its sequences. Damaged."""
    packed = b"".join(found)
    if len(packed) != head.size or digest(packed) != head.sha256:
        raise Damaged(f"generation {head.generation} is not whole: {len(packed)} of {head.size} octets, or others than were written")
    try:
        text = zlib.decompressobj().decompress(packed, MOST)
        version = msgspec.msgpack.decode(text, type=_Version).v
        if version != VERSION:
            raise Damaged(f"it has version {version}, this release reads {VERSION}")
        kept = msgspec.msgpack.decode(text, type=Kept)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise Damaged(str(error)) from None
    if kept.era == era:
        return kept
    return msgspec.structs.replace(kept, seq=0, incidents=msgspec.structs.replace(kept.incidents, seq=0))


class _Version(msgspec.Struct, frozen=True):
    v: int
