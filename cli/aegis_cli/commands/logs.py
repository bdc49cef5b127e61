"""`aegis job logs` (short: `aegis logs`): what the workers printed, from the slots of the stack of this machine."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from pathlib import Path
from typing import Annotated

import typer
from aegis_proto import api

from aegis_cli import why
from aegis_cli.client import Client, target_of
from aegis_cli.client import run as run_async
from aegis_cli.commands import classify
from aegis_cli.commands.jobact import JobName
from aegis_cli.errors import CliError
from aegis_cli.follow import ASK_EVERY
from aegis_cli.options import Env, command
from aegis_cli.stack.output import LogLine, WorkerOutput, stored


def register(app: typer.Typer, group: typer.Typer) -> None:
    """Add it to both."""

    def logs(
        env: Env,
        *,
        job: JobName,
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
        worker: Annotated[str, typer.Option("--worker", metavar="W", help="Only this worker (w0).")] = "",
        rank: Annotated[int | None, typer.Option("--rank", metavar="R", help="Only this rank.")] = None,
        incarnation: Annotated[int | None, typer.Option("--incarnation", metavar="N", help="Only this run of the command.")] = None,
        grep: Annotated[str, typer.Option("--grep", metavar="REGEX", help="Only lines that match.")] = "",
        tail: Annotated[int, typer.Option("--tail", metavar="N", help="The last N lines (0: all).")] = 100,
    ) -> None:
        """What the workers printed (of the stack of this machine). `aegis logs classify FILE`: what a saved log says about a failure."""
        try:
            pattern = re.compile(grep)
        except re.error as error:
            raise CliError("E107", f'--grep "{grep}": {error}', exit=2) from None

        def wanted(line: LogLine) -> bool:
            return (
                (not worker or line.worker == worker)
                and (rank is None or line.rank == rank)
                and (incarnation is None or line.incarnation == incarnation)
                and (line.incarnation >= 0 or env.out.verbose > 0)
                and pattern.search(line.message) is not None
            )

        async def find() -> tuple[api.JobDetail, Path]:
            target = target_of(env)
            async with Client.of(env, target) as client:
                detail = await client.job(job, workers=True)
            if target.stack is None:
                places = ", ".join(f"{view.pod} on {view.node}" for view in detail.workers[:8] if view.node)
                raise CliError(
                    "E104",
                    f"logs of {detail.summary.job} lie at its nodes ({places or 'no node yet'}): in STATE/slots/*/agent.log of aegis-agent node. "
                    "Only the stack of this machine can be read from here",
                )
            return detail, target.stack

        detail, base = run_async(find())
        name = detail.summary.job
        if follow:
            _follow_logs(env, name, base, wanted)
            return
        lines: deque[LogLine] = deque((line for line in stored(base, name, detail.summary.createdAt / 1000) if wanted(line)), maxlen=tail or None)
        for line in lines:
            env.out.line("LogLine", _log_body(line), line.text)

    command(group, "logs")(logs)
    command(classify.group(app), classify.READ)(logs)


def _log_body(line: LogLine) -> dict[str, object]:
    return {"worker": line.worker, "rank": line.rank, "incarnation": line.incarnation, "message": line.message}


def _follow_logs(env: Env, name: str, base: Path, wanted: why.LineTest) -> None:
    async def work() -> None:
        output = WorkerOutput(base, name)
        async with Client.of(env) as client:
            client.patient = env.out.note
            while True:
                detail = await client.query("job", api.JobRequest(job=name, workers=False), api.JobDetail)
                for line in output.read():
                    if wanted(line):
                        env.out.line("LogLine", _log_body(line), line.text)
                if detail.summary.phase in ("Succeed", "Failed"):
                    return
                await asyncio.sleep(ASK_EVERY)

    try:
        run_async(work())
    except KeyboardInterrupt:
        pass
