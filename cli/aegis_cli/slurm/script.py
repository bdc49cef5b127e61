"""The batch script of a job: `aegis job script --platform slurm`. Pure: a specification in, text out."""

from __future__ import annotations

import math
import shlex

import msgspec
from aegis_proto.state import JobSpec

NOTICE = 60.0
"""Seconds before the time limit at which the notice comes where the job's own grace is shorter: Slurm looks once in half a minute."""
OF_SLURM = ("namespace", "user", "cwd", "nodes", "exclude", "gpuType")
"""Fields that the allocation itself fulfils, or the step tells: not in the job file of the script."""


def job_file(job: JobSpec) -> str:
    """What the tasks run, whole, so that no setting of a node changes it. JSON; a text in it never ends a line."""
    said = {key: value for key, value in msgspec.structs.asdict(job).items() if key not in OF_SLURM}
    fields = {key: value for key, value in said.items() if value is not False and value not in ("", (), {})}
    return msgspec.json.format(msgspec.json.encode(fields), indent=1).decode()


def script(job: JobSpec, agent: str = "aegis-agent", limit: str = "") -> str:
    """`limit`: `--time` of sbatch ("" = the partition's). The training gets `preemptGrace` before the limit to save."""
    notice = math.ceil(max(job.preemptGrace + 30.0, NOTICE))
    head = [
        "#!/bin/bash",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.workers + job.spares}" + (f"  # {job.workers} to train, {job.spares} spare" if job.spares else ""),
        "#SBATCH --ntasks-per-node=1",
        *([f"#SBATCH --gpus-per-node={job.nprocPerNode}"] if job.nprocPerNode > 1 else []),
        "#SBATCH --exclusive",
        *([f"#SBATCH --time={limit}"] if limit else []),
        "#SBATCH --requeue                # another start keeps what is left of the budget",
        *(["#SBATCH --no-kill                # the loss of a node is the spare's, not the job's end"] if job.spares else []),
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:TERM@{notice}  # before the time limit: the training saves, and the job is requeued",
        *([f"#SBATCH --nodelist={','.join(job.nodes)}"] if job.nodes else []),
        *([f"#SBATCH --exclude={','.join(job.exclude)}"] if job.exclude else []),
        *(
            [f"# GPUs of type {job.gpuType} are asked of Slurm as this cluster names them: --constraint, or --gpus-per-node=TYPE:N"]
            if job.gpuType
            else []
        ),
    ]
    body = [
        "",
        *([f"cd {shlex.quote(job.cwd)} || exit 1"] if job.cwd else []),
        'aegis="$SLURM_SUBMIT_DIR/.aegis/slurm-$SLURM_JOB_ID"',
        'rm -f "$aegis/exit" "$aegis/job.json"  # an earlier start says nothing of this one',
        '(umask 077; mkdir -p "$aegis" && cat > "$aegis/job.json") <<\'JOB\' || exit 1',
        job_file(job),
        "JOB",
        "trap 'touch \"$aegis/notice\"' TERM",
        "srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \\",
        f'  {agent} run --file "$aegis/job.json" &',
        "code=143",
        "while kill -0 $! 2>/dev/null; do wait $!; code=$?; done",
        "# srun tells the worst code of all tasks, also that of a node that was lost; this is the job's.",
        'exit "$(cat "$aegis/exit" 2>/dev/null || echo $code)"',
        "",
    ]
    return "\n".join([*head, *body])
