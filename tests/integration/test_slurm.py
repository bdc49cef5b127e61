"""Aegis in allocations of a real Slurm: `srun aegis-agent run --workers N --spares M` with a private stack on its nodes.

One cluster of several slurmds for all tests; each test has a job of its own and leaves the cluster healed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from aegis_cli.slurm.folder import Folder
from aegis_cli.slurm.script import script
from aegis_cli.slurm.step import PLACING
from aegis_proto.state import JobSpec
from harness.waiting import until_sync
from support.slurm import Slurm, cluster

STEPS = Path(__file__).parent / "support" / "steps.py"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster(tmp_path_factory.mktemp("slurm"), nodes=4) as running:
        yield running


@pytest.fixture
def slurm(whole: Slurm) -> Iterator[Slurm]:
    yield whole
    whole.heal()


class Job:
    """A submitted job: its folder, and what happens in it."""

    def __init__(self, slurm: Slurm, folder: Path, *, limit: str = "", **spec: Any) -> None:
        self.slurm, self.folder = slurm, folder
        wanted = {"stopGrace": 2.0, "preemptGrace": 20.0, "placingTimeout": PLACING, **spec}
        text = script(JobSpec("steps", (sys.executable, str(STEPS)), **wanted), f"{sys.executable} -m aegis_agent", limit)
        text = text.replace("\naegis=", "\nmkdir -p start-$SLURM_RESTART_COUNT; cd start-$SLURM_RESTART_COUNT\naegis=", 1)
        self.number = slurm.submit(text, folder, AEGIS_SLURM_REQUEUE_DELAY="10s", AEGIS_SLURM_OWNER_SILENT="5s")
        self.kept = Folder(folder / ".aegis" / f"slurm-{self.number}")

    def start(self, n: int) -> Path:
        return self.folder / f"start-{n or ''}"

    def told(self) -> str:
        out = self.folder / "job.out"
        return f"{self.slurm.show('job', self.number)}\n{out.read_text(errors='replace')[-6000:] if out.exists() else ''}"

    def until(self, condition: object, timeout: float, what: str) -> object:
        try:
            return until_sync(condition, timeout, what)  # type: ignore[arg-type]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def stepping(self, start: int, incarnation: int, timeout: float = 180) -> dict[str, int]:
        """Every worker makes steps in that run; pid of each worker's command."""
        folder = self.start(start)
        self.until(lambda: list(folder.glob(f"at-{incarnation}-w0-3")), timeout, f"steps of start {start}, incarnation {incarnation}")
        return {path.name.split("-")[1]: int(path.name.split("-")[3]) for path in folder.glob(f"run-w*-{incarnation}-*")}

    def ended(self, timeout: float = 240) -> tuple[str, str]:
        """JobState and ExitCode."""
        try:
            found = self.slurm.ended(self.number, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None
        return found["JobState"], found["ExitCode"]


def kill(job: Job, pids: dict[str, int], worker: str) -> None:
    """The command of that worker, and nobody who has its number by now."""
    process = psutil.Process(pids[worker])
    environ = process.environ()
    assert (environ["SLURM_JOB_ID"], environ["AEGIS_POD"]) == (job.number, worker)
    process.kill()


def environ_of(pid: int) -> dict[str, str]:
    return psutil.Process(pid).environ()


def test_a_fault_is_survived_and_a_bad_node_is_drained_and_its_work_goes_to_the_spare(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, workers=3, spares=1, maxRetry=3, checkpointDir="ckpt")
    pids = job.stepping(0, 0)
    assert set(pids) == {"w0", "w1", "w2"}
    assert (job.kept.path.stat().st_mode & 0o777, (job.kept.path / "endpoint.json").stat().st_mode & 0o777) == (0o700, 0o600)
    endpoint = job.kept.endpoint(0)
    assert endpoint is not None and endpoint.servers[0].startswith("tls://")
    kill(job, pids, "w1")
    pids = job.stepping(0, 1)
    job.until(lambda: job.kept.ledger().starts[0].used == 1, 60, "one fault in the ledger")
    words = [sys.executable, "-m", "aegis_cli", "job", "show", "-c", f"slurm-{job.number}", "--json", f"slurm-{job.number}"]
    shown = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert shown.returncode == 0 and json.loads(shown.stdout)["summary"]["recoverCount"] == 1, shown

    bad = environ_of(pids["w2"])
    node = bad["SLURMD_NODENAME"]
    argv = [sys.executable, "-m", "aegis_agent", "ctl", "taint", "--why", "by a person", "--socket", bad["AEGIS_CONTROL_SOCKET"]]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(told.stdout)["ok"], told
    save(job.start(0))
    job.until(lambda: "DRAIN" in slurm.show("node", node)["State"], 120, f"{node} drained")
    assert slurm.show("node", node)["Reason"].startswith("aegis: slow")
    pids = job.stepping(0, 2)
    spare = environ_of(pids["w2"])["SLURMD_NODENAME"]
    assert spare != node
    (job.start(0) / "finish").touch()
    assert job.ended() == ("COMPLETED", "0:0"), job.told()
    ledger = job.kept.ledger()
    assert (ledger.names, ledger.starts[0].used, ledger.starts[0].end) == ((node,), 2, "succeeded")
    left_over(slurm, job)

    other = slurm.submit("#!/bin/bash\n#SBATCH --nodes=3\nscontrol show hostnames $SLURM_JOB_NODELIST\n", tmp_path / "other")
    slurm.ended(other)
    assert node not in (tmp_path / "other" / "job.out").read_text().split()
    four = slurm.submit("#!/bin/bash\n#SBATCH --nodes=4\ntrue\n", tmp_path / "four")
    until_sync(lambda: slurm.show("job", four).get("Reason", "") not in ("", "Priority"), 30, "a reason to wait")
    assert slurm.state(four) == "PENDING"
    slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert slurm.ended(four)["JobState"] == "COMPLETED"


def left_over(slurm: Slurm, job: Job) -> None:
    """Nothing of a job that has ended runs, and no folder of it lies on the nodes."""

    def alive() -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("SLURM_JOB_ID") == job.number and "slurmstepd" not in process.name():
                    found.append(" ".join(process.cmdline())[:200])
            except psutil.Error:
                continue
        return found

    until_sync(lambda: not alive(), 60, lambda: f"an end of {alive()}")
    assert not list(Path("/tmp").glob(f"aegis-0-slurm-{job.number}-*"))


def save(folder: Path, step: int = 100) -> None:
    """A complete checkpoint as torch.distributed.checkpoint writes it."""
    at = folder / "ckpt" / f"step-{step}"
    at.mkdir(parents=True)
    (at / "__0_0.distcp").write_bytes(b"data")
    (at / ".metadata").write_bytes(b"\x80\x04.")


def test_notices_are_not_counted_and_a_requeued_job_goes_on_with_the_rest_of_its_budget(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, limit="10:00:00", workers=2, maxRetry=1)
    pids = job.stepping(0, 0)
    kill(job, pids, "w1")
    job.stepping(0, 1)
    job.until(lambda: job.kept.ledger().starts[0].used == 1, 60, "one fault in the ledger")
    slurm.run("scancel", "--batch", "--signal=TERM", job.number)  # what `--signal=B:TERM@...` sends before the limit
    job.until(lambda: slurm.show("job", job.number)["Restarts"] == "1", 180, "the notice, and the requeue")
    kept = job.kept.ledger()
    assert (kept.starts[0].end, kept.starts[0].code, kept.spent) == ("time limit", 75, 1), job.told()

    job.stepping(1, 0)  # not after the two minutes that Slurm waits by itself
    slurm.run("scancel", "--signal=TERM", job.number)  # as at a preemption: every process of the step, the stack's too
    job.until(lambda: slurm.show("job", job.number)["Restarts"] == "2", 180, "the requeue after a signal to all")
    kept = job.kept.ledger()
    assert (kept.starts[1].end, kept.starts[1].used, kept.spent) == ("time limit", 0, 1), job.told()

    pids = job.stepping(2, 0)
    kill(job, pids, "w1")  # the second fault of a job that may survive one
    assert job.ended() == ("FAILED", "76:0"), job.told()
    assert "E301" in (tmp_path / "job.out").read_text()
    assert slurm.show("job", job.number)["Restarts"] == "2"


def test_a_node_that_slurm_loses_gives_its_worker_to_the_spare(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, workers=2, spares=2, maxRetry=1)
    pids = job.stepping(0, 0)
    endpoint = job.kept.endpoint(0)
    assert endpoint is not None
    where = {worker: environ_of(pid)["SLURMD_NODENAME"] for worker, pid in pids.items()}
    lost = next(worker for worker, node in sorted(where.items(), reverse=True) if node != endpoint.owner)
    slurm.power_off(where[lost])
    pids = job.stepping(0, 1)
    assert environ_of(pids[lost])["SLURMD_NODENAME"] not in where.values()
    (job.start(0) / "finish").touch()
    assert job.ended() == ("COMPLETED", "0:0"), job.told()  # srun itself says 137: a task of it was killed
    assert job.kept.ledger().starts[0].used == 1, job.told()


def test_a_cancelled_job_ends_within_the_time_that_slurm_gives_and_is_not_requeued(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, workers=2)
    job.stepping(0, 0)
    slurm.run("scancel", job.number)
    assert job.ended(120)[0] == "CANCELLED"
    left_over(slurm, job)
    assert slurm.show("job", job.number)["Restarts"] == "0"


def test_a_first_task_that_is_killed_has_the_second_requeue_the_job(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, workers=2, spares=1, maxRetry=1)
    job.stepping(0, 0)
    endpoint = job.kept.endpoint(0)
    assert endpoint is not None
    task = next(p for p in slurm.of_node(endpoint.owner) if "aegis_cli.slurm" in " ".join(p.cmdline()))
    task.kill()
    begun = len(list(job.start(0).glob("at-0-w0-*")))
    job.until(lambda: len(list(job.start(0).glob("at-0-w0-*"))) > begun + 10, 60, "a training that goes on without a stack")
    (job.start(0) / "finish").touch()
    job.until(lambda: slurm.show("job", job.number)["Restarts"] == "1", 240, "a requeue by the second node once nothing runs")
    job.stepping(1, 0)
    assert job.kept.ledger().spent == 2
    (job.start(1) / "finish").touch()
    assert job.ended() == ("COMPLETED", "0:0"), job.told()


def test_several_agents_on_a_node_are_refused(slurm: Slurm, tmp_path: Path) -> None:
    words = ("srun", "--nodes=1", "--ntasks-per-node=2", sys.executable, "-m", "aegis_agent", "run", "--workers", "1", "--", "true")
    done = subprocess.run(words, env=slurm.environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "E115 2 agents on cn-" in done.stderr, done.stderr
