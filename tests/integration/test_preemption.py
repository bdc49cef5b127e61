"""A platform takes a worker of a running DDP training away: nothing is counted, whoever is heard first, and the training goes on elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from aegis_proto.phases import Phase
from harness.waiting import until
from support.house import House, house, retries
from support.proxy import CutProxy

TRAIN = [sys.executable, str(Path(__file__).parents[2] / "bench" / "train_ddp.py")]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def steps(folder: Path, incarnation: int) -> dict[int, int]:
    """Highest step of each rank of an incarnation."""
    found: dict[int, int] = {}
    for path in folder.glob("ev.*.jsonl"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # half a line: it is being written
                event = json.loads(line)
                if event["ev"] == "step" and event["inc"] == str(incarnation):
                    found[event["rank"]] = max(found.get(event["rank"], 0), event["step"])
    return found


async def training(h: House, workers: int, **spec: object) -> tuple[str, Path]:
    """Every rank has made some steps."""
    folder = h.folder / "work"
    folder.mkdir()
    env = {"BENCH_DIR": str(folder), "STEPS": "300", "STEP_MS": "20", "CKPT_EVERY": "5", "OMP_NUM_THREADS": "1"}
    job = await h.submit(TRAIN, name="ddp", workers=workers, maxRetry=1, cwd=str(folder), env=env, **spec)
    try:
        await until(lambda: len(found := steps(folder, 0)) == workers and min(found.values()) > 10, 120, "steps of all ranks")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await h.describe(job)}") from None
    return job, folder


async def goes_on_uncounted(h: House, job: str, folder: Path, workers: int) -> list[str]:
    """The training ends well in its second incarnation, resumed, and no count is left. Codes of the story, in order."""
    state = await h.ended(job, 150)
    head, told = state.head, await h.describe(job)
    assert head.phase is Phase.SUCCEED, told
    assert (head.recoverCount, head.failures, head.incarnation, retries(state)) == (0, 0, 1, ":".join("0" * workers)), told
    assert all(pod.uncounted == 0 for pod in state.pods())
    assert set(steps(folder, 1).values()) == {299}
    assert (
        min(
            json.loads(line)["step"]
            for path in folder.glob("ev.*.jsonl")
            for line in path.read_text().splitlines()
            if '"inc": "1"' in line and '"step"' in line
        )
        > 0
    )
    return [t.cause for t in await h.story(job)]


async def test_sigterm_to_an_agent_is_not_counted(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=3) as h:
        job, folder = await training(h, 3)
        agent = await h.agent_pid(job, "w1")
        os.kill(agent, signal.SIGTERM)
        causes = await goes_on_uncounted(h, job, folder, 3)
        assert causes.count("preempted") >= 1 and "collateral" not in causes, await h.describe(job)
        assert not psutil.pid_exists(agent)


async def test_sigterm_to_a_whole_container_is_not_counted(tmp_path: Path) -> None:
    """The command before its agent, as some platforms do."""
    async with house(tmp_path, nodes=2) as h:
        job, folder = await training(h, 2)
        agent, ranks = await h.agent_pid(job, "w1"), await h.rank_pids(job, "w1")
        for pid in (*ranks, agent):
            os.kill(pid, signal.SIGTERM)
        await goes_on_uncounted(h, job, folder, 2)


async def test_a_notice_that_is_heard_after_the_errors_of_its_peers_takes_the_count_back(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=0) as h, CutProxy("127.0.0.1", h.nats.port) as proxy:
        for name in ("n1", "n2"):
            await h.start_node(name, AEGIS_AGENT_SERVERS=proxy.url if name == "n1" else "")
        job, folder = await training(h, 2)
        cut = next(pod for pod in (await h.state(job)).pods() if pod.node == "n1")
        place = (await h.state(job)).pods().index(cut)
        proxy.cut()
        os.kill(await h.agent_pid(job, f"w{place}"), signal.SIGTERM)
        counted = await h.when(job, lambda s: s.head.failures == 1, 60, "the other worker's error counts")
        assert counted.pod(1 - place).retries == 1
        proxy.heal()
        await h.when(job, lambda s: s.head.failures == 0, 60, "the count is taken back")
        causes = await goes_on_uncounted(h, job, folder, 2)
        assert "collateral" in causes, await h.describe(job)
