"""A bad node on the real stack: found by what happened to jobs, drained, tested, ticketed, repaired, given back; and who gets which node."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aegis_proto import messages, subjects
from aegis_proto.api import read_reply
from aegis_proto.api_nodes import NodeLostAnswer, NodeLostRequest
from aegis_proto.messages import Taint, Verdict
from harness.waiting import until
from support.house import House, house

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
BAD = "n2"
LEMON = {"AEGIS_LEMON_ROUND": "0.5", "AEGIS_LEMON_GAP": "1ms", "AEGIS_LEMON_SETTLE": "1s", "AEGIS_LEMON_TEST_SECONDS": "200ms"}
"""Failures follow each other within seconds here: each is one, not an episode."""


async def start_lemon(h: House) -> None:
    env = {"AEGIS_BUS_CREDS": h.creds("lemon", "lemon"), "AEGIS_SERVICE_REPLICA": "lemon1", "AEGIS_LEMON_STATE": str(h.folder / "lemon"), **LEMON}
    await h.start("lemon", "-m", "aegis_lemon", env=env)


async def cli(h: House, *words: str) -> Any:
    env = h.environment(AEGIS_BUS_CREDS=h.creds("alice", "operator"), HOME=str(h.folder), NO_COLOR="1")
    argv = [sys.executable, "-m", "aegis_cli", *words, "--json"]
    done = await asyncio.to_thread(subprocess.run, argv, env=env, cwd=h.folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + await described(h)
    return json.loads(done.stdout)


async def described(h: House) -> str:
    return "\n".join(f"--- {name}\n" + child.log.read_text(errors="replace")[-1500:] for name, child in h.children.items() if name in ("lemon", BAD))


async def verdict(h: House, state: str, timeout: float = 120) -> Verdict:
    async def reached() -> Verdict | None:
        assert h.admin is not None
        stored = await h.admin.get("EVENTS", subjects.verdict("lemon", "node", BAD))
        found = messages.decode(Verdict, stored.data) if stored is not None else None
        return found if found is not None and found.state == state else None

    try:
        return await until(reached, timeout, state)  # type: ignore[no-any-return]
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await described(h)}") from None


async def a_node_that_loses_its_workers(h: House) -> None:
    """In four jobs of two users."""
    for number in range(4):
        job = await h.submit(SLEEP, "train", workers=5, nodes=("n1", BAD, "n3", "n4", "n5"), user=f"u{number % 2}", maxRetry=9, stopGrace=0.5)
        await h.when_phase(job, "RunCommand", 90)
        request = messages.encode(NodeLostRequest("alice", "power cut"))
        answer = read_reply(NodeLostAnswer, await h.ask(subjects.rpc_do("jobcontroller", "node-lost", BAD), request))
        assert answer.told
        await h.when(job, lambda s: s.head.recoverCount == 1, 60, "the loss is counted")
        await h.act("stop", job)
        await h.ended(job)


async def placed(h: House, name: str, **spec: Any) -> set[str]:
    job = await h.submit(SLEEP, name, nodes=("n1", "n3", "n4", "n5"), stopGrace=0.5, **spec)
    state = await h.when_phase(job, "RunCommand", 90)
    return {pod.node for pod in state.pods()}


async def test_a_bad_node_is_found_drained_tested_repaired_and_given_back_and_jobs_get_nodes_by_risk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    async with house(tmp_path, nodes=0) as h:
        for name in ("n1", BAD, "n3", "n4", "n5"):
            await h.start_node(name, **({"AEGIS_CHECKS_MOUNTS": str(disk)} if name == BAD else {}))
        await a_node_that_loses_its_workers(h)
        shutil.rmtree(disk)  # now it is really broken
        await start_lemon(h)
        failed = await verdict(h, "failed")
        assert any(str(disk) in line for line in failed.evidence), failed
        assert [node["node"] for node in (await cli(h, "lemon", "ls"))["nodes"] if node.get("state") == "failed"] == [BAD]
        assert "failures in" in (await cli(h, "node", "show", BAD))["reason"]
        disk.mkdir()
        await cli(h, "node", "test", BAD, "--each", "200ms", "--reason", "disk replaced")
        await verdict(h, "probation")

        async def back() -> bool:
            assert h.admin is not None
            stored = await h.admin.get("NODES", subjects.node_taint(BAD))
            return stored is not None and not messages.decode(Taint, stored.data).excluded

        await until(back, 60, "given back")
        told = await cli(h, "lemon", "why", BAD)
        assert "4 failures in" in told["verdicts"][0]["sentence"]
        assert [one["state"] for one in told["verdicts"]] == ["drained", "failed", "probation"]
        assert json.loads(Path(told["ticket"]).read_text())["node"] == BAD

        measured = (await cli(h, "ettr", "measured"))["groups"][0]
        assert (measured["runs"], measured["cycles"]) == (4, 8) and measured["seconds"]["lost"] > 0, measured  # no checkpoint: all is lost

        # n4 has a bad link: who minds goes elsewhere, who does not goes there.
        assert h.admin is not None
        link = Verdict("l-1", "netmon", "network", state="degraded", accused=("n4",), nodes=("n4",), sentence="link n4 mlx5_0 is degraded")
        await h.admin.publish(subjects.verdict("netmon", "link", "l"), messages.encode(link))

        async def doubted() -> bool:
            return (await cli(h, "node", "show", "n4")).get("risk", 0) > 0.5

        await until(doubted, 60, "the risk of n4")
        assert "n4" not in await placed(h, "large", workers=3, priority=10)
        assert await placed(h, "small", riskTolerance="high") == {"n4"}
