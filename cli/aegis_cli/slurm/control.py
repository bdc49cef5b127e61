"""Slurm's own commands, called with a deadline. Everything that can fail says so as `SlurmRefused`; nothing here decides."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Sequence

from aegis_parsers.slurm import record
from aegis_proto import hostlist

from aegis_cli.slurm import records

PATIENCE = 20.0
"""Seconds a command of Slurm may take: slurmctld may be busy or just taking over."""


class SlurmRefused(Exception):
    """A command of Slurm failed; the message is its own."""


def _goes_on() -> None:  # pragma: no cover - runs in the child
    """Slurm signals every process of a step, also the one that is just talking to it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def run(*words: str, patience: float = PATIENCE) -> str:
    """stdout of a command. SlurmRefused with what it wrote."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
            stdin=subprocess.DEVNULL,
            preexec_fn=_goes_on,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmRefused(f"{' '.join(words[:3])}: {error}") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[:300] or f"exit {done.returncode}"
        raise SlurmRefused(f"{' '.join(words[:3])}: {said}")
    return done.stdout


def here() -> bool:
    return shutil.which("scontrol") is not None


def hostnames(nodelist: str) -> tuple[str, ...]:
    """`node[1-3,7]` as names, in its order."""
    return tuple(run("scontrol", "show", "hostnames", nodelist).split())


def job(number: str) -> dict[str, str]:
    return record(run("scontrol", "-o", "show", "job", number))


def node(name: str) -> dict[str, str]:
    return record(run("scontrol", "-o", "show", "node", name))


def config() -> dict[str, str]:
    return records.settings(run("scontrol", "show", "config"))


def requeue(number: str) -> None:
    run("scontrol", "requeue", number)


def update_job(number: str, **values: str) -> None:
    """`update_job("7", StartTime="now+15", ExcNodeList="n1,n2")`. Needs a pending job for both."""
    run("scontrol", "update", f"JobId={number}", *(f"{key}={value}" for key, value in values.items()))


def drain(name: str, reason: str) -> None:
    """Needs the rights of an operator of Slurm."""
    run("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}")


def together(*lists: str | Sequence[str]) -> str:
    """Several lists of nodes as one, for ExcNodeList: Slurm takes lists separated by commas. SlurmRefused for one that is none."""
    try:
        parts = [part for item in lists for part in (hostlist.split(item) if isinstance(item, str) else item)]
    except hostlist.HostlistError as error:
        raise SlurmRefused(str(error)) from None
    return ",".join(dict.fromkeys(parts))
