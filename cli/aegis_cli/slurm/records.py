"""What `scontrol show` prints, as values; and what a SIGTERM means by it. Pure."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass

from aegis_parsers.slurm import NOTHING

LIMIT_IS_NEAR = 65535.0
"""Seconds: the earliest that `--signal` of sbatch can come before the time limit."""
DOWN = frozenset({"DOWN", "FAIL", "FAILING", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN"})


def settings(text: str) -> dict[str, str]:
    """`Key = Value` lines of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): "" if value.strip() in NOTHING else value.strip() for key, _, value in pairs}


def seconds_until(moment: str, now: datetime.datetime) -> float | None:
    """From `now` (local time, as Slurm writes it) to `2026-11-30T07:00:57`; None when it is no moment."""
    try:
        return (datetime.datetime.fromisoformat(moment) - now).total_seconds()
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Notice:
    """Why Slurm asks this step to end. `grace`: seconds until it kills. `again`: the job is to run again, nothing is counted."""

    why: str
    grace: float
    again: bool
    requeued: bool = False
    """Slurm requeues it without being asked."""


MARGIN = 5.0
"""Seconds before Slurm kills that everything must have ended."""


def notice(job: Mapping[str, str], restart: int, kill_wait: float, now: datetime.datetime) -> Notice:
    """What it means that start number `restart` is asked to end, by `record` of the job as it is then. `kill_wait`: seconds of Slurm's KillWait."""
    state = job.get("JobState", "").split(" ")[0]
    short = max(kill_wait - MARGIN, 1.0)
    if int(job.get("Restarts") or 0) > restart or state == "PENDING":
        return Notice("requeued by Slurm", short, False, True)
    if state != "RUNNING":  # COMPLETING does not say what comes after it: no requeue, or it would stand in Restarts
        return Notice("ended by Slurm", short, False)
    left = seconds_until(job.get("EndTime", ""), now)
    preempted = bool(job.get("PreemptTime"))
    soon = left is not None and left <= LIMIT_IS_NEAR
    why = "preempted" if preempted else "time limit" if soon else "asked by a signal"
    return Notice(why, max(left - MARGIN, 1.0) if left is not None else 1e9, job.get("Requeue") == "1")


def down(node: Mapping[str, str]) -> bool:
    """Slurm no longer trusts this node."""
    return bool(set(re.split(r"[+*]", node.get("State", "").upper().replace("*", "+NOT_RESPONDING"))) & DOWN)
