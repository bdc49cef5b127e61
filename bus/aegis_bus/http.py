"""The smallest HTTP server that Prometheus and a kubelet need: `/metrics` and `/healthz`. Every request has a deadline."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

log = logging.getLogger(__name__)

DEADLINE = 5.0
MAX_CLIENTS = 32

Health = Callable[[], Mapping[str, bool]]


class HttpServer:
    """`health()` gives named checks; `/healthz` is 200 when all are true, else 503, with the names."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._server: asyncio.Server | None = None
        self._clients = 0
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 = any free one, then in `port`. OSError when the address is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=8192)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= MAX_CLIENTS:
                async with asyncio.timeout(DEADLINE):
                    request = (await reader.readline()).split()
                    while (await reader.readline()) not in (b"\r\n", b"\n", b""):
                        pass
                    writer.write(self._answer(request))
                    await writer.drain()
        except (TimeoutError, ValueError, OSError) as error:
            log.debug("http: %s", error)
        finally:
            self._clients -= 1
            writer.close()

    def _answer(self, request: list[bytes]) -> bytes:
        method, path = (request[0], request[1].partition(b"?")[0]) if len(request) >= 2 else (b"", b"")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain", b"GET only\n")
        if path == b"/metrics":
            return _response("200 OK", CONTENT_TYPE_LATEST, generate_latest())
        if path == b"/healthz":
            checks = dict(self._health())
            return _response("200 OK" if all(checks.values()) else "503 Service Unavailable", "application/json", json.dumps(checks).encode() + b"\n")
        return _response("404 Not Found", "text/plain", b"/metrics or /healthz\n")


def _response(status: str, kind: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
