"""Slurm's accounting into the documented format: `sacct -P`, `sacctmgr -P list event`, `sinfo -R` and `scontrol show job`.

Columns are found by name, whatever their order. Slurm prints local times without a zone; they are kept as they are, alike in all files.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from aegis_proto.hostlist import HostlistError, expand

from aegis_lemon.csvrows import header, rows

from .rows import Imported
from .schema import EARLIEST, LATEST, HistoryError

NEVER = ("", "Unknown", "None", "None assigned", "N/A")
NOT_RUN = ("pending",)
STATES: dict[str, str] = {
    **{
        state: state
        for state in (
            *(
                "completed",
                "running",
                "failed",
                "node_fail",
                "boot_fail",
                "cancelled",
                "timeout",
                "deadline",
                "out_of_memory",
                "preempted",
                "revoked",
            ),
        )
    },
    **dict.fromkeys(("completing", "resizing", "signaling", "stage_out", "configuring"), "running"),
    **dict.fromkeys(("requeued", "requeue_fed", "requeue_hold", "special_exit"), "requeued"),
    **dict.fromkeys(("suspended", "stopped"), "suspended"),
    "launch_failed": "boot_fail",
}
"""Slurm's state (job_state_string, 22.05 to 25.05) -> ours."""

NODE_STATES: dict[str, str] = {
    **dict.fromkeys(("DOWN", "FAIL", "FAILING", "NOT_RESPONDING"), "outage"),
    **dict.fromkeys(("DRAIN", "DRAINED", "DRAINING"), "out"),
}
"""State of `sacctmgr list event` -> kind; any other (UNK, MAINT, REBOOT, POWERED_DOWN, ...) says nothing about the node."""
PLANNED = re.compile(r"maint|planned|reboot|upgrade|update|cold-start|power ?sav|scontrol|test", re.IGNORECASE)
"""Reasons of a person's doing: the node was out, it did not fail."""
XID = re.compile(r"\bxid[ :=#]*(\d{1,3})\b", re.IGNORECASE)


def moment(text: str) -> float | None:
    """`2026-11-29T18:28:49` -> seconds, as if UTC; None for Unknown; ValueError for anything else."""
    if text.strip() in NEVER:
        return None
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f'time "{text}": expected the form 2026-11-29T18:28:49') from None
    seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if not EARLIEST <= seconds <= LATEST:
        raise ValueError(f'time "{text}": expected 1970 to 2200')
    return seconds


def backwards(start: float | None, end: float | None) -> str:
    """What is wrong with a row that ends before it starts; "" when it does not."""
    return f"the clock went backwards: ends {start - end:.0f} s before it starts" if start is not None and end is not None and end < start else ""


