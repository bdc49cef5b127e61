"""A machine behind a cable: a network namespace of the test's own, a veth pair, and a way to the services through it that a test can cut.

Inside, 127.0.0.1:PORT leads to 127.0.0.1:PORT of the host for the ports given, and the other way round for the ports that are served inside: a
forwarder on each side, real packets over the pair between them. Cut is the pair set down, or, one way, packets that go to a neighbour who is not
there: nothing is refused or closed, packets just do not arrive. Needs root and iproute2.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence

FORWARD = """
import asyncio, sys
async def main(listen, to, ports):
    async def pump(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
    def serve(port):
        async def accept(reader, writer):
            try:
                far = await asyncio.open_connection(to, port)
            except OSError:
                writer.close()
                return
            await asyncio.gather(pump(reader, far[1]), pump(far[0], writer))
        return asyncio.start_server(accept, listen, port)
    servers = [await serve(int(port)) for port in ports]
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))
asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
"""


def possible() -> bool:
    """Whether this machine lets us make one."""
    if os.getuid() != 0 or not shutil.which("ip"):
        return False
    name = f"aeg-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


NOBODY = "02:00:00:00:00:01"
"""An address of the link layer that neither end has."""


class Cable:
    """`inside`: the command that runs another one in the namespace."""

    def __init__(self, name: str, outside: str, inner: str) -> None:
        self.name = name
        self.inside = ("ip", "netns", "exec", name)
        self.outer = f"v{name[-12:]}"
        self._out = ("-n", name, "neigh", outside, "eth0")
        self._in = ("neigh", inner, self.outer)
        self._way = ""

    def cut(self, way: str = "both") -> None:
        """`out`: what is sent from inside does not arrive; `in`: nor what is sent to it; `both`."""
        self._way = way
        if way == "both":
            _ip("link", "set", self.outer, "down")
        else:
            *words, address, device = self._out if way == "out" else self._in
            _ip(*words, "replace", address, "lladdr", NOBODY, "dev", device, "nud", "permanent")

    def heal(self) -> None:
        if self._way == "both":
            _ip("link", "set", self.outer, "up")
        elif self._way:
            *words, address, device = self._out if self._way == "out" else self._in
            _ip(*words, "del", address, "dev", device)
        self._way = ""


def _pair() -> tuple[str, str]:
    """Two addresses of a network of four that no device of this machine has, out of those kept for such tests (RFC 2544)."""
    while True:
        net = ipaddress.ip_network((int(ipaddress.ip_address("198.18.0.0")) + 4 * secrets.randbelow(1 << 15), 30))
        taken = subprocess.run(["ip", "-o", "addr", "show", "to", str(net)], check=True, capture_output=True, text=True).stdout
        if not taken:
            return str(net[1]), str(net[2])


@contextlib.asynccontextmanager
async def cable(ports: Sequence[int], served: Sequence[int] = ()) -> AsyncIterator[Cable]:
    """Made and taken away; `ports` of the host's 127.0.0.1 that can be reached from inside, and `served`: those of the inside's from the host."""
    tail = f"{os.getpid():x}{time.monotonic_ns() & 0xFFF:03x}"
    outside, inside = _pair()
    made = Cable(f"aeg{tail}", outside, inside)
    helpers: list[asyncio.subprocess.Process] = []
    _ip("netns", "add", made.name)
    try:
        _ip("link", "add", made.outer, "type", "veth", "peer", "name", "eth0", "netns", made.name)
        _ip("addr", "add", f"{outside}/30", "dev", made.outer)
        _ip("link", "set", made.outer, "up")
        _ip("-n", made.name, "addr", "add", f"{inside}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", made.name, "link", "set", device, "up")
        ways = ((ports, (), outside, "127.0.0.1"), (ports, made.inside, "127.0.0.1", outside))
        ways += ((served, made.inside, inside, "127.0.0.1"), (served, (), "127.0.0.1", inside))
        for numbers, around, listen, to in ways:
            if not numbers:
                continue
            argv = [*around, sys.executable, "-c", FORWARD, listen, to, *map(str, numbers)]
            helper = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
            helpers.append(helper)
            assert helper.stdout is not None
            assert await asyncio.wait_for(helper.stdout.readline(), 60) == b"ready\n"
        yield made
    finally:
        for helper in helpers:
            if helper.returncode is None:
                helper.kill()
            await helper.wait()
        for words in (("link", "del", made.outer), ("netns", "del", made.name)):
            await asyncio.to_thread(subprocess.run, ["ip", *words], capture_output=True, check=False)
