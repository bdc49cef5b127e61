"""A real nats-server per test, buses on it, and the streams as shipped.

`nats_server` is a started server without authentication; `bus` a Bus on it with all streams created; `make_bus` makes more. All end with the test.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer
from aegis_proto.streams import stream_configs

from harness.waiting import until

MakeBus = Callable[..., Awaitable[Bus]]


async def create_streams(bus: Bus, only: set[str] | None = None, **changes: dict[str, Any]) -> None:
    """Create the streams as shipped; `changes`: {"CTL": {"max_bytes": ...}}."""
    for config in stream_configs():
        if only is None or config["name"] in only:
            await bus.js_api(f"STREAM.CREATE.{config['name']}", {**config, **changes.get(config["name"], {})})


async def replaced_by(nats_server: NatsServer, bus: Bus, copy: Path | None) -> Path:
    """Stop the server, keep a copy of its store, or put one in its place; start it again and wait for the connection."""
    before = bus.generation
    await asyncio.to_thread(nats_server.stop)
    js = nats_server.state_dir / "js"
    if copy is None:
        copy = nats_server.state_dir / "copy"
        shutil.copytree(js, copy)
    else:
        shutil.rmtree(js)
        shutil.copytree(copy, js)
    await asyncio.to_thread(nats_server.start)
    await until(lambda: bus.generation > before and bus.connected)
    return copy


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", die_with_parent=True)
    server.start()
    yield server
    server.stop(grace=10)


@pytest_asyncio.fixture
async def make_bus(nats_server: NatsServer) -> AsyncIterator[MakeBus]:
    """`await make_bus(name="master-1", ...)`: options of Bus.connect; `url` for another server, `identity` for another key."""
    made: list[Bus] = []

    async def make(url: str = "", identity: Identity | None = None, **options: Any) -> Bus:
        bus = await Bus.connect(identity or Identity.new(), [url or nats_server.url], **options)
        made.append(bus)
        return bus

    yield make
    for bus in made:
        await bus.close(grace=1.0)


@pytest_asyncio.fixture
async def bus(make_bus: MakeBus) -> Bus:
    made = await make_bus(name="test")
    await create_streams(made)
    return made
