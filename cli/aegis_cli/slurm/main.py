"""`aegis-agent run --workers N ...` inside an allocation of Slurm, one task per node. `python -m aegis_cli.slurm`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from aegis_bus import config
from aegis_bus.settings import SlurmSettings
from aegis_proto.state import JobSpec

from aegis_cli import spec
from aegis_cli.errors import CliError, from_text
from aegis_cli.output import Output
from aegis_cli.slurm import control, step
from aegis_cli.slurm.folder import Folder
from aegis_cli.slurm.member import Member, local_folder
from aegis_cli.slurm.owner import Owner
from aegis_cli.stack import guard


def parser() -> argparse.ArgumentParser:
    """The flags of `aegis run` that make sense here."""
    p = argparse.ArgumentParser(
        prog="aegis-agent run", description="Train in this allocation of Slurm: one task per node, the first keeps a private stack."
    )
    p.add_argument("--workers", "-N", type=int, metavar="N", help="workers, one per node (default: all nodes but the spares)")
    p.add_argument("--spares", type=int, metavar="N", help="nodes kept free for replacement (default 0)")
    p.add_argument("--max-retry", type=int, metavar="N", help="faults the job may survive, over all its requeues (default 3)")
    p.add_argument("--nproc-per-node", "--nproc_per_node", metavar="N|auto", help="local ranks (auto = GPUs; default 1)")
    p.add_argument("--checkpoint-dir", metavar="DIR", help="where the training saves")
    p.add_argument("--stop-grace", metavar="TIME", help="time to end after a stop (15s)")
    p.add_argument("--env", action="append", default=[], metavar="K=V", help="for the command, beside the environment of the step")
    p.add_argument("--warm", action="store_true", default=None, help="fast restarts: packages are imported before they are needed")
    p.add_argument("--file", "-f", type=Path, metavar="FILE", help="job file")
    p.add_argument("command", nargs=argparse.REMAINDER, help="the command, with or without --")
    return p


def specification(given: argparse.Namespace, here: step.Step, settings: config.Config, nodes: int) -> JobSpec:
    """The job of this step. CliError as `spec.build`."""
    command = tuple(given.command[1:] if given.command[:1] == ["--"] else given.command)
    workers = given.workers
    if workers is None and given.file is None:
        workers = max(nodes - (given.spares or 0), 1)
    wishes = spec.Wishes(
        command,
        given.file,
        here.name,
        workers,
        given.nproc_per_node,
        given.max_retry,
        given.spares,
        tuple(given.env),
        given.checkpoint_dir,
        given.stop_grace,
        given.warm,
    )
    wanted = spec.build(wishes, "default", None, {"placingTimeout": step.PLACING, **spec.defaults(settings)})
    return msgspec.structs.replace(wanted, namespace="default", user=here.user or wanted.user)


def main(argv: Sequence[str]) -> int:
    """Exit code of this task: on every node that of the job."""
    out = Output("table", color=False)
    try:
        here = step.read(os.environ)
        settings = config.load()
        names = control.hostnames(here.nodelist)
        wanted = specification(parser().parse_args(argv), here, settings, len(names))
        base = local_folder(here, os.environ)
        guard.prctl(guard.PR_SET_CHILD_SUBREAPER, 1)  # agents whose daemon has ended stay below this task
        if here.owner:
            return asyncio.run(Owner(here, wanted, settings, out, base).run())
        return asyncio.run(_member(here, wanted, base, settings.slurm, out))
    except CliError as error:
        out.error(error)
        return error.exit
    except config.ConfigError as error:
        out.error(from_text(str(error), "E130"))
        return 2
    except control.SlurmRefused as error:
        out.error(CliError("E108", f"Slurm does not answer: {error}"))
        return 5


async def _member(here: step.Step, wanted: JobSpec, base: Path, settings: SlurmSettings, out: Output) -> int:
    member = Member(here, Folder.of(here), base, max_retry=wanted.maxRetry, settings=settings, say=out.note)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, member.noticed.set)
    return await member.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
