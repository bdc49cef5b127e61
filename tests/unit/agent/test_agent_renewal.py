"""When a worker asks for its next JWT."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import pytest
from aegis_agent import link
from aegis_agent.handover import WorkerTask
from aegis_agent.reaper import Reaper
from aegis_bus.identity import Identity
from aegis_proto.state import JobSpec

DAY = 86400


@pytest.mark.parametrize("wrong", [0, 2 * DAY, -2 * DAY])
async def test_a_wrong_clock_of_the_machine_renews_neither_for_ever_nor_too_late(monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    issued = int(time.time()) + wrong
    claims = base64.urlsafe_b64encode(json.dumps({"iat": issued, "exp": issued + DAY}).encode()).rstrip(b"=").decode()
    uplink = link.Uplink(WorkerTask(JobSpec("j", ("true",))), Reaper(), {}, on_head=lambda head: None, on_reach=lambda: None, on_ready=lambda: None)
    uplink._identity = Identity.new()
    uplink._identity.jwt = f"head.{claims}.signature"
    uplink._expires = issued + DAY
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr(link.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await uplink._renew()
    assert DAY / 3 <= waits[0] <= 2 * DAY / 3
