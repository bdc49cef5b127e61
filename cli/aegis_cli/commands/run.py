"""`aegis run`: submit a job, show it live, end as it ends. Starts the stack of this machine when no bus is configured."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from aegis_bus.errors import BusError
from aegis_proto import api
from aegis_proto.messages import JobEvent, Verdict
from aegis_proto.phases import FailedReason, Phase
from aegis_proto.state import JobSpec

from aegis_cli import outcome, past, spec, verdicts
from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.commands.settings import configuration
from aegis_cli.context import Target, of_stack, resolve
from aegis_cli.errors import CliError
from aegis_cli.follow import Follower, surface
from aegis_cli.login import refuse_login_node
from aegis_cli.options import Env, command
from aegis_cli.output import API_VERSION
from aegis_cli.signals import Signals, name_of
from aegis_cli.stack import client as stacks
from aegis_cli.stack import guard, place
from aegis_cli.stack.output import WorkerOutput

Command = Annotated[list[str] | None, typer.Argument(metavar="[--] CMD...", help="The command line of one worker, as it is.", show_default=False)]
File = Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Job file (AegisJob, YAML or JSON; - = stdin).", show_default=False)]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the job (from the script).", show_default=False)]
Workers = Annotated[int | None, typer.Option("--workers", "-N", metavar="N", help="Workers, one per node (1).", show_default=False)]
Nproc = Annotated[str | None, typer.Option("--nproc-per-node", metavar="N|auto", help="Processes per worker; auto: one per GPU.", show_default=False)]
MaxRetry = Annotated[int | None, typer.Option("--max-retry", metavar="N", help="Faults the job may survive (3).", show_default=False)]
Spares = Annotated[int | None, typer.Option("--spares", metavar="N", help="Nodes kept free for replacement (0).", show_default=False)]
Environment = Annotated[list[str] | None, typer.Option("--env", metavar="K=V", help="For the command; K alone copies yours.", show_default=False)]
CheckpointDir = Annotated[str | None, typer.Option("--checkpoint-dir", metavar="DIR", help="Where the training saves.", show_default=False)]
Grace = Annotated[str | None, typer.Option("--grace", metavar="TIME", help="Time to end after a stop (15s).", show_default=False)]
Warm = Annotated[
    bool | None, typer.Option("--warm", help="Keep an interpreter with the packages of the last run imported: fast restarts.", show_default=False)
]
Report = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write the RunReport (JSON) there.", show_default=False)]


@dataclass(frozen=True)
class Start:
    """What `run` decided before anything happens."""

    spec: JobSpec
    target: Target | None
    """None: the stack of this machine."""
    base: Path
    """Folder of that stack."""

    @property
    def local(self) -> bool:
        return self.target is None


def prepare(env: Env, wishes: spec.Wishes) -> Start:
    """Target and specification; refuses what cannot work before a stack is started for it."""
    settings = configuration(env)
    target = resolve(env.context)
    if target is not None and target.stack is not None:
        target = None
    base = place.base_dir()
    if target is None:
        refuse_login_node()
    namespace = env.namespace or (target.namespace if target else "") or ("default" if wishes.file is None else "")
    return Start(spec.build(wishes, namespace, dict(os.environ) if target is None else None, spec.defaults(settings)), target, base)


def plan(start: Start) -> str:
    """What --dry-run prints: placement, environment, budget, deadlines."""
    job = start.spec
    nodes = job.workers + job.spares
    if not start.local:
        where = f"bus {', '.join(start.target.servers if start.target else ())} (context {start.target.name if start.target else ''})"
    elif nodes == 1:
        where = f"this machine, stack in {start.base}"
    else:
        where = f"this machine, {nodes} virtual nodes, stack in {start.base}"
    passed = sorted(job.env)
    quiet = f"{job.hangSilence:g} s" if job.hangSilence else "five usual pauses (at least 60 s)"
    return "\n".join(
        [
            f"job         {job.name} in namespace {job.namespace}",
            f"command     {' '.join(job.command)}",
            f"directory   {job.cwd}",
            f"placement   {job.workers} worker{'s' if job.workers > 1 else ''} x {job.nprocPerNode} process{'es' if job.nprocPerNode > 1 else ''}, "
            f"{job.spares} spare; {where}",
            f"environment {len(passed)} variables" + (" (yours, without other launchers' ranks)" if start.local else f": {' '.join(passed) or '-'}"),
            f"budget      {job.maxRetry} faults; the next one ends the job",
            f"restarts    {'warm: an interpreter waits with the packages imported' if job.warm else 'cold'}",
            f"deadlines   placed within {job.placingTimeout:g} s; a check round {job.roundTimeout:g} s; stop grace {job.stopGrace:g} s",
            f"hang        marked after {quiet} without progress, stopped after {job.hangTimeout:g} s; "
            f"the first step within {job.firstStepTimeout:g} s",
            f"checkpoint  {job.checkpointDir or 'not named: a restart begins where the training itself resumes, else at step 0 (W201)'}",
        ]
    )


async def submit(client: Client, job: JobSpec, suspended: bool = False) -> api.SubmitReply:
    """Submit with a fresh uid: a repeat on the way is the same job."""
    return await client.act("submit", api.Submit(job, uuid.uuid4().hex, suspended), api.SubmitReply, job.namespace)


def register(app: typer.Typer) -> None:
    """Add `run`."""

    @command(app, "run", acting=True, pass_through=True)
    def run(
        env: Env,
        *,
        cmd: Command = None,
        file: File = None,
        name: Name = None,
        workers: Workers = None,
        nproc_per_node: Nproc = None,
        max_retry: MaxRetry = None,
        spares: Spares = None,
        environment: Environment = None,
        checkpoint_dir: CheckpointDir = None,
        grace: Grace = None,
        warm: Warm = None,
        report: Report = None,
        detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the job's id and leave it running.")] = False,
        keep_stack: Annotated[bool, typer.Option("--keep-stack", help="Leave the stack of this machine up afterwards.")] = False,
    ) -> int:
        """Run a training under Aegis and show it; ends with the training's own exit code (75, 76: budget spent)."""
        wishes = spec.Wishes(
            tuple(cmd or ()), file, name, workers, nproc_per_node, max_retry, spares, tuple(environment or ()), checkpoint_dir, grace, warm
        )
        start = prepare(env, wishes)
        if report is not None:
            check_report(report)
        if env.dry_run:
            env.out.document("Job", start.spec, plan(start), start.spec.name)
            return 0
        if not start.local:
            return run_async(_run(env, start, None, detach, report))
        need = start.spec.workers + start.spec.spares
        stack = stacks.join(start.base, nodes=need, pin=detach or keep_stack, say=env.out.note)
        try:
            if stack.started:
                env.out.note(
                    f"stack up in {stack.seconds:.1f} s, state in {stack.base}" + ("" if keep_stack or detach else "; it ends with its last user")
                )
            if need > 1:
                env.out.note(f"{need} workers: {' '.join(stack.nodes[:need])} are virtual nodes of this machine")
            return run_async(_run(env, start, stack, detach, report))
        finally:
            stack.leave()


