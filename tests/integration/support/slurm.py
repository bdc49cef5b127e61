"""A real Slurm of several nodes on this machine, as root: slurmctld, one slurmd per node on a port of its own, munged. All of it in one folder.

Started by `cluster`, ended by process id, with whatever its jobs left. Nothing in /etc is touched, no port is fixed. GPUs are device files that do
nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from aegis_bus.natsserver import free_port
from aegis_cli.stack.guard import dies_with_parent
from harness.waiting import until_sync

PROGRAMS = ("slurmctld", "slurmd", "munged", "scontrol", "sbatch", "srun")
KILL_WAIT = 20
"""Seconds between SIGTERM and SIGKILL of Slurm, KillWait."""
WAIT = 300.0
"""Seconds for a part of the cluster; one of these takes seconds on a machine at rest."""
ATTEMPTS = 3
"""A port that was free can be somebody's by the time it is bound."""


def missing() -> str:
    """Why it cannot run here; "" when it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (tests/integration/support/packages.sh)"
    return "" if os.geteuid() == 0 else "needs root"


def need_slurm() -> None:
    reason = missing()
    if reason:
        pytest.skip(f"SKIPPED: no real Slurm: {reason}")


@dataclass
class Slurm:
    """The running cluster."""

    folder: Path
    nodes: tuple[str, ...]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def environ(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "AEGIS_BUS", "AEGIS_CONTEXT"))}
        return {**kept, "SLURM_CONF": str(self.conf), "AEGIS_TEST_SLURM": str(self.folder)}

    # --- commands ----------------------------------------------------------------------------------------------------------------

    def run(self, *words: str, check: bool = True, **env: str) -> str:
        """stdout of one of Slurm's commands."""
        done = subprocess.run(words, env={**self.environ, **env}, capture_output=True, text=True, timeout=WAIT, check=False)
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, script: str, folder: Path, **env: str) -> str:
        """The number of the job that `script` became; submitted from `folder`, its output in `job.out` there."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "job.sbatch"
        path.write_text(script)
        words = ("sbatch", "--parsable", "--output", str(folder / "job.out"), "--open-mode", "append", "--chdir", str(folder), str(path))
        done = subprocess.run(words, env={**self.environ, **env}, cwd=folder, capture_output=True, text=True, timeout=WAIT, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def show(self, what: str, name: str) -> dict[str, str]:
        """`scontrol show` of a job or node, as fields."""
        from aegis_parsers.slurm import record

        return record(self.run("scontrol", "-o", "show", what, name))

    def state(self, job: str) -> str:
        return self.show("job", job).get("JobState", "")

    def ended(self, job: str, timeout: float = 120.0) -> dict[str, str]:
        """The record of a job that has ended."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "SPECIAL_EXIT", "PREEMPTED")
        until_sync(lambda: self.state(job) in over, timeout, lambda: f"end of job {job}: {self.show('job', job)}")
        return self.show("job", job)

    def ready(self) -> bool:
        lines = self.run("sinfo", "-h", "-N", "-o", "%N %t", check=False).splitlines()
        return sorted(lines) == sorted(f"{node} idle" for node in self.nodes)

    def nodes_now(self) -> str:
        return f"{len(self.nodes)} idle nodes: {self.run('sinfo', '-N', check=False)}"

    def heal(self) -> None:
        """All nodes usable, no jobs: for the next test."""
        self.run("scancel", "--user", "root", check=False)
        until_sync(lambda: not self.run("squeue", "-h", check=False).strip(), WAIT, lambda: f"an empty queue: {self.run('squeue', check=False)}")

        def usable() -> bool:
            for node in self.nodes:
                if f"slurmd-{node}" in self.ended_processes():  # also again: its port may be somebody's for a moment
                    self.start_node(node)
                    self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
            return self.ready()

        for node in self.nodes:
            self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        until_sync(usable, WAIT, self.nodes_now)

    # --- processes ---------------------------------------------------------------------------------------------------------------

    def start(self, name: str, *words: str) -> None:
        with open(self.folder / "log" / f"{name}.out", "ab") as log:
            self.processes[name] = subprocess.Popen(
                words,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
                preexec_fn=dies_with_parent(),  # noqa: PLW1509 - a test run that is killed leaves no cluster
            )

    def ended_processes(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.poll() is not None]

    def begin(self) -> bool:
        """slurmctld and all nodes, until they are idle. False when one of them ended instead."""
        self.start("slurmctld", "slurmctld", "-D", "-c")
        until_sync(lambda: "is UP" in self.run("scontrol", "ping", check=False) or self.ended_processes(), WAIT, "slurmctld")
        for node in self.nodes:
            self.start_node(node)
        until_sync(lambda: self.ended_processes() or self.ready(), WAIT, self.nodes_now)
        return not self.ended_processes()

    def start_node(self, node: str) -> None:
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        self.start(f"slurmd-{node}", "slurmd", "-D", "-N", node)

    def of_node(self, node: str) -> list[psutil.Process]:
        """Every process of a job on that node (they carry SLURMD_NODENAME), the slurmstepds above them, and its slurmd."""
        found = {self.processes[f"slurmd-{node}"].pid: psutil.Process(self.processes[f"slurmd-{node}"].pid)}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environ = process.environ()
                ours = environ.get("AEGIS_TEST_SLURM") == str(self.folder) or environ.get("SLURM_CONF") == str(self.conf)
                if ours and environ.get("SLURMD_NODENAME") == node:
                    found[process.pid] = process
                    found |= {parent.pid: parent for parent in process.parents() if parent.name().startswith("slurmstepd")}
        return list(found.values())

    def power_off(self, node: str) -> None:
        """The machine is gone, at once and with everything on it; Slurm is told by nobody but the administrator."""
        found = self.of_node(node)
        for verb in ("suspend", "kill"):  # nobody may tell of the end of another
            for process in found:
                with contextlib.suppress(psutil.Error):
                    getattr(process, verb)()
        self.processes[f"slurmd-{node}"].wait()
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            self.run("scancel", "--user", "root", check=False)
        self.end("slurmctld", *(f"slurmd-{node}" for node in self.nodes), "munged")
        for left in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environ = left.environ()
                if environ.get("AEGIS_TEST_SLURM") == str(self.folder) or environ.get("SLURM_CONF") == str(self.conf):
                    left.kill()  # slurmstepds end by themselves when nothing is left below them

    def end(self, *names: str) -> None:
        ours = [process for name in names if (process := self.processes.pop(name, None)) is not None and process.poll() is None]
        for process in ours:
            process.terminate()
        for process in ours:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        for process in ours:
            process.kill()
            process.wait()


