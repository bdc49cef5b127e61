"""Workers that test each other, on the real stack: a node whose network spoils what it sends is named, excluded, and the job goes on without it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.waiting import until
from support.house import house, retries

SUPPORT = Path(__file__).parent / "support"
COMMAND = [sys.executable, str(SUPPORT / "collective_training.py")]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.torch,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not shutil.which("cc"), reason="SKIPPED: no C compiler: the bad link cannot be built"),
]


@pytest.fixture(scope="module")
def bad_link(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("badlink") / "badlink.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SUPPORT / "badlink.c"), "-ldl"], check=True)
    return str(library)


async def test_a_node_that_spoils_what_it_sends_is_named_by_the_bootcheck_and_the_job_runs_elsewhere(tmp_path: Path, bad_link: str) -> None:
    pytest.importorskip("torch")
    async with house(tmp_path, nodes=2) as h:
        await h.start_node("bad", LD_PRELOAD=bad_link, BAD_LINK="corrupt")
        job = await h.submit(COMMAND, workers=3, maxRetry=2)
        state = await h.when(job, lambda s: s.head.errorNodes, 150, "a node is excluded")
        assert [(node.name, node.reason) for node in state.head.errorNodes] == [("bad", "collective")], await h.describe(job)
        assert not list(h.folder.glob("run-*")), "nothing ran before the check had passed"
        await h.start_node("n3")
        await until(lambda: len(list(h.folder.glob("run-w*-0-*"))) == 3, 150, "all ranks run")
        state = await h.state(job)
        assert {pod.node for pod in state.pods()} == {"n1", "n2", "n3"} and retries(state) == "0:0:0"
        (h.folder / "done").touch()
        assert (await h.ended(job, 60)).head.phase == "Succeed"


async def test_a_node_slow_in_both_pairings_is_marked_and_leaves_at_the_next_checkpoint(tmp_path: Path, bad_link: str) -> None:
    pytest.importorskip("torch")
    counts = {"AEGIS_CHECKS_CPU_SPEED": "1"}
    async with house(tmp_path, nodes=3, **counts) as h:
        await h.start_node("bad", LD_PRELOAD=bad_link, BAD_LINK="slow", **counts)
        job = await h.submit(COMMAND, workers=4, maxRetry=2)
        await until(lambda: len(list(h.folder.glob("run-w*-0-*"))) == 4, 200, "all ranks run")
        state = await h.state(job)
        assert {pod.node: pod.mark for pod in state.pods()} == {"n1": "", "n2": "", "n3": "", "bad": "slow"}, await h.describe(job)
        assert not state.head.errorNodes, "nothing is done before a checkpoint is complete"
        await h.start_node("n4")
        (h.folder / "save").touch()
        state = await h.when(job, lambda s: s.head.errorNodes, 60, "the slow node is excluded")
        assert [(node.name, node.reason) for node in state.head.errorNodes] == [("bad", "slow")]
        await until(lambda: len(list(h.folder.glob("run-w*-1-*"))) == 4, 200, "all ranks run again")
        state = await h.state(job)
        assert {pod.node for pod in state.pods()} == {"n1", "n2", "n3", "n4"} and sum(pod.retries for pod in state.pods()) == 4
        (h.folder / "done").touch()
        assert (await h.ended(job, 60)).head.phase == "Succeed"
