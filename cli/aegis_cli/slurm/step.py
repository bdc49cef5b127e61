"""Where this process stands in Slurm: job, step, node, task; from the environment that srun gives. Refuses what cannot work. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from aegis_proto.ids import nearest_id

from aegis_cli.errors import CliError

ONE_EACH = re.compile(r"1(\(x\d+\))?\Z")
"""SLURM_STEP_TASKS_PER_NODE with one task on every node."""
START = "srun --ntasks-per-node=1 aegis-agent run --workers N ... -- python train.py"
PLACING = 120.0
"""Seconds until a place must be filled unless the job says otherwise: an allocation gets no new nodes, so waiting longer only holds it idle."""


@dataclass(frozen=True, slots=True)
class Step:
    """One task of a step. `restart`: how often Slurm has requeued the job. `node`: Slurm's name of this node. `nodelist`: as Slurm writes lists."""

    job: str
    step: str
    task: int
    node: str
    nodelist: str
    restart: int
    folder: str
    user: str = ""

    @property
    def name(self) -> str:
        """Of the Aegis job, and of the folder: `slurm-48213`, `slurm-48213-1` for a second step. The same after a requeue."""
        return f"slurm-{self.job}" if self.step == "0" else f"slurm-{self.job}-{self.step}"

    @property
    def owner(self) -> bool:
        """Keeps the stack of this allocation."""
        return self.task == 0

    @property
    def deputy(self) -> bool:
        """Has the job requeued when the owner's node is lost."""
        return self.task == 1


def read(environ: Mapping[str, str]) -> Step:
    """This task. E114 outside of an allocation; E115 when it was not started by srun, once per node."""
    if "SLURM_JOB_ID" not in environ:
        raise CliError(
            "E114",
            "--workers, --spares and --max-retry need an allocation of Slurm, and none is active here",
            hint=f"in a batch script: {START}. Outside of Slurm: aegis run",
        )
    task, step, node = environ.get("SLURM_PROCID", ""), environ.get("SLURM_STEP_ID", ""), environ.get("SLURMD_NODENAME", "")
    if not task.isdigit() or not step.isdigit() or not node:
        raise CliError("E115", f"this is the batch shell (or salloc's) of job {environ['SLURM_JOB_ID']}, not a step: start by srun", hint=START)
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", environ.get("SLURM_TASKS_PER_NODE", "1"))
    if not ONE_EACH.match(tasks):
        count = tasks.split("(")[0].split(",")[0]
        raise CliError(
            "E115",
            f"{count} agents on {node} for one job: srun needs --ntasks-per-node=1 (Aegis starts the ranks itself: --nproc-per-node {count})",
            hint=START,
        )
    return Step(
        environ["SLURM_JOB_ID"],
        step,
        int(task),
        node,
        environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST", node)),
        int(environ.get("SLURM_RESTART_COUNT", "0") or 0),
        environ.get("SLURM_SUBMIT_DIR", "."),
        environ.get("SLURM_JOB_USER", ""),
    )


def node_ids(names: tuple[str, ...]) -> dict[str, str]:
    """Slurm's names -> ids of Aegis (lower case, dashes, at most 40), told apart by a number where two would be one."""
    found: dict[str, str] = {}
    for name in names:
        base, n = nearest_id(name), 1
        wanted = base
        while wanted in found.values():
            n += 1
            wanted = f"{base[:36]}-{n}"
        found[name] = wanted
    return found


FOREIGN = re.compile(
    r"SLURM_(PROCID|LOCALID|NODEID|GTIDS|TASK_PID|NTASKS|NPROCS|NTASKS_PER_NODE|TASKS_PER_NODE|STEP_NUM_TASKS|STEP_TASKS_PER_NODE|STEP_LAUNCHER_PORT"
    r"|LAUNCH_NODE_IPADDR|SRUN_COMM_HOST|SRUN_COMM_PORT|UMASK|DISTRIBUTION)|PMI_.*|PMIX_.*|AEGIS_(BUS|CREDENTIALS|SERVICE|NODE|STACK|CONTEXT)(_.*)?"
)
"""What a training must not see of this step: it describes one agent per node, and ranks that a worker on a spare no longer has."""


def daemon_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment of a node daemon, and with it of the training on that node: the step's, without what describes this one task."""
    return {key: value for key, value in environ.items() if not FOREIGN.fullmatch(key)}
