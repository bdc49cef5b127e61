"""kill -9 of the owner between "report received" and "effect done": the story and the counts come out the same.

Here a few points; all of `crashpoints.POINTS` in tests/integration/test_master_crash_points.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from aegis_bus.connection import Bus
from aegis_bus.natsserver import NatsServer
from aegis_master import crashpoints
from harness.crash_story import Told, recovery, stage, stopped_by_hand

STORY = Told(
    story=[
        ("Pending", "created", "", False, "0:0:0"),
        ("BootChecking", "ready", "", False, "0:0:0"),
        ("RunCommand", "passed", "", False, "0:0:0"),
        ("Restarting", "killed", "w0", True, "1:0:0"),
        ("Troubleshooting", "ready", "", False, "1:0:0"),
        ("RunCommand", "passed", "", False, "1:1:1"),
        ("Troubleshooting", "error", "w1", True, "1:2:1"),
        ("RunCommand", "passed", "", False, "2:2:2"),
        ("Succeed", "finished", "", False, "2:2:2"),
    ],
    retries="2:2:2",
    recover_count=2,
    incarnation=2,
    attempts=(2, 1, 1),
    letters=1,
    max_retry=4,
)


@pytest.mark.parametrize("crash_at", ["", "master.before-commit:6", "master.after-commit:6", "master.mid-event:5"])
async def test_a_master_killed_at_a_point_leaves_the_same_story(bus: Bus, nats_server: NatsServer, tmp_path: Path, crash_at: str) -> None:
    async with stage(bus, nats_server.url, tmp_path) as on:
        first = await on.master("first", crash_at)
        told = await recovery(on)
        assert first.ended is bool(crash_at), f"{crash_at} was not reached"
        told.doubles = 0  # an event published again carries the same id
        assert told == STORY


async def test_sigterm_drains_within_the_grace_and_the_job_runs_on(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> None:
    async with stage(bus, nats_server.url, tmp_path) as on:
        first = await on.master("first")
        told = await stopped_by_hand(on, "term")
        assert first.process is not None
        assert first.process.returncode == 0
        assert (told.retries, told.recover_count, told.doubles) == ("1:1", 1, 0)


def test_every_crash_point_is_in_the_code_once_and_every_one_in_the_code_is_listed() -> None:
    folder = Path(crashpoints.__file__).parent
    used = [point for file in folder.glob("*.py") for point in re.findall(r'crashpoint\("(master\.[a-z-]+)"\)', file.read_text())]
    assert sorted(used) == sorted(crashpoints.POINTS)
    assert len(crashpoints.POINTS) >= 12
