"""Is this a login node of Slurm? A stack or a training started there would run on a machine shared by everybody (E114)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from aegis_cli.errors import CliError


def is_login_node(environ: Mapping[str, str], slurm: bool) -> bool:
    """Slurm is here, no allocation is active, and nobody said that the machine is theirs."""
    return slurm and "SLURM_JOB_ID" not in environ and environ.get("AEGIS_ALLOW_LOGIN_NODE", "") != "1"


def slurm_here() -> bool:
    return shutil.which("scontrol") is not None


def refuse_login_node() -> None:
    """E114, before anything is started on a login node."""
    if is_login_node(os.environ, slurm_here()):
        raise CliError(
            "E114",
            "this is a Slurm login node and no allocation is active: start by sbatch, or by salloc and srun",
            hint="AEGIS_ALLOW_LOGIN_NODE=1 if this machine is yours",
        )
