"""Plain: where Aegis cannot be had, the command runs as a plain job on *all* workers, its exit code comes out, and never half and half."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from aegis_proto import messages
from aegis_proto.credapi import JoinReply
from aegis_proto.state import JobState
from harness.waiting import until
from support.house import House, house

COMMAND = [sys.executable, str(Path(__file__).parent / "support" / "command.py")]
WAIT = {"AEGIS_AGENT_START_WAIT": "4"}

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


async def all_run_plain(h: House, job: str, folder: Path, workers: int) -> None:
    """One process per worker, all with the rank variables of the platform, none managed."""

    def records() -> list[dict[str, str]]:
        return [json.loads(p.read_text()) for p in folder.glob("run-*")]

    try:
        found = await until(lambda: len(records()) == workers and records(), 60, "all run plain")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await h.describe(job)}") from None
    assert sorted(r["RANK"] for r in found) == [str(i) for i in range(workers)]
    assert {r["WORLD_SIZE"] for r in found} == {str(workers)}
    assert len({(r["MASTER_ADDR"], r["MASTER_PORT"]) for r in found}) == 1
    assert found[0]["MASTER_PORT"] not in ("", "0")
    assert not any(r["secrets"] for r in found)


async def submit(h: House, workers: int) -> tuple[str, Path]:
    folder = h.folder / "work"
    folder.mkdir()
    return await h.submit(COMMAND, workers=workers, cwd=str(folder), pendingTimeout=60.0), folder


async def ends_with(h: House, job: str, folder: Path, code: int) -> JobState:
    if code:
        for pod in ("w0", "w1", "w2"):
            part = folder / "part"
            part.write_text(str(code))
            part.rename(folder / f"exit-{pod}-0")
    else:
        (folder / "finish").touch()
    state = await h.ended(job, 60)
    assert (str(state.head.phase), str(state.head.mode)) == ("Failed" if code else "Succeed", "plain"), await h.describe(job)
    if code:
        assert (state.head.exitCode, state.head.failedReason) == (code, "exited"), await h.describe(job)
    assert not [pod for pod in state.pods() if pod.attempt > 1], "a plain job is never placed anew"
    assert not state.head.errorNodes, "a plain job that fails accuses no node"
    return state


@pytest.mark.parametrize("code", [0, 7])
async def test_no_credentials_service(tmp_path: Path, code: int) -> None:
    async with house(tmp_path, nodes=2, **WAIT) as h:
        await h.children["credentials"].kill9()
        job, folder = await submit(h, 2)
        await all_run_plain(h, job, folder, 2)
        await ends_with(h, job, folder, code)


async def test_an_expired_certificate(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=2, server_days=-1.0, **WAIT) as h:
        job, folder = await submit(h, 2)
        await all_run_plain(h, job, folder, 2)
        await ends_with(h, job, folder, 0)


async def test_one_worker_without_aegis_makes_all_plain(tmp_path: Path) -> None:
    """Never half and half: the two that are connected must not wait for ever, nor run managed beside the third."""
    async with house(tmp_path, nodes=2, **WAIT) as h:
        await h.start_node("n3", "--credentials-ca", str(tmp_path / "no-such-ca.pem"), **WAIT)
        job, folder = await submit(h, 3)
        await all_run_plain(h, job, folder, 3)
        state = await ends_with(h, job, folder, 5)
        assert state.head.recoverCount == 1, "one counted failure, then plain job semantics"


async def test_no_bus_for_the_agents(tmp_path: Path) -> None:
    """Credentials are there, the bus is not: all agents are pointed at a port where nobody listens."""
    async with house(tmp_path, nodes=2, AEGIS_AGENT_SERVERS="nats://127.0.0.1:9", **WAIT) as h:
        job, folder = await submit(h, 2)
        await all_run_plain(h, job, folder, 2)
        await ends_with(h, job, folder, 0)


async def test_a_wrong_join_token(tmp_path: Path) -> None:
    """The token is of another site: refused, and the command runs plain on all workers."""
    async with house(tmp_path, nodes=2, **WAIT) as h:
        await h.children["jc1"].kill9()
        job, folder = await submit(h, 2)
        # the job controller is told tokens by somebody else: an impostor in the place of the credentials service
        assert h.admin is not None
        await h.children["credentials"].kill9()

        async def wrong(msg: Any) -> None:
            await msg.respond(messages.encode(JoinReply(token="0" * 64, uid=(await h.state(job)).head.uid)))

        await h.admin.subscribe("aegis.rpc.credentials.do.join.*", wrong)
        await h.children["jc1"].start()
        await until(lambda: len(list(h.folder.glob("state-*/slots/*/record.json"))) == 2, 30, "both placed")
        await h.children["credentials"].start()
        await all_run_plain(h, job, folder, 2)
        await ends_with(h, job, folder, 0)


async def test_the_bus_dies_after_placement(tmp_path: Path) -> None:
    """Placed by a stack whose bus then goes away before anybody is connected: all run plain; nobody waits for a bus that does not come."""
    async with house(tmp_path, nodes=2, AEGIS_AGENT_SERVERS="nats://127.0.0.1:9", **WAIT) as h:
        job, folder = await submit(h, 2)
        await until(lambda: len(list(h.folder.glob("state-*/slots/*/record.json"))) == 2, 30, "both placed")
        await asyncio.to_thread(h.nats.kill9)
        await all_run_plain(h, job, folder, 2)
        (folder / "finish").touch()
        await until(lambda: len(list(h.folder.glob("state-*/slots/*/exit.json"))) == 2, 60, "both agents ended")
        words = [json.loads(p.read_text()) for p in h.folder.glob("state-*/slots/*/exit.json")]
        assert [w["code"] for w in words] == [0, 0]
        assert all(w.get("plain") for w in words)
        await asyncio.to_thread(h.nats.start)
        state = await h.ended(job, 60)
        assert str(state.head.phase) == "Succeed", await h.describe(job)
