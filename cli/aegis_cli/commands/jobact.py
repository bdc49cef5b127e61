"""`aegis job stop|suspend|resume|restart|set|inject`: wishes to the master, recorded once and awaited until they are applied."""

from __future__ import annotations

import asyncio
import functools
import operator
import time
from typing import Annotated

import msgspec
import typer
from aegis_proto import api
from aegis_proto.job import duration

from aegis_cli import several
from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.commands import run as running
from aegis_cli.errors import CliError
from aegis_cli.options import Env, command
from aegis_cli.output import Column

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Id, or name when it is clear.")]
JobNames = Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids or names.")]


class Acted(msgspec.Struct):
    """One line of what an acting verb did."""

    job: str
    before: str
    after: str


ACTED = [Column("JOB", lambda row: row.job), Column("BEFORE", lambda row: row.before), Column("AFTER", lambda row: row.after)]

KEPT = "the processes end; the workers keep their nodes, so that resume starts at once (aegis job stop frees them)"


def register(group: typer.Typer) -> None:
    """Add the verbs."""
    for verb, text, done in (
        ("stop", "End jobs: their processes get the grace, then are killed.", ""),
        ("suspend", "End the processes; the workers keep their nodes. `resume` starts anew.", KEPT),
        ("resume", "Start suspended jobs.", ""),
        ("restart", "Restart all workers in place; not counted.", ""),
    ):
        _verb(group, verb, text, done)

    @command(group, "inject", acting=True, reason=True)
    def inject(
        env: Env,
        job: JobName,
        worker: Annotated[str, typer.Option("--worker", metavar="W", help="Which worker: w0, w1 ...")],
        fault: Annotated[str, typer.Option("--fault", metavar="|".join(api.FAULTS), help="What happens to its command.")],
    ) -> None:
        """A fault on one's own job, to see that it survives it (allowInject: true)."""
        if fault not in api.FAULTS:
            raise CliError("E107", f'--fault "{fault}": expected {", ".join(api.FAULTS)}', exit=2)

        async def work() -> None:
            async with Client.of(env) as client:
                detail = await client.job(job, workers=False)
                if not env.dry_run:
                    reply = await client.action("inject", detail.summary, env.reason, None, {"worker": worker, "fault": fault})
                    await _settled(client, reply, env.timeout)
                row = {"job": detail.summary.job, "worker": worker, "fault": fault}
                columns = [Column(key.upper(), operator.itemgetter(key)) for key in ("job", "worker", "fault")]
                env.out.listing("Action", [row], columns, lambda item: item["job"])

        run_async(work())

    @command(group, "set", acting=True, reason=True)
    def change(env: Env, job: JobName, settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="max-retry=N")]) -> None:
        """Change a running job: max-retry."""
        pairs: dict[str, str] = {}
        for item in settings:
            key, sign, value = item.partition("=")
            if not sign:
                raise CliError("E107", f'"{item}": expected KEY=VALUE', exit=2)
            pairs[key] = value
        for key in pairs:
            if key != "max-retry":
                raise CliError("E107", f'cannot set "{key}": max-retry is what a running job lets change', exit=2)

        async def work() -> None:
            async with Client.of(env) as client:
                detail = await client.job(job, workers=False)
                old = str(detail.summary.maxRetry)
                row = {"job": detail.summary.job, "key": "max-retry", "old": old, "new": pairs["max-retry"]}
                if not env.dry_run:
                    reply = await client.action("set", detail.summary, env.reason, None, pairs)
                    await _settled(client, reply, env.timeout)
                columns = [Column(key.upper(), operator.itemgetter(key)) for key in ("key", "old", "new")]
                env.out.listing("Action", [row], columns, lambda item: item["job"])

        run_async(work())


def _verb(group: typer.Typer, verb: str, text: str, done: str) -> None:
    def act(env: Env, jobs: JobNames, grace: running.Grace = None) -> int:
        try:
            seconds = None if grace is None else duration(grace, "--grace")
        except ValueError as error:
            raise CliError("E116", str(error).removeprefix("E117 ")) from None

        async def work() -> tuple[list[Acted], list[CliError]]:
            async with Client.of(env) as client:

                async def one(job: api.JobSummary) -> Acted:
                    if env.dry_run:
                        return Acted(job.job, job.phase, f"(would {verb})")
                    reply = await client.action(verb, job, env.reason, seconds)
                    after = await _settled(client, reply, env.timeout)
                    return Acted(reply.job, reply.before, after.phase if not after.suspended else f"{after.phase} (suspended)")

                found, unknown = await several.each(jobs, functools.partial(client.job, workers=False))
                rows, refused = await several.each(list({detail.summary.job: detail.summary for detail in found}.values()), one)
                return rows, [*unknown, *refused]

        rows, errors = run_async(work())
        env.out.listing("ActionList", rows, ACTED, lambda row: row.job)
        code = several.report(env.out, errors)
        if done and rows and not env.dry_run:
            env.out.note(done)
        return code

    act.__doc__ = text
    command(group, verb, acting=True, reason=True)(act)


async def _settled(client: Client, reply: api.ActionReply, timeout: float) -> api.JobSummary:
    """Until the owner has applied the wish; E108 when it does not within `timeout` (the wish stands)."""
    deadline = time.monotonic() + timeout
    while True:
        detail = await client.query("job", api.JobRequest(job=reply.job, workers=False), api.JobDetail)
        if detail.cursor >= reply.seq:
            return detail.summary
        if time.monotonic() > deadline:
            raise CliError("E108", f"the wish is recorded, but no master has applied it within {timeout:g} s: aegis status")
        await asyncio.sleep(0.05)
