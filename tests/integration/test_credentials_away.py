"""The credentials service is away for a moment, at submit or when a worker is lost: who is to be placed waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from harness.waiting import until
from support.house import house, retries

COMMAND = [sys.executable, str(Path(__file__).parent / "support" / "command.py")]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]


async def test_a_worker_lost_while_credentials_are_away_is_replaced_when_they_are_back(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=3, masters=1) as h:
        job = await h.submit(COMMAND, name="away", workers=2)
        await until(lambda: len(list(tmp_path.glob("run-w?-0-*"))) == 2, 60, "the command runs")
        await h.children["credentials"].kill9()
        os.kill(await h.agent_pid(job, "w1"), signal.SIGKILL)
        await h.when_phase(job, "Restarting", 20)
        await asyncio.sleep(3.0)  # the time a restart of the service takes
        await h.children["credentials"].start()
        began = time.monotonic()
        await h.when(job, lambda s: s.head.incarnation == 1 and s.head.phase == "RunCommand", 40, "the next run")
        print("seconds from start of credentials to the next run", time.monotonic() - began)
        state = await h.state(job)
        assert (retries(state), state.head.recoverCount) == ("1:1", 1)
        (tmp_path / "finish").touch()
        assert (await h.ended(job, 60)).head.phase == "Succeed"


async def test_a_job_submitted_while_credentials_are_away_for_a_moment_is_managed(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=2, masters=1, AEGIS_AGENT_START_WAIT="4") as h:
        await h.children["credentials"].kill9()
        job = await h.submit(COMMAND, name="blink", workers=2)
        log = h.children["jc1"].log
        await until(lambda: "wait for the credentials service" in log.read_text(), 30, "the placement waits")
        assert not list(tmp_path.glob("state-*/slots/*/record.json"))
        await h.children["credentials"].start()
        state = await h.when_phase(job, "RunCommand", 60)
        assert state.head.mode == "managed", await h.describe(job)
        (tmp_path / "finish").touch()
        assert (await h.ended(job, 60)).head.phase == "Succeed"
