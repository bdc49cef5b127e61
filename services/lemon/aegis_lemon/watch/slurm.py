"""A Slurm cluster beside the bus: its accounting is history too, a node that is taken out is drained there with the reason, and risk is weight.

Runs `sacct`, `sacctmgr`, `sinfo`, `scontrol`, all in UTC. Owns `<folder>/` (documented format, docs/history.md). Only a drain of its own, known by
its reason, is ever taken back; what a node weighed before it had a risk is kept on the node (`aegis_parsers.slurm`).
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Mapping, Set
from pathlib import Path

from aegis_parsers.slurm import changes, node_records
from aegis_proto.lemon import DOUBTFUL

from aegis_lemon.history import HistoryError
from aegis_lemon.history.slurm import convert

log = logging.getLogger(__name__)

MARK = "aegis lemon"
"""How the reason of a drain begins."""
TIMEOUT = 120.0
FILES: dict[str, tuple[str, ...]] = {
    "jobs": ("sacct", "-aPXD", "-S", "{since}", "-o", "jobid,jobname,user,state,nodelist,start,end"),
    "events": ("sacctmgr", "-P", "list", "event", "start={since}", "format=nodename,timestart,timeend,state,reason"),
    "reasons": ("sinfo", "-R", "-o", "%E|%u|%H|%N"),
    "excluded": ("scontrol", "show", "job"),
}
"""What `convert` reads, and who prints it."""


class SlurmSide:
    """`gather` and `apply` block: they run in a thread. Neither raises for a Slurm that is away: said, and tried again."""

    def __init__(self, folder: Path, window: float) -> None:
        self.folder, self._window = folder, window

    def gather(self, now: float) -> bool:
        """Write the history anew; whether that went well."""
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now - self._window))
        raw = self.folder / "raw"
        raw.mkdir(parents=True, exist_ok=True, mode=0o700)
        paths = {}
        for name, words in FILES.items():
            text = run(*(word.format(since=since) for word in words))
            if text is None:
                return False
            paths[name] = raw / f"{name}.txt"
            paths[name].write_text(text, encoding="utf-8")
        try:
            found = convert(paths["jobs"], paths["events"], paths["reasons"], paths["excluded"])
        except HistoryError as error:
            log.error("Slurm's accounting cannot be read: %s", error)
            return False
        # Times out of service that are this service's own doing say nothing new about a node.
        found.events = [event for event in found.events if not str(event.get("value", "")).startswith(MARK)]
        for problem in found.problems[:5]:
            log.warning("%s; left out", problem)
        found.write(self.folder)
        return True

    @property
    def history(self) -> tuple[Path, ...]:
        """What can be read, of the last time it could."""
        return (self.folder,) if any((self.folder / f"{table}.csv").exists() for table in ("jobs", "events")) else ()

    def apply(self, out: Mapping[str, str], back: Set[str]) -> None:
        """Make Slurm's nodes equal to that: `out` are those to be drained, with why; of our drains those in `back` are lifted, no others."""
        text = run("sinfo", "-h", "-N", "-o", "%N|%T|%E")
        seen: dict[str, tuple[str, str]] = {}
        for line in (text or "").splitlines():
            name, state, reason = [*line.split("|", 2), "", ""][:3]
            seen[name.strip()] = (state.strip(), reason.strip())
        for node, (state, reason) in seen.items():
            drained = "drain" in state.lower()
            if node in out and not drained:
                log.info("Slurm: %s is drained: %s", node, out[node])
                run("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={MARK}: {out[node]}"[:200])
            elif node in back and drained and reason.startswith(MARK):
                log.info("Slurm: %s is resumed", node)
                run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def weigh(self, risks: Mapping[str, float]) -> None:
        """Weight and feature by risk (0 to 1): what is at risk is given last. Who has none any more weighs what it did before."""
        nodes = node_records(run("scontrol", "-o", "show", "node") or "")
        for change in changes([(node, risk, risk >= DOUBTFUL) for node, risk in risks.items()], nodes):
            log.info("Slurm: %s weighs %d, %s", change.node, change.weight, change.why)
            run(*change.words)


def run(*words: str) -> str | None:
    """stdout; None (and a line in the log) when it could not be run or said no."""
    try:
        done = subprocess.run(
            words, env={**os.environ, "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s: %s", words[0], error)
        return None
    if done.returncode:
        log.warning("%s ended with %d: %s", words[0], done.returncode, done.stderr.strip()[:300])
        return None
    return done.stdout
