"""Recovery on the real stack beyond a restart in place: a slow worker leaves at a checkpoint; runs that bring nothing end the job."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from aegis_proto.phases import FailedReason
from harness.waiting import until
from support.house import House, house, retries

COMMAND = [sys.executable, str(Path(__file__).parent / "support" / "steps.py")]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


async def stepping(folder: Path, incarnation: int) -> dict[str, int]:
    await until(lambda: list(folder.glob(f"at-{incarnation}-w0-3")), 90, f"steps of incarnation {incarnation}")
    return {path.name.split("-")[1]: int(path.name.split("-")[3]) for path in folder.glob(f"run-w*-{incarnation}-*")}


def save(folder: Path, step: int) -> None:
    """A complete checkpoint as DCP writes it."""
    at = folder / "ckpt" / f"step-{step}"
    at.mkdir(parents=True)
    (at / "__0_0.distcp").write_bytes(b"data")
    (at / ".metadata").write_bytes(b"\x80\x04.")


async def a_slow_worker_leaves(h: House) -> None:
    folder = h.folder / "work-slow"
    folder.mkdir()
    job = await h.submit(COMMAND, "slow", workers=2, nodes=("n1", "n2", "n3"), cwd=str(folder), checkpointDir="ckpt", stopGrace=1.0)
    pids = await stepping(folder, 0)
    bad = (await h.state(job)).pod(1).node
    environ = dict(pair.split("=", 1) for pair in Path(f"/proc/{pids['w1']}/environ").read_text().split("\0") if "=" in pair)
    argv = [sys.executable, "-m", "aegis_agent", "ctl", "taint", "--why", "by a person", "--socket", environ["AEGIS_CONTROL_SOCKET"]]
    told = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=30, check=False)
    assert json.loads(told.stdout)["ok"], told
    state = await h.when(job, lambda s: s.pod(1).mark == "slow", 30, "the mark")
    assert (state.head.phase, state.head.incarnation) == ("RunCommand", 0)  # it goes on until it has saved
    save(folder, 100)
    await stepping(folder, 1)
    state = await h.when_phase(job, "RunCommand")
    assert (retries(state), [entry.name for entry in state.head.errorNodes]) == ("1:1", [bad]), await h.describe(job)
    assert state.pod(1).node not in (bad, "") and state.head.checkpointStep == 100
    (folder / "finish").touch()
    assert (await h.ended(job, 60)).head.phase == "Succeed"


async def runs_that_bring_nothing_end(h: House) -> None:
    folder = h.folder / "work-nothing"
    folder.mkdir()
    job = await h.submit(
        COMMAND,
        "nothing",
        workers=2,
        nodes=("n4", "n5"),
        cwd=str(folder),
        checkpointDir="ckpt",
        stopGrace=1.0,
        maxRetry=9,
        allowInject=True,
    )
    await stepping(folder, 0)
    save(folder, 7)
    await h.when(job, lambda s: s.head.checkpointStep == 7, 30, "the checkpoint is known")
    for run in range(3):
        await stepping(folder, run)
        await h.when(job, lambda s, run=run: s.head.phase == "RunCommand" and s.head.incarnation == run, 30, f"run {run}")
        await h.act("inject", job, settings={"worker": "w1", "fault": "kill"})
    state = await h.ended(job, 60)
    assert (state.head.failedReason, state.head.exitCode, state.head.recoverCount) == (FailedReason.PROGRESS, 76, 3), await h.describe(job)


async def test_a_slow_worker_leaves_at_a_checkpoint_and_runs_that_bring_nothing_end_the_job(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=5, masters=1) as h:
        await asyncio.gather(a_slow_worker_leaves(h), runs_that_bring_nothing_end(h))