async def _run(env: Env, start: Start, stack: stacks.Stack | None, detach: bool, report: Path | None) -> int:
    target = start.target or (of_stack(stack.base, stack.info) if stack else None)
    async with Client.of(env, target) as client:
        if detach:
            reply = await submit(client, start.spec)
            env.out.document("Job", reply, reply.job, reply.job)
            env.out.note(f"aegis job attach {reply.job}   aegis job why {reply.job}   aegis job stop {reply.job}")
            if stack is not None:
                env.out.note("the stack of this machine stays up: aegis down ends it")
            return 0
        with Signals() as signals:
            detail, events = await _watch(env, client, start, stack, signals)
        if report is not None:
            write_report(report, outcome.report(detail, events, signals.first))
        found = await verdicts.of_the_end(client, detail)
        if stack is not None:
            await keep_record(client, detail, found)
        note_checkpoint(env, start.spec, detail)
        error = outcome.problem(detail, signals.first)
        if error is not None:
            env.out.error(error)
            if found and detail.summary.failedReason == FailedReason.BUDGET:
                env.out.note(verdicts.sentence(found))
        if env.out.machine:
            env.out.document("RunReport", outcome.report(detail, events, signals.first))
        return outcome.exit_code(detail, signals.first)


async def _watch(env: Env, client: Client, start: Start, stack: stacks.Stack | None, signals: Signals) -> tuple[api.JobDetail, tuple[JobEvent, ...]]:
    """Submit, and show until the job has ended and nothing of it runs here; a signal stops it with its grace, a second one kills."""
    reply = await submit(client, start.spec)
    shown = surface(env.out)
    output = WorkerOutput(stack.base, reply.job) if stack else None
    if output is None:
        env.out.note("the workers' output lies at their nodes (STATE/slots/*/agent.log of aegis-agent node)")
    keys = "Ctrl-C stop · twice = kill"
    follower = Follower(client, reply.job, shown, output, signals=signals, verbose=env.out.verbose > 0, keys=keys)

    def kill() -> str:
        """What runs on this machine, now: a job that is ending takes no second stop, and its agents would wait out the grace of the first."""
        if stack is None:
            return f"{reply.job} is ending; its nodes keep the grace of the first stop"
        guard.kill_workers(reply.uid)
        return f"killing {reply.job}"

    async def stop(number: int, asked: int) -> str:
        detail = await client.job(reply.job, workers=False)
        grace = start.spec.stopGrace if asked == 1 else 0.0
        if detail.summary.phase not in ("Succeed", "Failed"):
            try:
                await client.action("stop", detail.summary, name_of(number), grace)
            except CliError as error:
                if error.code != "E105":  # it has ended in the meantime, by the first stop or by itself
                    raise
        return f"stopping {reply.job}, grace {grace:g} s (Ctrl-C again: kill)" if asked == 1 else kill()

    try:
        model = await follower.until(lambda m: m.terminal, stop)
        if stack is not None:
            await follower.settle(start.spec.stopGrace + 5.0, lambda: shown.note(kill()))
    except CliError:
        if stack is not None and follower.model.detail is not None:  # the stack went under it: what was known last
            past.keep(past.of(follower.model.detail, follower.model.events, time.time()))
        raise
    finally:
        shown.close()
    if model.detail is None:
        raise CliError("E108", f"nothing is known of {reply.job}")
    return model.detail, model.events


