"""A service of ours as a real process, with its settings as environment variables; and a fixture that starts several and leaves none."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self, TypeVar


class ServiceProcess:
    """`python -m <package>`; what it says is in `log`."""

    def __init__(self, package: str, url: str, folder: Path, replica: str, creds: str = "", **env: str) -> None:
        self._package, self._folder = package, folder
        self.log = folder / f"{replica}.log"
        self._env = {"AEGIS_BUS_SERVERS": url, "AEGIS_SERVICE_REPLICA": replica, "AEGIS_BUS_LEASE_TTL": "2", **env}
        if creds:
            path = folder / f"{replica}.creds"
            path.write_text(creds)
            path.chmod(0o600)
            self._env["AEGIS_BUS_CREDS"] = str(path)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> Self:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **self._env}
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(sys.executable, "-m", self._package, env=env, stderr=log, cwd=self._folder)
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        return await self._process.wait()

    async def kill9(self) -> None:
        if self._process is not None:
            await self.end(signal.SIGKILL)


P = TypeVar("P", bound=ServiceProcess)


@asynccontextmanager
async def starting(make: Callable[..., P], folder: Path) -> AsyncIterator[Callable[..., Awaitable[P]]]:
    """`make(url, folder, replica, creds, **env)`. `await start(url, replica, creds, **env)` as often as is wanted; at the end all are killed."""
    made: list[ServiceProcess] = []

    async def start(url: str, *args: str, **env: str) -> P:
        process = make(url, folder, *args, **env)
        made.append(process)
        return await process.start()

    yield start
    for process in made:
        await process.kill9()
