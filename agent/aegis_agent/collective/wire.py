"""JSON lines over a socket, each at most LONGEST bytes: what hub and members say to each other."""

from __future__ import annotations

import json
import socket
from typing import Any

LONGEST = 1 << 20


class Lines:
    """What has arrived on a socket, cut into messages. Anything that is not one closes the line (ValueError)."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        if len(self.rest) > LONGEST:
            raise ValueError("a line without an end")
        messages = [json.loads(line.decode("utf-8", "replace")) for line in lines if line.strip()]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("not an object")
        return messages


def pack(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def keep_alive(sock: socket.socket) -> None:
    """A peer whose machine is gone is noticed within about 20 s, not in hours."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
