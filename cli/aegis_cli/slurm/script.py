"""The batch script of a job: `aegis job script --platform slurm`. Pure: a specification in, text out."""

from __future__ import annotations

import math
import shlex

from aegis_proto.state import JobSpec

NOTICE = 60.0
"""Seconds before the time limit at which the notice comes where the job's own grace is shorter: Slurm looks once in half a minute."""


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
        *([f"#SBATCH --exclude={','.join(job.exclude)}"] if job.exclude else []),
    ]
    flags = [f"--workers {job.workers}", *([f"--spares {job.spares}"] if job.spares else []), f"--max-retry {job.maxRetry}"]
    flags += [f"--nproc-per-node {job.nprocPerNode}"] if job.nprocPerNode > 1 else []
    flags += [f"--checkpoint-dir {shlex.quote(job.checkpointDir)}"] if job.checkpointDir else []
    flags += ["--warm"] if job.warm else []
    flags += [f"--env {shlex.quote(f'{key}={value}')}" for key, value in sorted(job.env.items())]
    body = [
        "",
        *([f"cd {shlex.quote(job.cwd)} || exit 1"] if job.cwd else []),
        'aegis="$SLURM_SUBMIT_DIR/.aegis/slurm-$SLURM_JOB_ID"',
        "trap 'touch \"$aegis/notice\"' TERM",
        "srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 \\",
        f"  {agent} run {' '.join(flags)} -- {shlex.join(job.command)} &",
        "code=143",
        "while kill -0 $! 2>/dev/null; do wait $!; code=$?; done",
        "# srun tells the worst code of all tasks, also that of a node that was lost; this is the job's.",
        'exit "$(cat "$aegis/exit" 2>/dev/null || echo $code)"',
        "",
    ]
    return "\n".join([*head, *body])
