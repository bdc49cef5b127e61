"""A bad node of a real Slurm with accounting: found in `sacct`, drained there with a reason, tested by its daemon, repaired, resumed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from aegis_proto import messages, subjects
from aegis_proto.messages import Verdict
from harness.waiting import until, until_sync
from support.house import House, house
from test_lemon import LEMON, cli

LAB = Path(os.environ.get("AEGIS_SHARED_DATA", Path(__file__).resolve().parents[2].parent / "shared/data")).parent / "lab/slurm-up.sh"
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "mariadbd", "munged", "sacct", "sacctmgr")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None] + ([] if LAB.exists() else [str(LAB)]) + ([] if os.geteuid() == 0 else ["root"])
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING), reason=f"SKIPPED: no real Slurm with accounting: {', '.join(MISSING)} missing"),
]
BAD, NODES = "node2", 5


class Slurm:
    def __init__(self, folder: Path) -> None:
        self.conf = folder / "lab/etc/slurm.conf"
        self.environ = {**os.environ, "SLURM_LAB": str(folder / "lab"), "SLURM_NODES": str(NODES), "SLURM_BASE_PORT": str(free_base())}
        self.environ["SLURM_CONF"] = str(self.conf)

    def run(self, *words: str, timeout: float = 60) -> str:
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
        return done.stdout

    def node(self) -> tuple[str, str]:
        """(state, reason) of the bad one."""
        state, reason = self.run("sinfo", "-h", "-n", BAD, "-o", "%T|%E").strip().split("|", 1)
        return state, reason

    def told(self, node: str) -> tuple[str, str]:
        """(weight, features) of a node."""
        weight, features = self.run("sinfo", "-h", "-N", "-n", node, "-o", "%w|%f").strip().split("|", 1)
        return weight, features

    def job(self) -> str:
        return self.run("sbatch", "--parsable", "--no-requeue", "-N", str(NODES), "-o", "/dev/null", "--wrap", "sleep 600").strip()

    def state(self, job: str) -> str:
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def lose(self) -> None:
        """A job of all nodes runs; the bad one goes down under it, and comes back."""
        job = self.job()
        ran = ("squeue", "-h", "-j", job, "-t", "running", "-o", "%M")  # accounting counts whole seconds
        until_sync(lambda: self.run(*ran).strip() >= "0:02", 60, f"job {job} runs: {self.run('sinfo', '-N')}")
        self.run("scontrol", "update", f"NodeName={BAD}", "State=DOWN", "Reason=kernel panic")
        until_sync(lambda: self.state(job) == "NODE_FAIL", 60, f"job {job} fails")
        self.run("scontrol", "update", f"NodeName={BAD}", "State=RESUME")
        until_sync(lambda: set(self.run("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}, 60, "idle nodes")
        kept = ("sacct", "-aPXDn", "-S", "now-1hours", "-o", "jobid,state,nodelist,start,end")
        until_sync(lambda: f"{job}|NODE_FAIL" in self.run(*kept), 60, f"accounting of {job}: {self.run(*kept)}")


def free_base() -> int:
    """A base from which all ports of the script are free: the controller's, the two behind it, and those of the nodes."""
    for base in range(21_000 + os.getpid() % 97 * 200, 60_000, 200):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in (base, base + 1, base + 2, *range(base + 101, base + 101 + NODES)):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base
    raise AssertionError("no free ports")


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # not below a folder that only root may enter: the database runs as a user of its own
    folder.chmod(0o755)
    made = Slurm(folder)
    try:
        made.run(str(LAB), "up", timeout=180)
        yield made
    finally:
        made.run(str(LAB), "down", timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


async def verdict(h: House, state: str) -> Verdict:
    async def reached() -> Verdict | None:
        assert h.admin is not None
        stored = await h.admin.get("EVENTS", subjects.verdict("lemon", "node", BAD))
        found = messages.decode(Verdict, stored.data) if stored is not None else None
        return found if found is not None and found.state == state else None

    try:
        return await until(reached, 150, state)  # type: ignore[no-any-return]
    except AssertionError as error:
        logs = "\n".join(child.log.read_text(errors="replace")[-2500:] for child in h.children.values())
        raise AssertionError(f"{error}\n{logs}") from None


async def test_a_bad_node_of_slurm_is_found_in_its_accounting_drained_tested_and_resumed(slurm: Slurm, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    (weight, features), good = slurm.told(BAD), slurm.told("node1")
    for _ in range(4):
        await asyncio.to_thread(slurm.lose)
    (tmp_path / "house").mkdir()
    async with house(tmp_path / "house", nodes=0) as h:
        await h.start_node(BAD, AEGIS_CHECKS_MOUNTS=str(disk))  # there is no such disk
        env = {"AEGIS_BUS_CREDS": h.creds("lemon", "lemon"), "AEGIS_LEMON_STATE": str(h.folder / "lemon"), **LEMON}
        await h.start("lemon", "-m", "aegis_lemon", env={**env, "AEGIS_LEMON_SLURM": "true", "SLURM_CONF": str(slurm.conf)})
        failed = await verdict(h, "failed")
        assert any(str(disk) in line for line in failed.evidence), failed
        state, reason = slurm.node()
        assert "drain" in state and reason.startswith("aegis lemon: 4 failures in"), (state, reason)
        disk.mkdir()
        await cli(h, "node", "test", BAD, "--each", "200ms", "--reason", "disk replaced")
        await verdict(h, "probation")
        await until(lambda: slurm.node()[0] == "idle", 60, "resumed")
        # On probation it is at risk: given last, and to be known by a feature.
        wish = (str(int(weight) + 300), f"{features},aegis_base_{weight},aegis_suspect")
        await until(lambda: slurm.told(BAD) == wish, 60, lambda: f"{slurm.told(BAD)}, expected {wish}")
        assert slurm.told("node1") == good
        job = slurm.job()
        await until(lambda: slurm.state(job) == "RUNNING", 60, "a job on all nodes")
