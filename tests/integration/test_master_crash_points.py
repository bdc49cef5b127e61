"""Every named point between "report received" and "effect done": kill -9 of the master there changes neither story nor counts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aegis_bus.connection import Bus
from aegis_bus.natsserver import NatsServer
from aegis_master.crashpoints import POINTS
from harness.crash_story import Stage, Told, never_placed, recovery, silent_death, stage, stopped_by_hand
from harness.masters import Process
from harness.waiting import until

pytestmark = pytest.mark.integration

RECOVERY = [
    "master.received",
    "master.received:9",
    "master.decoded:7",
    "master.before-step:5",
    "master.before-step:12",
    "master.before-commit",
    "master.before-commit:9",
    "master.after-commit:4",
    "master.after-commit:9",
    "master.before-event:3",
    "master.mid-event:4",
    "master.after-event:5",
    "master.dlq-before",
    "master.dlq-after",
    "master.submit-before-create",
    "master.submit-after-create",
    "master.api-before-fact",
    "master.api-after-fact",
    "bus.before-commit:8",
    "bus.after-commit:8",
]
TAKEOVER = ["master.takeover-before-cas", "master.takeover-after-cas"]
RELEASE = ["master.release-before-cas", "master.release-after-cas"]


def test_no_point_is_left_out() -> None:
    tried = {point.split(":")[0] for point in [*RECOVERY, *TAKEOVER, *RELEASE, "master.deadline-before-commit", "master.death-before-commit"]}
    assert set(POINTS) <= tried


def comparable(told: Told) -> Told:
    told.doubles = 0  # an event published again carries the same id
    return told


async def after(on: Stage, first: Process) -> None:
    await until(lambda: first.ended, 20, "the first one dies")
    await on.master("second")


@pytest.mark.parametrize("crash_at", RECOVERY)
async def test_recovery(bus: Bus, nats_server: NatsServer, tmp_path: Path, crash_at: str) -> None:
    async with stage(bus, nats_server.url, tmp_path) as on:
        first = await on.master("first", crash_at)
        alone = "submit" in crash_at  # the one that takes the request dies of it; the next one comes when it is gone
        next_one = asyncio.create_task(after(on, first)) if alone else None
        told = comparable(await recovery(on, standby=not alone))
        if next_one is not None:
            await next_one
        assert first.ended, f"{crash_at} was not reached"
        assert (told.retries, told.recover_count, told.incarnation, told.attempts) == ("2:2:2", 2, 2, (2, 1, 1))
        assert (told.letters, told.max_retry) == (1, 4)
        assert [step[0] for step in told.story] == [
            "Pending",
            "BootChecking",
            "RunCommand",
            "Restarting",
            "Troubleshooting",
            "RunCommand",
            "Troubleshooting",
            "RunCommand",
            "Succeed",
        ]
        assert [step[4] for step in told.story if step[3]] == ["1:0:0", "1:2:1"]


@pytest.mark.parametrize("crash_at", TAKEOVER)
async def test_a_replica_that_dies_while_it_takes_over(bus: Bus, nats_server: NatsServer, tmp_path: Path, crash_at: str) -> None:
    async with stage(bus, nats_server.url, tmp_path) as on:
        await on.master("first")
        told = await stopped_by_hand(on, "kill", crash_at)
        assert (told.retries, told.recover_count, told.incarnation) == ("1:1", 1, 1)
        assert [step[4] for step in told.story if step[3]] == ["1:0"]


@pytest.mark.parametrize("crash_at", RELEASE)
async def test_a_replica_that_dies_while_it_gives_a_job_away(bus: Bus, nats_server: NatsServer, tmp_path: Path, crash_at: str) -> None:
    async with stage(bus, nats_server.url, tmp_path) as on:
        first = await on.master("first", crash_at)
        told = await stopped_by_hand(on, "term")
        assert first.process is not None
        assert first.process.returncode == -9, "the point was not reached"
        assert (told.retries, told.recover_count, told.incarnation) == ("1:1", 1, 1)


async def test_a_death_called_by_a_master_that_dies_before_it_commits_is_called_again_and_counted_once(
    bus: Bus, nats_server: NatsServer, tmp_path: Path
) -> None:
    async with stage(bus, nats_server.url, tmp_path) as on:
        first = await on.master("first", "master.death-before-commit")
        told = await silent_death(on)
        assert first.ended
        assert (told.retries, told.recover_count, told.attempts) == ("1:1:1", 1, (1, 1, 2))


async def test_a_deadline_fired_by_a_master_that_dies_before_it_commits_fires_again(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> None:
    async with stage(bus, nats_server.url, tmp_path) as on:
        first = await on.master("first", "master.deadline-before-commit")
        told = await never_placed(on)
        assert first.ended
        assert (told.reason, told.recover_count) == ("placing", 0)
        assert [step[0] for step in told.story] == ["Pending", "Failed"]
