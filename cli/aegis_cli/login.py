"""Is this a login node of Slurm? A stack or a training started there would run on a machine shared by everybody (E114)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from aegis_cli.errors import CliError

PATIENCE = 5.0
"""Seconds that `scontrol ping` may take; a cluster that does not answer so long is one."""


def is_login_node(environ: Mapping[str, str], slurm: bool) -> bool:
    """Slurm is here, no allocation is active, and nobody said that the machine is theirs."""
    return slurm and "SLURM_JOB_ID" not in environ and environ.get("AEGIS_ALLOW_LOGIN_NODE", "") != "1"


def slurm_here() -> bool:
    """Slurm's commands are here and know a cluster, up or not: packages without any configuration make no login node."""
    if shutil.which("scontrol") is None:
        return False
    try:
        said = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return said.returncode == 0 or "Slurmctld" in said.stdout


def refuse_login_node() -> None:
    """E114, before anything is started on a login node."""
    if is_login_node(os.environ, slurm_here()):
        raise CliError(
            "E114",
            "this is a Slurm login node and no allocation is active: start by sbatch, or by salloc and srun",
            hint="AEGIS_ALLOW_LOGIN_NODE=1 if this machine is yours",
        )
