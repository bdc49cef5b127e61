"""What the GPUs of this machine do, by NVML in a process of its own: a call that a driver holds in the kernel holds neither the agent nor its end.

Asks it (`nvml`) with a line and waits with a deadline; while an answer is missing nothing else is asked, and no other process is started.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aegis_agent import own

READER = "aegis_agent.monitors.nvml"
DEADLINE = 5.0
START = 10.0
"""Seconds beyond the deadline for the first answer: the start of the process and of the library."""
EXPECTED = "AEGIS_CHECKS_EXPECTED_GPUS"
"""Somebody says that there are GPUs (checks/settings.py)."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """Percent and bytes, one per GPU."""

    use: tuple[float, ...] = ()
    memory: tuple[float, ...] = ()
    power: tuple[float, ...] = ()  # watts
    temperature: tuple[float, ...] = ()


class Nvml:
    """`start(argv, fd)` starts the process, with `fd` as its standard input and output; OSError when it cannot be started."""

    def __init__(self, start: Callable[[Sequence[str], int], object]) -> None:
        self._start = start
        self._link: socket.socket | None = None
        self._answered = self._held = False

    async def read(self) -> Gpus | None:
        """None: there are none, or an answer is still missing (TimeoutError the first time). OSError with what the library says."""
        if not (os.path.exists("/dev/nvidiactl") or os.environ.get(EXPECTED)):
            return None
        if self._held and not self._ended():
            return None
        if self._link is None:
            self._open()
        try:
            async with asyncio.timeout(DEADLINE if self._answered else DEADLINE + START):
                answer = json.loads(await self._ask())
        except TimeoutError:
            self._held = True
            if self._link is not None:
                self._link.shutdown(socket.SHUT_WR)  # should it come back, it ends
            raise
        self._answered = True
        if "error" in answer:
            raise OSError(answer["error"])
        return Gpus(*(tuple(map(float, values)) for values in answer["gpus"]))

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._answered, self._held = None, False, False

    def _open(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            self._start([*own.python(), "-m", READER], theirs.fileno())
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._link = ours

    def _ended(self) -> bool:
        """Whether the process that gave no answer has gone."""
        assert self._link is not None
        try:
            while self._link.recv(65536):
                pass  # what it said too late
        except BlockingIOError:
            return False
        except OSError:
            pass
        self.close()
        return True

    async def _ask(self) -> bytes:
        assert self._link is not None
        loop, line = asyncio.get_running_loop(), b""
        try:
            await loop.sock_sendall(self._link, b"\n")
            while not line.endswith(b"\n"):
                chunk = await loop.sock_recv(self._link, 65536)
                if not chunk:
                    raise OSError("the process that reads the GPUs ended")
                line += chunk
        except OSError:
            self.close()
            raise
        return line