async def keep_record(client: Client, detail: api.JobDetail, found: Sequence[Verdict] = ()) -> None:
    """For `aegis job why` when the stack of this run has gone."""
    try:
        detail = await client.job(detail.summary.job)
        events = [item.event for item in (await client.events(detail.summary.job)).items]
    except (BusError, CliError):
        events = []
    past.keep(past.of(detail, events, time.time(), found))


def check_report(path: Path) -> None:
    """Refuse a --report that cannot be written before anything runs: afterwards it is too late to name another."""
    if path.is_dir():
        raise CliError("E107", f"--report {path}: is a folder, name a file in it")
    if not path.absolute().parent.is_dir():
        raise CliError("E107", f"--report {path}: there is no folder {path.absolute().parent}")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise CliError("E107", f"--report {path}: may not be written")


def write_report(path: Path, body: dict[str, object]) -> None:
    """A RunReport file."""
    try:
        path.write_text(json.dumps({"apiVersion": API_VERSION, "kind": "RunReport", **body}, ensure_ascii=False, indent=2) + "\n")
    except OSError as error:
        print(f"aegis: report not written to {path}: {error.strerror}", file=sys.stderr)


def note_checkpoint(env: Env, job: JobSpec, detail: api.JobDetail) -> None:
    """W201, as far as it is known: restarts without a known folder, or a named one in which nothing was written since the job began."""
    if not job.checkpointDir:
        if detail.summary.recoverCount:
            env.out.note(
                "W201 no checkpoint folder is known (--checkpoint-dir): each restart began where the training itself resumes, else at step 0"
            )
        return
    if detail.summary.phase == Phase.SUCCEED:
        return
    folder, since = Path(job.cwd) / job.checkpointDir, detail.summary.createdAt / 1000
    if folder.is_dir() and any(path.stat().st_mtime >= since for path in folder.rglob("*") if path.is_file()):
        return
    env.out.note(f"W201 no checkpoint was written in {folder}: another start begins at step 0")