def _conf(folder: Path, nodes: tuple[str, ...], more: Mapping[str, str]) -> str:
    host = socket.gethostname().split(".")[0]
    settings = {
        "ClusterName": "aegistest",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": str(free_port()),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge/sock",
        "CredType": "cred/munge",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/pid/slurmctld",
        "SlurmdPidFile": f"{folder}/pid/slurmd-%n",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/slurmd-%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "AccountingStorageType": "accounting_storage/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SchedulerParameters": "sched_interval=1,bf_interval=1,nohold_on_prolog_fail",
        "ReturnToService": "1",
        "SlurmdParameters": "config_overrides",  # several nodes on one machine, each larger than it
        "SlurmdTimeout": "30",
        "KillWait": str(KILL_WAIT),
        "MinJobAge": "3600",
        "MpiDefault": "none",
        "SwitchType": "switch/none",
        "PrologFlags": "Alloc",
        "GresTypes": "gpu",
        **more,
    }
    lines = [f"{key}={value}" for key, value in settings.items()]
    lines += [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 "
        f"ThreadsPerCore=1 RealMemory=16000 Gres=gpu:2 Weight={10 * (n + 1)} State=UNKNOWN"
        for n, node in enumerate(nodes)
    ]
    lines.append(f"PartitionName=train Nodes={','.join(nodes)} Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def cluster(folder: Path, nodes: int = 4, **settings: str) -> Iterator[Slurm]:
    """`settings`: more lines of slurm.conf (Prolog=..., HealthCheckProgram=...). The nodes are cn-1, cn-2, ..."""
    need_slurm()
    for name in ("etc", "log", "pid", "state", "spool", "munge", "dev"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    names = tuple(f"cn-{n + 1}" for n in range(nodes))
    slurm = Slurm(folder, names)
    (folder / "munge" / "key").write_bytes(os.urandom(128))
    (folder / "munge" / "key").chmod(0o600)
    for n in range(2):
        with contextlib.suppress(OSError):
            os.mknod(folder / "dev" / f"gpu{n}", 0o020666, os.makedev(1, 3))
    (folder / "etc" / "gres.conf").write_text(f"Name=gpu File={folder}/dev/gpu[0-1]\n")
    began = time.monotonic()
    try:
        munge = folder / "munge"
        words = ("munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/sock", f"--pid-file={munge}/pid")
        slurm.start("munged", *words, f"--log-file={folder}/log/munged.log", f"--seed-file={munge}/seed")
        until_sync((munge / "sock").exists, WAIT, "munge")
        for attempt in range(ATTEMPTS):
            slurm.conf.write_text(_conf(folder, names, settings))
            if slurm.begin():
                break
            assert attempt + 1 < ATTEMPTS, f"{slurm.ended_processes()} ended: see {folder}/log"
            slurm.end("slurmctld", *(f"slurmd-{node}" for node in names))
        print(f"a real Slurm of {nodes} nodes up in {time.monotonic() - began:.1f} s")
        yield slurm
    finally:
        slurm.stop()
