"""A trace of what this master stepped and stored, for validation against the model: one JSON object a line. Off unless a file is named.

Writes the file (AEGIS_MASTER_TRACE; `%p` = process id). Three kinds of lines, in the order in which they happened here:
  step     one event: `before` and `after` are what the model knows (`variables`), `event` its class, `args` its fields, `at` ms since 1970
  commit   what was stepped since the line before of this job is stored: `seq` of the head, its cursor, owner and term
  void     what was stepped and not stored never happened: the state is the one of the last commit (read anew)
`spec/traces.py` reads it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import msgspec
from aegis_bus.jobstore import Loaded
from aegis_proto.state import JobState

from aegis_master.events import Event

MOST = 64
"""Workers of a job up to which its pods are written."""
HEAD = (
    *("workerNum", "maxRetry", "phase", "mode", "recoverCount", "failures", "shouldQuit", "failedReason", "started", "booted", "era", "seqNum"),
    *("roundSeqNum", "runSeqNum", "stopSeqNum", "stopOrderAt", "incarnation", "countedIncarnation", "countedPod", "countedEvidence", "countMoved"),
    *("massQuitRounds", "portRetries", "suspended", "adopting", "adoptIncarnation", "adoptMax"),
)
"""Fields of the head that are written, under their names."""
POD = (
    *("attempt", "boot", "oldBoot", "innerPhase", "placed", "finished", "errored", "failed", "retries", "uncounted", "reason", "toQuit", "mark"),
    *("suspect", "gone", "stopped", "pairs"),
)
"""Fields of the pods that are written: under each name a list, one entry per place."""


def variables(state: JobState) -> dict[str, Any]:
    """What the model, and whoever follows the job, must know of a state. `order`: the phase of the order; `deadline`: its kind."""
    head = state.head
    found: dict[str, Any] = {name: msgspec.to_builtins(getattr(head, name)) for name in HEAD}
    found["maxUncounted"] = state.spec.maxUncounted
    found["actions"] = state.spec.actions
    found["order"] = head.order.phase.value
    found["deadline"] = head.deadline.kind if head.deadline is not None else "none"
    if head.workerNum <= MOST:
        pods = state.pods()
        found |= {name: [msgspec.to_builtins(getattr(pod, name)) for pod in pods] for name in POD}
    return found


class Trace:
    """`write` each step, `committed` each commit, `void` when what was stepped is forgotten."""

    def __init__(self, path: str = "") -> None:
        self._file: IO[bytes] | None = None
        if path:
            target = Path(path.replace("%p", str(os.getpid())))
            target.parent.mkdir(parents=True, exist_ok=True)
            self._file = target.open("ab", buffering=0)

    def __bool__(self) -> bool:
        return self._file is not None

    def write(self, before: JobState, event: Event, after: JobState, at: int) -> None:
        self._line(
            kind="step",
            job=after.head.job,
            at=at,
            event=type(event).__name__,
            args=msgspec.to_builtins(event),
            before=variables(before),
            after=variables(after),
        )

    def committed(self, loaded: Loaded) -> None:
        head = loaded.state.head
        self._line(kind="commit", job=head.job, seq=loaded.seq, cursor=head.cursor, owner=head.owner.replica, term=head.owner.term)

    def void(self, loaded: Loaded) -> None:
        head = loaded.state.head
        self._line(kind="void", job=head.job, seq=loaded.seq, owner=head.owner.replica, term=head.owner.term, state=variables(loaded.state))

    def _line(self, **line: Any) -> None:
        if self._file is not None:
            self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
