"""`aegis job submit|ls|show|events|why|attach|wait`: hand in, read, explain, watch. Acting is in `jobact`, output in `logs`."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from aegis_bus.errors import BusError
from aegis_proto import api
from aegis_proto.job import duration
from aegis_proto.messages import Verdict
from aegis_proto.phases import Phase
from aegis_proto.times import rfc3339

from aegis_cli import firstlayer, outcome, past, screen, several, spec, times, verdicts, why
from aegis_cli.client import Client, target_of
from aegis_cli.client import run as run_async
from aegis_cli.commands import convert, jobact, logs, slurm
from aegis_cli.commands import run as running
from aegis_cli.commands.jobact import JobName, JobNames
from aegis_cli.context import Target
from aegis_cli.errors import CliError
from aegis_cli.follow import ASK_EVERY, Follower, Silent, surface
from aegis_cli.options import Env, command
from aegis_cli.output import Column, table
from aegis_cli.signals import Signals
from aegis_cli.stack.output import WorkerOutput
from aegis_cli.units import age

Reader = Client | past.Past
ANSWER = 10.0
"""Seconds that `wait` waits for one answer: a question that a master took to its grave is asked again."""
LIST = [
    Column("JOB", lambda job: job.job),
    Column("PHASE", lambda job: "Suspended" if job.suspended else job.phase),
    Column("WORKERS", lambda job: f"{job.present}/{job.workers}" if job.present >= 0 else job.workers),
    Column("RESTARTS", lambda job: f"{min(job.recoverCount, job.maxRetry)}/{job.maxRetry}"),
    Column("STEP", lambda job: job.step if job.step >= 0 else ""),
    Column("ETTR", lambda job: f"{job.ettr:.2f}" if job.ettr >= 0 else ""),
    Column("LAST-REASON", lambda job: job.failedReason or job.lastReason),
    Column("AGE", lambda job: age(time.time() - job.createdAt / 1000)),
    Column("NAMESPACE", lambda job: job.namespace, wide=True),
    Column("INC", lambda job: job.incarnation, wide=True),
    Column("USER", lambda job: job.user, wide=True),
    Column("CKPT-AGE", lambda job: age(time.time() - job.checkpointAt / 1000) if job.checkpointAt else "", wide=True),
    Column("OWNER", lambda job: job.owner, wide=True),
    Column("MODE", lambda job: job.mode, wide=True),
]
WORKERS = [
    Column("W", lambda worker: worker.pod),
    Column("NODE", lambda worker: worker.node),
    Column("STATE", lambda worker: worker.mark or worker.state),
    Column("RETRIES", lambda worker: worker.retries),
    Column("ATTEMPT", lambda worker: worker.attempt),
    Column("EXIT", lambda worker: worker.exitCode),
    Column("LAST", lambda worker: worker.reason),
]


def header(detail: api.JobDetail, lang: str = "en", found: Sequence[Verdict] = ()) -> str:
    """The first lines of `job show`. `found`: verdicts, the last one is told."""
    job = detail.summary
    since = (job.phaseSince or job.createdAt) / 1000
    first = f"Job {job.job}   {job.phase} for {age(time.time() - since)}   incarnation {job.incarnation}"
    if job.step >= 0:
        first += f"   step {job.step:,}"
    if job.checkpointAt:
        first += f"   checkpoint {age(time.time() - job.checkpointAt / 1000)} ago"
    if job.ettr >= 0:
        first += f"   ETTR {job.ettr:.2f}"
    if job.mode == "plain":
        first += "   plain: without Aegis"
    if job.suspended:
        first += "   suspended"
    lines = [first, verdicts.budget(detail, lang)]
    if lang == "en":
        lines[-1] += f"  Retries {detail.retries}."
        if left := [f"{n.name} ({n.reason})" for n in detail.errorNodes if not n.noted]:
            lines[-1] += f"  Left: {', '.join(left[:4])}"
        if noted := [f"{n.podName} on {n.name} ({n.reason})" for n in detail.errorNodes if n.noted]:
            lines[-1] += f"  Noticed: {', '.join(noted[-4:])}"
    if said := verdicts.sentence(found, lang):
        lines.append(said)
    if detail.waiting:
        lines.append(f"Waiting: {detail.waiting}")
    if job.failedReason:
        lines.append(f"Failed: {job.failedReason}" + (f", exit code {job.exitCode}" if job.exitCode is not None else ""))
    if detail.transitions:
        last = detail.transitions[-1]
        lines.append(f"Last: {times.clock(last.timeStamp / 1000)} {last.phaseFrom} -> {last.phaseTo}: {last.message or last.cause}")
    return "\n".join(lines)


def judged(detail: api.JobDetail) -> bool:
    """May there be a verdict: a failure was counted, or a run is marked as hung?"""
    return bool(detail.summary.recoverCount) or any(worker.mark for worker in detail.workers)


def register(app: typer.Typer) -> None:
    """Add the group, and `logs` as a short form."""
    group = typer.Typer(help="Jobs: submit, watch, explain, act.", no_args_is_help=True)
    app.add_typer(group, name="job")
    _reading(group)
    logs.register(app, group)
    jobact.register(group)
    slurm.job_script(group)
    convert.register(group)


def _reading(group: typer.Typer) -> None:
    @command(group, "submit", acting=True, pass_through=True)
    def submit(
        env: Env,
        *,
        cmd: running.Command = None,
        file: running.File = None,
        name: running.Name = None,
        workers: running.Workers = None,
        nproc_per_node: running.Nproc = None,
        max_retry: running.MaxRetry = None,
        spares: running.Spares = None,
        environment: running.Environment = None,
        checkpoint_dir: running.CheckpointDir = None,
        grace: running.Grace = None,
        warm: running.Warm = None,
        suspended: Annotated[bool, typer.Option("--suspended", help="Do not start it before `job resume`.")] = False,
    ) -> None:
        """Hand a job in and return; prints only its id."""
        wishes = spec.Wishes(
            tuple(cmd or ()), file, name, workers, nproc_per_node, max_retry, spares, tuple(environment or ()), checkpoint_dir, grace, warm
        )
        start = running.prepare(env, wishes)
        if env.dry_run:
            env.out.document("Job", start.spec, running.plan(start), start.spec.name)
            return

        async def work() -> api.SubmitReply:
            async with Client.of(env) as client:
                return await running.submit(client, start.spec, suspended)

        reply = run_async(work())
        env.out.document("Job", reply, reply.job, reply.job)
        env.out.note(f"aegis job attach {reply.job}   aegis job why {reply.job}   aegis job stop {reply.job}")

    @command(group, "ls", "list", watch=True)
    def ls(
        env: Env,
        *,
        everything: Annotated[bool, typer.Option("--all", help="Also jobs that have ended.")] = False,
        phase: Annotated[str, typer.Option("--phase", metavar="PHASE", help="Only this phase.")] = "",
        user: Annotated[str, typer.Option("--user", metavar="USER", help="Only this user's.")] = "",
        sort: Annotated[str, typer.Option("--sort", metavar="age|name|restarts", help="Order.")] = "age",
    ) -> None:
        """The jobs."""
        keys = {"age": lambda job: -job.createdAt, "name": lambda job: job.job, "restarts": lambda job: -job.recoverCount}
        if sort not in keys:
            raise CliError("E107", f'--sort "{sort}": expected {", ".join(keys)}', exit=2)
        if phase and phase not in [p.value for p in Phase]:
            raise CliError("E107", f'--phase "{phase}": expected {", ".join(Phase)}', exit=2)
        ended = everything or phase in ("Succeed", "Failed")

        async def ask(client: Reader) -> list[api.JobSummary]:
            return sorted(await client.jobs(api.JobsRequest(all=ended, phase=phase, user=user)), key=keys[sort])

        async def work() -> None:
            async with past.reading(env) as client:
                jobs = await ask(client)
                if not env.watch or isinstance(client, past.Past):
                    empty = "no jobs" if ended else "no jobs that run (--all shows the ended)"
                    env.out.listing("JobList", jobs, LIST, lambda job: job.job, empty)
                    return
                seen: dict[str, bytes] = {}
                while True:
                    for job in jobs:
                        body = msgspec.json.encode(job)
                        if seen.get(job.job) != body:
                            seen[job.job] = body
                            text = f"{job.job}  {job.phase}  restarts {job.recoverCount}/{job.maxRetry}  inc {job.incarnation}"
                            env.out.line("Job", job, text)
                    await asyncio.sleep(1.0)
                    jobs = await ask(client)

        run_async(work())

    @command(group, "show", "describe", watch=True)
    def show(
        env: Env,
        jobs: JobNames,
        workers: Annotated[bool, typer.Option("--workers/--no-workers", help="The table of workers.")] = True,
        lang: Annotated[str, typer.Option("--lang", metavar="en|zh", help="Language of the sentences.")] = "en",
    ) -> int:
        """Everything about jobs: state, budget, workers."""
        if lang not in ("en", "zh"):
            raise CliError("E107", f'--lang "{lang}": en or zh', exit=2)

        async def work() -> int:
            async with past.reading(env) as client:
                last: dict[str, int] = {}
                while True:
                    found, errors = await several.each(list(dict.fromkeys(jobs)), client.job)
                    if env.watch and errors:
                        raise errors[0]
                    for detail in found:
                        if last.get(detail.summary.job) == detail.seq:
                            continue
                        last[detail.summary.job] = detail.seq
                        rows = list(detail.workers)
                        told = await client.verdicts(detail.summary.job) if judged(detail) else ()
                        while detail.moreWorkers and workers and isinstance(client, Client):
                            more = await client.query("job", api.JobRequest(job=detail.summary.job, firstWorker=len(rows)), api.JobDetail)
                            rows += more.workers
                            if not more.moreWorkers or not more.workers:
                                break
                        if env.watch and env.out.machine:
                            env.out.line("Job", detail, "")
                        else:
                            text = header(detail, lang, told) + ("\n" + table(rows, WORKERS, env.out.form == "wide") if workers and rows else "")
                            env.out.document("Job", detail, text, detail.summary.job)
                    if not env.watch or isinstance(client, past.Past):
                        return several.report(env.out, errors)
                    await asyncio.sleep(ASK_EVERY)

        return run_async(work())

    @command(group, "events", watch=True)
    def events(
        env: Env,
        job: JobName,
        since: Annotated[str, typer.Option("--since", metavar="TIME", help="Only the last so long (1h).")] = "",
        kind: Annotated[str, typer.Option("--type", metavar="TYPE", help="Only this type.")] = "",
    ) -> None:
        """What happened, one decision a line."""
        oldest = ""
        if since:
            try:
                back = duration(since, "--since")
            except ValueError as error:
                raise CliError("E116", str(error).removeprefix("E117 ")) from None
            oldest = rfc3339(round((time.time() - back) * 1000))

        async def work() -> None:
            async with past.reading(env) as client:
                detail = await client.job(job, workers=False)
                after, streaming = -1, env.watch
                while True:
                    page = await client.events(detail.summary.job, after)
                    after = page.seq
                    found = [item.event for item in page.items if item.event.time >= oldest and kind in ("", item.event.type)]
                    if not streaming:
                        columns = [
                            Column("TIME", lambda event: times.moment_of(event.time)),
                            Column("TYPE", lambda event: event.type),
                            Column("PHASE", lambda event: event.phase),
                            Column("INC", lambda event: event.incarnation),
                            Column("RETRIES", lambda event: event.retries),
                            Column("MESSAGE", why.said),
                        ]
                        env.out.listing("EventList", found, columns, lambda event: event.eventId, "no events")
                        return
                    for event in found:
                        env.out.line("Event", event, screen.plain(event))
                    if found and Phase(found[-1].phase).terminal:
                        return
                    await asyncio.sleep(ASK_EVERY)

        run_async(work())

    @command(group, "why")
    def explain(
        env: Env,
        job: JobName,
        incarnation: Annotated[str, typer.Option("--incarnation", metavar="N|last|all", help="Only this run of the command.")] = "all",
        timeline: Annotated[bool, typer.Option("--timeline", help="Every line, not only what changed the course.")] = False,
        evidence: Annotated[bool, typer.Option("--evidence", help="With the evidence in full.")] = False,
    ) -> None:
        """Why the job is as it is: what happened, who says so, and what it waits for."""
        if incarnation not in ("all", "last") and not incarnation.isdigit():
            raise CliError("E107", f'--incarnation "{incarnation}": a number, last or all', exit=2)

        async def work() -> why.Explanation:
            async with past.reading(env) as client:
                detail = await client.job(job)
                found = await client.events(detail.summary.job)
                try:
                    pending = await client.pending(detail.summary.job)
                except (CliError, BusError):
                    pending = None
                told = await client.verdicts(detail.summary.job)
                layer = await firstlayer.gather(client, detail.summary.job) if isinstance(client, Client) else None
                every = [item.event for item in found.items]
                return why.explain(detail, every, pending, incarnation, timeline, verdicts=told, layer=layer)

        explanation = run_async(work())
        env.out.document("Explanation", explanation, why.render(explanation, evidence), explanation.job)

    @command(group, "attach")
    def attach(env: Env, job: JobName) -> int:
        """The live screen of a running job; Ctrl-C leaves it running."""

        async def work() -> int:
            target = target_of(env)
            async with Client.of(env, target) as client:
                detail = await client.job(job, workers=False)
                with Signals() as signals:
                    return await watch(client, target, detail, signals)

        async def watch(client: Client, target: Target, detail: api.JobDetail, signals: Signals) -> int:
            shown = surface(env.out)
            output = WorkerOutput(target.stack, detail.summary.job) if target.stack else None
            keys = "Ctrl-C detaches; the job goes on"
            follower = Follower(client, detail.summary.job, shown, output, signals=signals, verbose=env.out.verbose > 0, keys=keys)
            try:
                model = await follower.until(lambda m: m.terminal)
            finally:
                shown.close()
            if follower.detached or model.detail is None:
                env.out.note(f"detached; {detail.summary.job} goes on")
                return 0 if signals.first in (0, signal.SIGINT) else 128 + signals.first
            return _end(env, model.detail)

        return run_async(work())

    @command(group, "wait")
    def wait(
        env: Env,
        job: JobName,
        until: Annotated[str, typer.Option("--for", metavar="succeed|phase=X|step=N", help="What to wait for (the end).")] = "end",
    ) -> int:
        """Wait for a job, over outages; ends with the training's exit code, or 6 after --timeout."""
        done = condition(until)

        async def work() -> int:
            async with Client(target_of(env), min(env.timeout, ANSWER), env.namespace) as client:
                job_id = (await client.job(job, workers=False)).summary.job
                with Signals() as signals:
                    return await watch(client, job_id, signals)

        async def watch(client: Client, job_id: str, signals: Signals) -> int:
            follower = Follower(client, job_id, Silent(env.out), signals=signals)
            model = await follower.until(
                lambda model: model.terminal or (model.detail is not None and done(model.detail.summary)),
                timeout=env.timeout if env.timeout_given else None,
            )
            detail = model.detail
            if detail is None or (follower.detached and not model.terminal):
                env.out.note(f"no longer waiting; {job_id} goes on")
                return 128 + signals.first
            env.out.document("Job", detail, f"{detail.summary.job} {detail.summary.phase}", detail.summary.job)
            if until in ("end", "succeed"):
                return _end(env, detail)
            return 0 if done(detail.summary) else _end(env, detail) or 1

        return run_async(work())


def condition(text: str) -> why.Condition:
    """`end`, `succeed`, `phase=X`, `step=N` as a test of a JobSummary."""
    if text in ("end", "succeed"):
        return lambda job: job.phase in ("Succeed", "Failed")
    key, sign, value = text.partition("=")
    if key == "phase" and sign and value in [phase.value for phase in Phase]:
        return lambda job: job.phase == value
    if key == "step" and sign and value.isdigit():
        return lambda job: job.step >= int(value)
    raise CliError("E107", f'--for "{text}": expected succeed, phase=X ({", ".join(Phase)}) or step=N', exit=2)


def _end(env: Env, detail: api.JobDetail) -> int:
    error = outcome.problem(detail)
    if error is not None:
        env.out.error(error)
    return outcome.exit_code(detail)
