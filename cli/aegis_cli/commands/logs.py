"""`aegis job logs` (short: `aegis logs`): what the workers printed, from the store of lognexus; where that does not answer on the stack of this
machine, from its slots."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Annotated

import typer
from aegis_parsers import loglevel
from aegis_proto import api
from aegis_proto.times import rfc3339

from aegis_cli import keptlogs, offline, past, why
from aegis_cli.client import Client, target_of
from aegis_cli.client import run as run_async
from aegis_cli.commands import classify
from aegis_cli.commands.jobact import JobName
from aegis_cli.context import resolve
from aegis_cli.errors import CliError
from aegis_cli.follow import ASK_EVERY
from aegis_cli.options import Env, command
from aegis_cli.stack.output import LogLine, WorkerOutput, in_time_order, stored

WORKER = re.compile(r"w(0|[1-9]\d*)")
SETTLE = 2.0
"""Seconds without a line after the end of a job: its last ones may still be on their way from the agents."""


def register(app: typer.Typer, group: typer.Typer) -> None:
    """Add it to both."""

    def logs(
        env: Env,
        *,
        job: JobName,
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
        worker: Annotated[str, typer.Option("--worker", metavar="W", help="Only this worker (w0, or 0).")] = "",
        rank: Annotated[int | None, typer.Option("--rank", metavar="R", help="Only this rank.")] = None,
        incarnation: Annotated[int | None, typer.Option("--incarnation", metavar="N", help="Only this run of the command.")] = None,
        grep: Annotated[str, typer.Option("--grep", metavar="REGEX", help="Only lines that match.")] = "",
        level: Annotated[str, typer.Option("--level", metavar="|".join(loglevel.LEVELS), help="Only lines that say this level, or worse.")] = "",
        since: Annotated[str, typer.Option("--since", metavar="TIME", help="Only the last so long (10min).")] = "",
        tail: Annotated[
            int, typer.Option("--tail", metavar="N", min=0, help="The last N lines, over all workers in the order of time (0: all).")
        ] = 100,
    ) -> None:
        """What the workers printed (-v: their agents, too). `aegis logs classify FILE`: what a saved log says about a failure."""
        only = worker_name(worker)
        try:
            pattern = re.compile(grep)
        except re.error as error:
            raise CliError("E107", f'--grep "{grep}": {error}', exit=2) from None
        says, must = _level(level)
        oldest = round((time.time() - offline.seconds(since, "--since")) * 1000) if since else 0

        def wanted(line: LogLine) -> bool:
            return (
                (not only or line.worker == only)
                and (rank is None or line.rank == rank)
                and (incarnation is None or line.incarnation == incarnation)
                and (line.incarnation >= 0 or env.out.verbose > 0)
                and pattern.search(line.message) is not None
                and (says is None or (says.search(line.message) is not None) is must)
                and line.at >= oldest
            )

        async def find() -> tuple[api.JobDetail, Path | None]:
            if resolve(env.context) is None and (kept := past.find(job)) is not None:
                name = kept.detail.summary.job
                raise CliError("E104", f"the output of {name} went with its stack (--keep-stack keeps both)", hint=f"aegis job why {name}")
            target = target_of(env)
            async with Client.of(env, target) as client:
                detail = await client.job(job, workers=True)
            return detail, target.stack

        detail, base = run_async(find())
        name = detail.summary.job
        if only and int(only[1:]) >= detail.summary.workers:
            last = detail.summary.workers - 1
            raise CliError("E107", f'--worker "{worker}": {name} has {"w0" if not last else f"w0 to w{last}"}', exit=2)
        if _kept(env, detail, keptlogs.Wanted(only, rank, incarnation, grep, env.out.verbose > 0, level, oldest), tail, follow, base is not None):
            return
        assert base is not None
        began = detail.summary.createdAt / 1000
        if follow:
            _follow_logs(env, name, base, wanted, tail, began)
            return
        for line in in_time_order((filter(wanted, lines) for lines in stored(base, name, began)), tail):
            env.out.line("LogLine", _log_body(line), line.text)

    command(group, "logs")(logs)
    command(classify.group(app), classify.READ)(logs)


def _level(level: str) -> tuple[re.Pattern[str] | None, bool]:
    try:
        says, must = loglevel.wanted(level) if level else ("", True)
    except ValueError as error:
        raise CliError("E107", f"--level: {error}", exit=2) from None
    return re.compile(says) if says else None, must


def _kept(env: Env, detail: api.JobDetail, wanted: keptlogs.Wanted, tail: int, following: bool, elsewhere: bool) -> bool:  # noqa: PLR0917
    """From lognexus, over the bus. False: it does not answer, and the lines are to be had elsewhere."""
    name = detail.summary.job

    async def work() -> bool:
        async with Client.of(env) as client:
            if elsewhere and not await keptlogs.answers(client, name):
                return False
            try:
                last = await keptlogs.last(client, name, wanted, tail)
            except CliError as error:
                if error.code != "E108":
                    raise
                places = ", ".join(f"{view.pod} on {view.node}" for view in detail.workers[:8] if view.node)
                where = f"at its nodes ({places or 'no node yet'}), in STATE/slots/*/agent.log of aegis-agent node"
                raise CliError("E108", f"nobody answers for the logs of {name}: lognexus does not run here. They lie {where}") from None
            if last.cut:
                env.out.note(f"only the last {len(last.lines)} lines could be looked through in time")
            if last.lost:
                env.out.note(f"{last.lost} lines of {name} never reached the store: its workers had no room for them, or the stream lost them")
            _print(env, last.lines)
            if not following:
                if not last.lines:
                    env.out.note(f"no line of {name} that fits is stored")
                return True
            client.patient = env.out.note
            quiet = float("inf")
            async for more in keptlogs.follow(client, name, wanted, last.cursor, ASK_EVERY):
                _print(env, more)
                if more or (await client.job(name, workers=False)).summary.phase not in ("Succeed", "Failed"):
                    quiet = float("inf")
                elif time.monotonic() - (quiet := min(quiet, time.monotonic())) >= SETTLE:
                    return True
        return True

    try:
        return run_async(work())
    except KeyboardInterrupt:
        return True


def _print(env: Env, lines: list[LogLine]) -> None:
    for line in lines:
        env.out.line("LogLine", _log_body(line), line.text)


def worker_name(text: str) -> str:
    """`w0` of `w0` or `0`; "" of ""."""
    name = f"w{text}" if text.isdecimal() else text
    if name and WORKER.fullmatch(name) is None:
        raise CliError("E107", f'--worker "{text}": a worker is named w0, w1, ...', exit=2)
    return name


def _log_body(line: LogLine) -> dict[str, object]:
    time = rfc3339(line.at) if line.at else None
    return {"time": time, "worker": line.worker, "rank": line.rank, "incarnation": line.incarnation, "message": line.message}


def _follow_logs(env: Env, name: str, base: Path, wanted: why.LineTest, tail: int, began: float) -> None:  # noqa: PLR0917 - one caller
    async def work() -> None:
        output = WorkerOutput(base, name)
        rotated = stored(base, name, began, rotated_only=True)
        first = in_time_order((filter(wanted, lines) for lines in (*rotated, *output.workers())), tail)
        async with Client.of(env) as client:
            client.patient = env.out.note
            while True:
                detail = await client.query("job", api.JobRequest(job=name, workers=False), api.JobDetail)
                for line in (*first, *in_time_order(filter(wanted, lines) for lines in output.workers())):
                    env.out.line("LogLine", _log_body(line), line.text)
                first = []
                if detail.summary.phase in ("Succeed", "Failed"):
                    return
                await asyncio.sleep(ASK_EVERY)

    try:
        run_async(work())
    except KeyboardInterrupt:
        pass
