"""Real agents under a scripted master, over a real bus."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from aegis_bus.natsserver import NatsServer
from agent_scripted_master import Agent, ScriptedMaster


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats", die_with_parent=True) as running:
        yield running


@pytest_asyncio.fixture
async def master(server: NatsServer) -> AsyncIterator[ScriptedMaster]:
    scripted = await ScriptedMaster.open(server)
    yield scripted
    await scripted.close()


@pytest.fixture
def agents() -> Iterator[list[Agent]]:
    started: list[Agent] = []
    yield started
    for agent in started:
        agent.kill()
