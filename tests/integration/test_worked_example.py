"""The worked example of the design on the real stack: 3 workers, maxRetry 2, real processes, real kills."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from harness.waiting import until
from support.house import House, house, phases, retries

COMMAND = [sys.executable, str(Path(__file__).parent / "support" / "command.py")]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


async def running(h: House, job: str, incarnation: int, workers: int = 3) -> None:
    """Every worker runs the command of `incarnation`."""
    await h.when(job, lambda s: s.head.phase == "RunCommand" and s.head.incarnation == incarnation, 60, f"RunCommand of incarnation {incarnation}")
    await until(lambda: len({p.name.split("-")[1] for p in h.folder.glob(f"run-w*-{incarnation}-*")}) == workers, 30, "all ranks run")


async def test_the_worked_example_comes_out_exactly(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=3, masters=2) as h:
        job = await h.submit(COMMAND, workers=3, maxRetry=2)
        await running(h, job, 0)
        assert retries(await h.state(job)) == "0:0:0"

        # w0 is killed: its agent, and with it its command
        agent = await h.agent_pid(job, "w0")
        os.kill(agent, signal.SIGKILL)
        state = await h.when(job, lambda s: s.head.recoverCount == 1, 30, "the kill is counted")
        assert retries(state) == "1:0:0"
        # a pod dies while the job is being repaired: not counted
        other = await h.agent_pid(job, "w1")
        os.kill(other, signal.SIGKILL)
        await running(h, job, 1)
        state = await h.state(job)
        assert (retries(state), state.head.recoverCount) == ("1:1:1", 1)

        # w1 reports an error of the command
        (h.folder / "raise-w1-1").touch()
        state = await h.when(job, lambda s: s.head.recoverCount == 2, 30, "the error is counted")
        assert retries(state) == "1:2:1"
        await running(h, job, 2)
        assert retries(await h.state(job)) == "2:2:2"

        # one more failure
        (h.folder / "raise-w2-2").touch()
        state = await h.ended(job, 60)
        assert (retries(state), state.head.phase, state.head.failedReason) == ("2:2:3", "Failed", "budget")
        assert (state.head.recoverCount, state.head.shouldQuit) == (3, True)
        # the running pods are closed
        await until(lambda: not _ranks(h), 30, "no process of the command is left")
        story = await h.story(job)
        assert sum(t.counted for t in story) == 3, await h.describe(job)
        assert phases(story)[-1] == "Failed"
        assert not list(h.folder.glob("run-w*-3-*")), "a fourth incarnation ran"


def _ranks(h: House) -> list[int]:
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if str(COMMAND[1]) in process.cmdline() and process.cwd() == str(h.folder):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
