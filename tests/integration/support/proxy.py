"""A TCP proxy that a test can cut: the two ends stay open and silent, as with a lost network, until it heals.

Owns one listening socket and the connections through it. Nothing is sent to any address but the one given.
"""

from __future__ import annotations

import asyncio


class CutProxy:
    """`async with CutProxy(host, port) as proxy`: clients dial `127.0.0.1:proxy.port`.

    `cut()` drops every byte in both directions and lets new connections hang; `heal()` closes the connections of the cut, so that clients dial anew.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.port = 0
        self.passed = 0
        self._cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> CutProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        for writer in list(self._writers):
            writer.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def cut(self) -> None:
        self._cut = True

    def heal(self) -> None:
        self._cut = False
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self._cut:  # accepted by the kernel, answered by nobody
                await reader.read(-1)
                return
            far_reader, far_writer = await asyncio.open_connection(*self.target)
            self._writers.add(far_writer)
            pumps = [asyncio.create_task(self._pump(reader, far_writer)), asyncio.create_task(self._pump(far_reader, writer))]
            self._tasks.update(pumps)
            _, rest = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            self._tasks.difference_update(pumps)
            far_writer.close()
            self._writers.discard(far_writer)
        except OSError:
            pass
        finally:
            writer.close()
            self._writers.discard(writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if self._cut:
                    continue
                self.passed += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            return
