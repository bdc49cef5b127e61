"""A run that stands still: the right worker is named, nothing is stopped while it may go on, and the ending of the design comes when it does not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from aegis_agent.evidence import find_py_spy
from aegis_proto.state import JobState
from harness.waiting import until
from support.house import House, house, phases, retries

COMMAND = [sys.executable, str(Path(__file__).parent / "support" / "steps.py")]
QUIET = ["Pending", "BootChecking", "RunCommand"]
SILENCE = 4.0

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def marks(state: JobState) -> list[str]:
    return [pod.mark for pod in state.pods()]


def logs(h: House, job: str) -> str:
    """What the agents of this job have said so far."""
    said = [path.read_text(errors="replace") for path in h.folder.glob("state-*/slots/*/agent.log")]
    return "\n".join(text for text in said if f" of {job}," in text)


async def stepping(h: House, job: str, folder: Path, incarnation: int, workers: int) -> dict[str, int]:
    """All ranks make steps; pod -> process id of its rank."""
    await until(lambda: list(folder.glob(f"at-{incarnation}-w0-3")), 90, f"steps of incarnation {incarnation}")
    found = {path.name.split("-")[1]: int(path.name.split("-")[3]) for path in folder.glob(f"run-w*-{incarnation}-*")}
    assert len(found) == workers, await h.describe(job)
    return found


async def test_a_stopped_rank_is_named_at_once_goes_on_as_if_nothing_had_been_or_is_evicted(tmp_path: Path) -> None:
    """Two jobs beside each other, since each waits for 25 s until its owner judges silence at all."""
    async with house(tmp_path, nodes=6, masters=1) as h:
        await asyncio.gather(it_goes_on(h), it_stays(h))


async def it_goes_on(h: House) -> None:
    """The right rank, nobody killed; it goes on: nothing else happened."""
    folder = h.folder / "work-on"
    folder.mkdir()
    job = await h.submit(COMMAND, "on", workers=3, cwd=str(folder), hangSilence=SILENCE, nodes=("n1", "n2", "n3"))
    pids = await stepping(h, job, folder, 0, 3)
    await asyncio.sleep(23.0)  # a new owner judges nothing for 25 s: this is that rule, not a wait for a condition
    os.kill(pids["w1"], signal.SIGSTOP)
    began = time.monotonic()
    state = await h.when(job, lambda s: any(marks(s)), SILENCE + 15.0, "a mark")
    named = time.monotonic() - began
    assert marks(state) == ["", "hang", ""], await h.describe(job)
    assert named <= SILENCE + 15.0
    await until(lambda: "hang failed: critical hang_stopped" in logs(h, job), 90, "the checks beside the run")
    await until(lambda: logs(h, job).count("checks beside the run: passed") >= 2, 90, "those of the others")
    os.kill(pids["w1"], signal.SIGCONT)
    await h.when(job, lambda s: not any(marks(s)), 30.0, "the mark is withdrawn")

    if find_py_spy() is not None:  # a rank that is alive and elsewhere: only its stack tells
        (folder / "stuck-w2").touch()
        await h.when(job, lambda s: marks(s) == ["", "", "hang"], SILENCE + 30.0, "the rank outside of the collective is named by its stack")
        (folder / "stuck-w2").unlink()
        await h.when(job, lambda s: not any(marks(s)), 30.0, "the mark is withdrawn")
    assert [os.kill(pid, 0) for pid in pids.values()] == [None] * 3
    (folder / "finish").touch()
    state = await h.ended(job, 60)
    assert (state.head.phase, state.head.recoverCount, state.head.incarnation) == ("Succeed", 0, 0), await h.describe(job)
    assert phases(await h.story(job)) == [*QUIET, "Succeed"]


async def it_stays(h: House) -> None:
    """Counted at the deadline of the hang, and its node is not used again."""
    folder = h.folder / "work-stays"
    folder.mkdir()
    job = await h.submit(COMMAND, "stays", nodes=("n4", "n5", "n6"), workers=2, cwd=str(folder), hangSilence=SILENCE, hangTimeout=3.0, stopGrace=1.0)
    pids = await stepping(h, job, folder, 0, 2)
    bad = (await h.state(job)).pod(1).node
    os.kill(pids["w1"], signal.SIGSTOP)
    await h.when(job, lambda s: s.head.incarnation == 1 and s.head.phase == "RunCommand", 90.0, "it runs again")
    await stepping(h, job, folder, 1, 2)
    state = await h.state(job)
    assert retries(state) == "1:1" and state.head.recoverCount == 1, await h.describe(job)
    assert [entry.name for entry in state.head.errorNodes] == [bad]
    assert state.pod(1).node not in (bad, state.pod(0).node)
    (folder / "finish").touch()
    assert (await h.ended(job, 60)).head.phase == "Succeed"
