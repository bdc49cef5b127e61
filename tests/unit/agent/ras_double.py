"""The server's half of NCCL's RAS, as a double: in the loop of a test, or in a rank of a training (`serve`)."""

from __future__ import annotations

import asyncio

TEXT = """Group     Comms      Nodes     Ranks     Ranks     Ranks   Status  Errors
    #  in group   per comm  per node  per comm  in group
    0         1          1         2         2         2  RUNNING  MISMATCH
#0-0 (78db921d1c117b4a) MISMATCH
  1 ranks have launched up to operation 64
  Rank 1 has launched up to operation 60 -- GPU 1 managed by process 42 on node n1
"""
JSON = (
    '{"communicators": [{"hash": "0x1", "size": 2, "missing_ranks": [], "ranks": ['
    '{"rank": 0, "collective_counts": {"AllReduce": 64}}, {"rank": 1, "collective_counts": {"AllReduce": 60}}]}]}'
)


class Double:
    """Lines in any case, the report after STATUS, then the end. `json` False: NCCL before 2.28; `resets`: and it cuts off who asks for it."""

    def __init__(self, *, json: bool = True, resets: bool = False) -> None:
        self._json, self._resets = json, resets
        self.asked: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        as_json = False
        while line := (await reader.readline()).decode().strip().upper():
            self.asked.append(line)
            if line.startswith("CLIENT PROTOCOL "):
                writer.write(b"SERVER PROTOCOL 2\n")
            elif line.startswith("TIMEOUT "):
                writer.write(b"OK\n")
            elif line.startswith("SET FORMAT "):
                if self._resets:
                    writer.transport.abort()
                    return
                as_json = self._json
                writer.write(b"OK\n" if self._json else b"ERROR: Unknown command\n")
            elif line in ("STATUS", "VERBOSE STATUS"):
                writer.write((JSON if as_json else TEXT).encode())
                break
        writer.close()

    async def __aenter__(self) -> Double:
        self._server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()


def serve(port: int) -> None:
    """For ever, on a port that somebody holds for it (SO_REUSEPORT)."""

    async def run() -> None:
        server = await asyncio.start_server(Double().serve, "127.0.0.1", port, reuse_port=True)
        await server.serve_forever()

    asyncio.run(run())
