"""What another replica kept becomes this one's: the stream's lines of it are read, also when the bus was away just then, or this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_lognexus import intake
from aegis_lognexus.share import Shares, owner
from aegis_lognexus.store import LogStore
from harness.waiting import until
from log_batches import kept
from log_service import Worker

LIVE = {"me", "other"}
THEIRS = next(job for n in range(100) if owner(job := f"job-{n:06d}", LIVE) == "other")


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    now = set(LIVE)

    async def replicas(_bus: Bus, _service: str) -> set[str]:
        return now

    monkeypatch.setattr(intake, "live_replicas", replicas)
    monkeypatch.setattr(intake, "LOOK_EVERY", 0.05)
    return now


@asynccontextmanager
async def taking(bus: Bus, folder: Path, me: str = "me") -> AsyncIterator[LogStore]:
    store = LogStore(folder)
    reading = intake.Intake(bus, store, Shares(me), lambda: "e")
    task = asyncio.create_task(reading.run())
    try:
        yield store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await reading.stop()


def has(store: LogStore, *texts: str) -> bool:
    return [line.message for line in kept(store.folder, THEIRS)] == [*texts]


async def test_a_bus_that_is_away_when_a_replica_goes_costs_no_line(
    bus: Bus, tmp_path: Path, live: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(bus, THEIRS, "w0")
    await worker.send(["a", "b"])
    refusals = [BusError("no answer")]
    asked = bus.js_api

    async def js_api(*args: object) -> object:
        if "other" not in live and refusals:
            raise refusals.pop()
        return await asked(*args)  # type: ignore[arg-type]

    async with taking(bus, tmp_path) as store:
        await until(lambda: store.seq == 1, 10, "it goes by what is another's")
        monkeypatch.setattr(bus, "js_api", js_api)
        live.discard("other")
        await until(lambda: not refusals, 10, "it asked what it has now")
        await worker.send(["c"])
        await until(lambda: has(store, "a", "b", "c"), 10, "all that became its own, in order")


async def test_a_replica_that_went_while_this_one_was_away_costs_no_line(bus: Bus, tmp_path: Path, live: set[str]) -> None:
    await Worker(bus, THEIRS, "w0").send(["a", "b"])
    async with taking(bus, tmp_path) as store:
        await until(lambda: store.seq == 1, 10, "it goes by what is another's")
        assert store.jobs() == []
    live.discard("other")
    async with taking(bus, tmp_path) as store:
        await until(lambda: has(store, "a", "b"), 10, "all that became its own")


async def test_another_name_alone_is_no_reason_to_read_again(bus: Bus, tmp_path: Path, live: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    live.discard("other")
    worker = Worker(bus, THEIRS, "w0")
    await worker.send(["a"])
    async with taking(bus, tmp_path) as store:
        await until(lambda: has(store, "a"), 10)
    taken: list[int] = []
    keep = intake.Intake._keep
    monkeypatch.setattr(intake.Intake, "_keep", lambda self, item, only=None: taken.append(item.seq) or keep(self, item, only))
    live.symmetric_difference_update({"me", "renamed"})
    async with taking(bus, tmp_path, "renamed") as store:
        await worker.send(["b"])
        await until(lambda: has(store, "a", "b"), 10)
    assert taken == [2]
