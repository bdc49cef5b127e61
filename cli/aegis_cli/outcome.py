"""What a finished job means for who waits for it: the exit code, the sentence, the report. Pure."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Sequence
from typing import Any

from aegis_proto.api import JobDetail
from aegis_proto.phases import FailedReason, LostReason, Phase
from aegis_proto.times import rfc3339

from aegis_cli import codes
from aegis_cli.errors import CliError

USER_CODE = (LostReason.ERROR, LostReason.SIGNAL, LostReason.HUNG)
"""Causes of counted failures that another machine would not help against."""
SENT = (129, 130, 137, 143)
"""Exit codes of signals that a process does not give itself (HUP, INT, KILL, TERM): somebody, or the kernel short of memory, sent them."""


def counted(detail: JobDetail) -> list[tuple[str, str]]:
    """(cause, pod) of the counted failures the master still remembers, oldest first."""
    return [(step.cause, step.podName) for step in detail.transitions if step.counted]


def exit_code(detail: JobDetail, signalled: int = 0) -> int:
    """The table of docs/decisions/0002 §12. `signalled`: the signal that came to the command that waited (0: none)."""
    job = detail.summary
    own = job.exitCode
    if job.phase == Phase.SUCCEED:
        return 0
    if job.failedReason == FailedReason.STOPPED:
        return 128 + signalled if signalled else codes.STOPPED
    if job.failedReason == FailedReason.PROGRESS:
        return codes.DO_NOT_REQUEUE
    if job.failedReason in (FailedReason.COMMAND, FailedReason.EXITED):
        return own or codes.NEGATIVE
    if job.failedReason in (FailedReason.BOOT, FailedReason.PLACING):
        return codes.REQUEUE
    if job.maxRetry == 0 and own:
        return own
    causes = [cause for cause, _ in counted(detail)] or [job.lastReason]
    if causes[-1] == LostReason.SIGNAL and own in SENT:
        return codes.REQUEUE
    return codes.DO_NOT_REQUEUE if causes[-1] in USER_CODE else codes.REQUEUE


def problem(detail: JobDetail, signalled: int = 0) -> CliError | None:
    """The error to print for a job that failed; None for Succeed."""
    job, code = detail.summary, exit_code(detail, signalled)
    if job.phase == Phase.SUCCEED:
        return None
    if job.failedReason == FailedReason.STOPPED:
        return CliError("E303", f"{job.job} was stopped", exit=code)
    if job.failedReason == FailedReason.COMMAND:
        return CliError("E111", not_found(detail), exit=code)
    if job.failedReason == FailedReason.EXITED:
        return CliError("W202", f"{job.job} ran without Aegis and ended with exit code {job.exitCode}", exit=code)
    if job.failedReason == FailedReason.PROGRESS:
        last = detail.transitions[-1].message if detail.transitions else "no new checkpoint"
        return CliError("E304", f"{job.job}: {last}", f"aegis job why {job.job}", exit=code)
    if job.failedReason in (FailedReason.BOOT, FailedReason.PLACING):
        last = detail.transitions[-1].message if detail.transitions else ""
        why = "a worker could not be started" if job.failedReason == FailedReason.BOOT else "no node could take a worker in time"
        return CliError("E302", f"{job.job}: {why}" + (f" ({last})" if last else ""), f"aegis job why {job.job}", exit=code)
    return CliError("E301", budget(detail), f"aegis job why {job.job}", exit=code)


def budget(detail: JobDetail) -> str:
    """`Failed: 4 faults, 3 allowed (2 error, 2 killed; the last: w1 ValueError ...)`. The kinds add up to the faults, or to the `last n` that the
    master still remembers."""
    faults = detail.summary.maxRetry + 1
    failures = counted(detail)[-faults:]
    kinds: dict[str, int] = {}
    for cause, _ in failures:
        kinds[cause] = kinds.get(cause, 0) + 1
    last = next((step.message for step in reversed(detail.transitions) if step.counted and step.message), "")
    parts = ", ".join(f"{number} {cause}" for cause, number in kinds.items())
    if failures and len(failures) < faults:
        parts = f"of the last {len(failures)}: {parts}"
    text = f"Failed: {faults} fault{'s' if faults != 1 else ''}, {detail.summary.maxRetry} allowed"
    inner = "; ".join(part for part in (parts, f"the last: {last}" if last else "") if part)
    return f"{text} ({inner})" if inner else text


def not_found(detail: JobDetail) -> str:
    """E111 with the worker, its node and the nearest command there is."""
    worker = next((w for w in detail.workers if w.exitCode in (126, 127)), detail.workers[0] if detail.workers else None)
    where = f"{worker.pod} on {worker.node}: " if worker else ""
    code = (worker.exitCode if worker else None) or detail.summary.exitCode or 127
    word = command_word(detail.command)
    what = "found, but cannot be executed" if code == 126 else "not found in PATH"
    near = nearest_command(word)
    hint = f" Did you mean {near}?" if near else ""
    return f'{where}"{word}" {what} (exit {code}). Not counted, not retried.{hint}'


def command_word(command: Sequence[str]) -> str:
    """The program that was to be started, also out of `sh -c "..."`."""
    if len(command) == 3 and command[0].rsplit("/", 1)[-1] in ("sh", "bash") and command[1].endswith("c"):
        words = command[2].split()
        return words[0] if words else ""
    return command[0] if command else ""


def nearest_command(word: str, path: str | None = None) -> str:
    """A program of the PATH whose name is close to `word`; "" when none is, or when it exists here."""
    if not word or "/" in word or shutil.which(word, path=path):
        return ""
    names: set[str] = set()
    for folder in (os.environ.get("PATH", "") if path is None else path).split(os.pathsep):
        try:
            names.update(entry.name for entry in os.scandir(folder or "."))
        except OSError:
            continue
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.75)
    best = sorted(near, key=lambda name: (sorted(name) != sorted(word), len(name)))
    return best[0] if best else ""


def report(detail: JobDetail, events: Sequence[Any] = (), signalled: int = 0) -> dict[str, Any]:
    """The RunReport: what happened, for programs."""
    job = detail.summary
    return {
        "job": job.job,
        "namespace": job.namespace,
        "result": job.phase,
        "failedReason": job.failedReason or None,
        "exitCode": exit_code(detail, signalled),
        "mode": job.mode,
        "recoverCount": job.recoverCount,
        "maxRetry": job.maxRetry,
        "incarnations": job.incarnation + 1,
        "retries": detail.retries,
        "step": job.step if job.step >= 0 else None,
        "phases": [
            {
                "time": rfc3339(step.timeStamp),
                "from": step.phaseFrom.value,
                "phase": step.phaseTo.value,
                "incarnation": step.incarnation,
                "retries": step.retries,
                "cause": step.cause,
                "worker": step.podName or None,
                "node": step.nodeName or None,
                "message": step.message,
                "counted": step.counted,
            }
            for step in detail.transitions
        ],
        "errorNodes": [
            {
                "node": node.name,
                "reason": node.reason,
                "worker": node.podName or None,
                "time": rfc3339(node.timeStamp),
                "until": rfc3339(node.until) if node.until else None,
                "noticed": node.noted,
            }
            for node in detail.errorNodes
        ],
        "ledgerSeconds": {state: spent / 1000 for state, spent in detail.ledger.items()},
        "events": [event.eventId for event in events],
    }
