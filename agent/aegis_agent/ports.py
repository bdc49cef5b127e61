"""A free port for the store of the next run, and the address at which others reach this worker. Reads /proc and routes; binds for an instant."""

from __future__ import annotations

import random
import socket
from pathlib import Path

EPHEMERAL = "/proc/sys/net/ipv4/ip_local_port_range"


def ephemeral_range(path: str = EPHEMERAL) -> tuple[int, int]:
    """Ports the kernel hands out to clients (Linux default when it cannot be read): a listener there may find its port taken by chance."""
    try:
        low, high = Path(path).read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999


def candidates(wanted: tuple[int, int], ephemeral: tuple[int, int], rng: random.Random) -> list[int]:
    """Ports of `wanted` (inclusive) outside `ephemeral`, in random order; all of `wanted` when nothing is left."""
    outside = [port for port in range(wanted[0], wanted[1] + 1) if not ephemeral[0] <= port <= ephemeral[1]]
    ports = outside or list(range(wanted[0], wanted[1] + 1))
    rng.shuffle(ports)
    return ports


def can_listen(port: int) -> bool:
    """Whether `port` can be bound now on every address, IPv4 and IPv6."""
    for family, any_address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((any_address, port))
                probe.listen(1)
        except OSError as error:
            if family == socket.AF_INET6 and error.errno not in (98, 13):  # no IPv6 on this machine
                continue
            return False
    return True


def free_port(wanted: tuple[int, int], rng: random.Random | None = None) -> int:
    """A port of `wanted` that can be listened on now; 0 when there is none."""
    for port in candidates(wanted, ephemeral_range(), rng or random.SystemRandom()):
        if can_listen(port):
            return port
    return 0


def route_address(server: str, fallback: str = "127.0.0.1") -> str:
    """Our own address on the way to `server` (host, host:port or URL): the interface by which the others reach us too. Sends nothing."""
    host = server.rpartition("//")[2].rpartition("@")[2]
    host = host[1 : host.index("]")] if host.startswith("[") and "]" in host else host.partition(":")[0] if host.count(":") == 1 else host
    try:
        for family, kind, proto, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, proto) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
    except OSError:
        pass
    return fallback