def table(path: Path, required: tuple[str, ...], made_by: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of a file with `|` between columns and a header; rows whose length differs have the key "" with what is wrong."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        read = rows(file, delimiter="|", quoting=csv.QUOTE_NONE)
        columns = header(read)
        missing = [name for name in required if name not in columns]
        if missing:
            raise HistoryError(f"{path.name}: no column {', '.join(missing)} in the header {'|'.join(columns)[:120]}; make it with {made_by}")
        for line, row in read:
            if isinstance(row, str):
                yield line, {"": row}
                continue
            wrong = f"{len(row)} cells, the header has {len(columns)}" if len(row) != len(columns) and row[len(columns) :] != [""] else ""
            yield line, {**dict(zip(columns, row, strict=False)), "": wrong}


def read_sacct(path: Path, found: Imported) -> None:
    """Jobs; every row of `sacct -D` is a run of its own. Steps and jobs that never started are counted and left out."""
    steps = unstarted = 0
    command = "sacct -aPXD -o jobid,jobname,user,state,nodelist,start,end"
    for line, row in table(path, ("JobID", "State", "NodeList", "Start", "End"), command):
        if row[""]:
            found.problem(path.name, line, row[""])
            continue
        if "." in row["JobID"]:
            steps += 1
            continue
        state = row["State"].split(" ")[0].lower().rstrip("+")
        try:
            start, end = moment(row["Start"]), moment(row["End"])
            nodes = [] if row["NodeList"].strip() in NEVER else expand(row["NodeList"])
        except (ValueError, HostlistError) as error:
            found.problem(path.name, line, str(error))
            continue
        if start is None or not nodes or state in NOT_RUN:
            unstarted += 1
            continue
        wrong = backwards(start, end) if state in STATES else f'state "{row["State"]}" is not known'
        if wrong:
            found.problem(path.name, line, wrong)
            continue
        found.jobs.append(
            {"job": row["JobID"], "start": start, "end": end, "nodes": ";".join(nodes), "state": STATES[state], "user": row.get("User", ""),
             "family": row.get("JobName", "")}
        )  # fmt: skip
    if steps:
        found.notes.append(f"{path.name}: {steps} steps left out; their jobs are there")
    if unstarted:
        found.notes.append(f"{path.name}: {unstarted} jobs never started")


def _event(found: Imported, name: str, line: int, *, node: str, kind: str, times: tuple[str, str], reason: str) -> None:
    try:
        start, end = moment(times[0]), moment(times[1])
    except ValueError as error:
        found.problem(name, line, str(error))
        return
    wrong = f"{node}: no time" if start is None else backwards(start, end)
    if wrong:
        found.problem(name, line, wrong)
        return
    if kind == "outage" and PLANNED.search(reason):
        kind = "out"
    found.events.append({"time": start, "node": node, "kind": kind, "end": end, "value": reason})
    xid = XID.search(reason)
    if xid:
        found.events.append({"time": start, "node": node, "kind": "xid", "value": xid[1]})


def read_events(path: Path, found: Imported) -> None:
    """Times out of service and failures of nodes, from `sacctmgr -P list event`."""
    other = 0
    command = "sacctmgr -P list event start=... format=nodename,timestart,timeend,state,reason"
    for line, row in table(path, ("NodeName", "TimeStart", "TimeEnd", "State", "Reason"), command):
        kind = NODE_STATES.get(row.get("State", "").split("+")[0].rstrip("*$~#%@^-!").upper(), "")
        if row[""]:
            found.problem(path.name, line, row[""])
        elif not row["NodeName"].strip() or not kind:
            other += 1
        else:
            _event(found, path.name, line, node=row["NodeName"].strip(), kind=kind, times=(row["TimeStart"], row["TimeEnd"]), reason=row["Reason"])
    if other:
        found.notes.append(f"{path.name}: {other} events of the cluster, or of states that say nothing about a node's health")


def read_reasons(path: Path, found: Imported) -> None:
    """Nodes that are out now, from `sinfo -R`."""
    command = "sinfo -R -o '%E|%u|%H|%N'"
    for line, row in table(path, ("REASON", "TIMESTAMP", "NODELIST"), command):
        if row[""]:
            found.problem(path.name, line, row[""])
            continue
        try:
            nodes = expand(row["NODELIST"])
        except HostlistError as error:
            found.problem(path.name, line, str(error))
            continue
        for node in nodes:
            kind = "outage" if row["REASON"].startswith("Not responding") else "out"
            _event(found, path.name, line, node=node, kind=kind, times=(row["TIMESTAMP"], ""), reason=row["REASON"])


def read_excluded(path: Path, found: Imported) -> None:
    """Nodes that jobs asked not to run on, from `scontrol show job`: accounting does not keep them."""
    job, submitted = "", ""
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            values = dict(re.findall(r"\b(JobId|SubmitTime|ExcNodeList)=(\S+)", line))
            job, submitted = values.get("JobId", job), values.get("SubmitTime", submitted)
            hosts = values.get("ExcNodeList", "(null)")
            if hosts != "(null)":
                try:
                    when = moment(submitted)
                    found.events += [{"time": when, "node": node, "kind": "exclude", "job": job} for node in expand(hosts) if when is not None]
                except (ValueError, HostlistError) as error:
                    found.problem(path.name, number, str(error))


def convert(jobs: Path | None = None, events: Path | None = None, reasons: Path | None = None, excluded: Path | None = None) -> Imported:
    """Whatever of Slurm's files there are."""
    found = Imported()
    for path, reader in ((jobs, read_sacct), (events, read_events), (reasons, read_reasons), (excluded, read_excluded)):
        if path is not None:
            if not path.is_file():
                raise HistoryError(f"there is no file {path}")
            reader(path, found)
    return found
