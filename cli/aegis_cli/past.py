"""The last runs of stacks of this machine, kept when they ended, so that they can still be explained when their stack has gone.

Owns `$XDG_STATE_HOME/aegis/runs` (default ~/.local/state): one file per run (0600 in a 0700 folder), the newest `KEPT`. A file that cannot be read is
passed over; one that cannot be written costs the record, never the run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec
from aegis_proto import api, api_nodes
from aegis_proto.ids import is_id
from aegis_proto.messages import JobEvent, Verdict

from aegis_cli import times
from aegis_cli.client import Client, target_of
from aegis_cli.context import resolve
from aegis_cli.errors import CliError
from aegis_cli.options import Env

KEPT = 20
EVENTS_KEPT = 2000


class Run(msgspec.Struct, frozen=True):
    """What is kept of one run: the last answer of the master, and its events, oldest first."""

    endedAt: int  # ms
    detail: api.JobDetail
    events: tuple[JobEvent, ...]
    v: int = 1
    verdicts: tuple[Verdict, ...] = ()


def folder(environ: Mapping[str, str] | None = None) -> Path:
    env = os.environ if environ is None else environ
    return Path(env.get("XDG_STATE_HOME") or Path(env.get("HOME", "~")).expanduser() / ".local" / "state") / "aegis" / "runs"


def keep(run: Run) -> bool:
    """Write a run, whole or not at all, and forget those beyond the newest `KEPT`. False when it cannot be written."""
    job, target = run.detail.summary.job, folder()
    if not is_id(job):
        return False
    run = msgspec.structs.replace(run, detail=msgspec.structs.replace(run.detail, moreWorkers=False), events=run.events[-EVENTS_KEPT:])
    try:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=target, prefix=".run.")  # 0600
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(run))
        os.replace(temporary, target / f"{job}.json")
        for old in sorted(target.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def runs() -> list[Run]:
    """Every run that is kept and can be read, newest first."""
    found = []
    for path in folder().glob("*.json"):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Run))
        except (OSError, msgspec.DecodeError):
            continue
    return sorted(found, key=lambda run: -run.endedAt)


def find(name: str) -> Run | None:
    """A run by its id, or the newest of its name."""
    every = runs()
    return next((run for run in every if run.detail.summary.job == name), next((run for run in every if run.detail.summary.name == name), None))


def origin(run: Run) -> str:
    """Where an answer comes from, when no master gave it."""
    return f"{run.detail.summary.job} ended {times.moment(run.endedAt / 1000)}, and its stack with it: told from {folder()}"


class Past:
    """Answers as `Client` does, from what is kept: on a machine on which no stack runs."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note

    async def __aenter__(self) -> Past:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    async def job(self, name: str, workers: bool = True) -> api.JobDetail:
        run = find(name)
        if run is None:
            raise CliError("E104", f'no stack runs here, and no run "{name}" is kept in {folder()}', hint="aegis job ls; aegis up starts a stack")
        self.note(origin(run))
        return run.detail

    async def jobs(self, request: api.JobsRequest) -> list[api.JobSummary]:
        self.note(f"no stack runs here: the last runs of this machine, from {folder()}")
        every = [run.detail.summary for run in runs()]
        return [job for job in every if request.phase in ("", job.phase) and request.user in ("", job.user)]

    async def events(self, job: str, after: int = -1) -> api.Events:
        run = find(job)
        every = run.events if run is not None else ()
        return api.Events(tuple(api.StoredEvent(i, event) for i, event in enumerate(every, 1) if i > after), len(every))

    async def pending(self, job: str) -> api_nodes.JobPending | None:
        return None

    async def verdicts(self, job: str) -> tuple[Verdict, ...]:
        run = find(job)
        return run.verdicts if run is not None else ()


class Lasting(Client):
    """The client of the stack of this machine; a job that this stack does not know may be one of the last runs before it."""

    def __init__(self, *words: object, **more: object) -> None:
        super().__init__(*words, **more)  # type: ignore[arg-type]
        self.note: Callable[[str], None] = lambda _: None
        self._kept: set[str] = set()

    async def job(self, name: str, workers: bool = True) -> api.JobDetail:
        try:
            return await super().job(name, workers)
        except CliError as error:
            run = find(name) if error.code == "E104" else None
            if run is None:
                raise
        self.note(origin(run))
        self._kept.add(run.detail.summary.job)
        return run.detail

    async def events(self, job: str, after: int = -1) -> api.Events:
        return await (Past(self.note).events(job, after) if job in self._kept else super().events(job, after))

    async def pending(self, job: str) -> api_nodes.JobPending | None:
        return None if job in self._kept else await super().pending(job)

    async def verdicts(self, job: str) -> tuple[Verdict, ...]:
        return await (Past(self.note).verdicts(job) if job in self._kept else super().verdicts(job))


def reading(env: Env) -> Client | Past:
    """Whom `job ls|show|why|events` ask: the bus that is meant; without any, what is kept of the last runs. E101 when there is neither."""
    target = resolve(env.context)
    if target is None and runs():
        return Past(env.out.note)
    target = target or target_of(env)
    if target.stack is None:
        return Client.of(env, target)
    client = Lasting.of(env, target)
    client.note = env.out.note
    return client


def of(detail: api.JobDetail, events: Sequence[JobEvent], now: float, verdicts: Sequence[Verdict] = ()) -> Run:
    """A run as it ended at `now` (seconds since 1970)."""
    return Run(round(now * 1000), detail, tuple(events), verdicts=tuple(verdicts))
