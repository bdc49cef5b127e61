"""`aegis job stop --grace`: the time asked for counts, not the specification's."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest
from aegis_proto import messages, subjects
from aegis_proto.api import ActionReply, ActionRequest, RequestRefused, read_reply
from harness.waiting import until
from support.house import house

STUBBORN = "import signal, time, pathlib, os; signal.signal(15, signal.SIG_IGN); pathlib.Path('up').touch()\nwhile True: time.sleep(0.1)"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]


async def stop(h: object, job: str, grace: float) -> ActionReply:
    request = messages.encode(ActionRequest(job, uuid.uuid4().hex, grace=grace))
    return read_reply(ActionReply, await h.ask(subjects.rpc_do("master", "stop", "default"), request))  # type: ignore[attr-defined]


async def test_a_stop_with_a_grace_of_its_own_keeps_to_it(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=1) as h:
        job = await h.submit([sys.executable, "-c", STUBBORN], name="stub", stopGrace=60.0)
        await until((tmp_path / "up").exists, 60, "the command runs")
        (pid,) = await h.rank_pids(job, "w0")
        for bad in (-1.0, 1e9):
            with pytest.raises(RequestRefused, match="E116"):
                await stop(h, job, bad)
        began = time.monotonic()
        await stop(h, job, 1.0)
        await until(lambda: not psutil.pid_exists(pid), 30, "the command ends")
        assert 0.9 < time.monotonic() - began < 15.0
        assert (await h.ended(job)).head.failedReason == "stopped"
        await asyncio.sleep(0)
