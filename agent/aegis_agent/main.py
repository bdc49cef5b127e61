"""`aegis-agent`: the entry point of every worker. Starts fast: a plain command never loads the bus.

aegis-agent -c 'the user's command line, as it was'
aegis-agent run [--nproc-per-node N] ... [--] cmd ...
aegis-agent worker --task FILE          (started by the node daemon; - is stdin)
aegis-agent node ...                    (the node daemon)
aegis-agent check list | run NAME...|all [--json]
aegis-agent check prolog | epilog [--job ID] [--seconds S]  (deep tests around a job)
aegis-agent parse TOOL FILE [--json]
aegis-agent ctl status|hang|burn|check|taint|untaint|stop ... [--socket PATH]
aegis-agent install TARGET [--checkpoint-engine PACKAGE] | --print-env  (one folder that runs beside any Python, or none)
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from aegis_proto.state import JobSpec

    from aegis_agent.handover import WorkerTask

USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write((__doc__ or "").strip() + "\n")
        return 0 if words else USAGE
    verb, rest = words[0], words[1:]
    if verb == "-c":
        return _shell(rest)
    if verb in _VERBS:
        return _VERBS[verb](rest)
    sys.stderr.write(f"aegis-agent: unknown command {verb!r}; known: -c, {', '.join(_VERBS)}\n")
    return USAGE


def shell_command(text: str, more: Sequence[str] = (), path: str | None = None) -> tuple[str, ...]:
    """argv that runs `text` as a container's `bash -c` would; `sh` where there is no bash."""
    shell = shutil.which("bash", path=path) or "/bin/sh"
    return (shell, "-c", text, *more)


def _shell(rest: Sequence[str]) -> int:
    from aegis_agent.handover import BadTask, task_from_environment

    if not rest:
        sys.stderr.write("usage: aegis-agent -c 'COMMAND' [ARG...]\n")
        return USAGE
    try:
        task = task_from_environment(_with_limits(_specification(shell_command(rest[0], rest[1:]))), dict(os.environ))
    except (BadTask, ValueError) as error:
        sys.stderr.write(f"aegis-agent: {error}\n")
        return USAGE
    return _live(task, raw_if_bare=True)


def _specification(command: tuple[str, ...]) -> JobSpec:
    """What `AEGIS_JOB_SPEC_FILE` says of the job (its platform wrote it), with this command line; without such a file only the command."""
    from pathlib import Path

    import msgspec
    from aegis_proto.state import JobSpec

    path = os.environ.get("AEGIS_JOB_SPEC_FILE", "")
    if not path:
        return JobSpec(name="local", command=command)
    try:
        return msgspec.structs.replace(msgspec.json.decode(Path(path).read_bytes(), type=JobSpec), command=command)
    except (OSError, msgspec.MsgspecError) as error:
        sys.stderr.write(f"aegis-agent: AEGIS_JOB_SPEC_FILE={path}: {error}; going on with the defaults\n")
        return JobSpec(name="local", command=command)


WHOLE_JOB = ("--workers", "-N", "--spares", "--max-retry", "--file", "-f")
"""Flags of `run` that speak of a job of several nodes: in an allocation of Slurm every task is given them."""


def _of_a_job(words: Sequence[str]) -> bool:
    """One of those flags stands before the command."""
    for word in words:
        if word == "--" or not word.startswith("-"):
            return False
        if word.partition("=")[0] in WHOLE_JOB:
            return True
    return False


def _run(rest: Sequence[str]) -> int:
    import argparse

    if _of_a_job(rest):  # the stack of an allocation is the command line's
        from aegis_agent import own

        os.execv(sys.executable, [*own.python(), "-m", "aegis_cli.slurm", *rest])

    parser = argparse.ArgumentParser(prog="aegis-agent run", description="Run a command under the agent: as its reaper, with rank variables.")
    parser.add_argument("--nproc-per-node", "--nproc_per_node", default="1", metavar="N|auto", help="local ranks (auto = GPUs; default 1)")
    parser.add_argument("--cwd", default="", metavar="DIR", help="working directory of the command")
    parser.add_argument("--stop-grace", type=float, default=15.0, metavar="S", help="seconds between SIGTERM and SIGKILL (default 15)")
    parser.add_argument("--preempt-grace", type=float, default=300.0, metavar="S", help="seconds after a SIGTERM to the agent (default 300)")
    parser.add_argument("--state", default="", metavar="DIR", help="where logs and status go (default: a temporary folder)")
    parser.add_argument("--raw", action="store_true", help="output of the command as it is, without a prefix")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command, with or without --")
    given = parser.parse_args(rest)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        parser.error("a command is needed")
    return _run_command(parser, given, command)


def _run_command(parser: argparse.ArgumentParser, given: argparse.Namespace, command: list[str]) -> int:
    import msgspec
    from aegis_proto.state import JobSpec

    from aegis_agent.checks.registry import gpu_count
    from aegis_agent.handover import BadTask, task_from_environment

    nproc = gpu_count() if given.nproc_per_node == "auto" else given.nproc_per_node
    if not str(nproc).isdigit() or not 1 <= int(nproc) <= 1024:
        parser.error(f"--nproc-per-node {nproc!r}: a number from 1 to 1024, or auto")
    spec = JobSpec(name="local", command=tuple(command), nprocPerNode=int(nproc), cwd=given.cwd)
    spec = msgspec.structs.replace(spec, stopGrace=given.stop_grace, preemptGrace=given.preempt_grace)
    try:
        task = task_from_environment(spec, dict(os.environ))
    except BadTask as error:
        parser.error(str(error))
    if given.state:
        task = msgspec.structs.replace(task, stateDir=given.state)
    if given.raw:
        task = msgspec.structs.replace(task, raw=True)
    return _live(task, raw_if_bare=int(nproc) == 1)


def _with_limits(spec: JobSpec) -> JobSpec:
    """`AEGIS_JOB_STOP_GRACE`, `_PREEMPT_GRACE`, `_NPROC_PER_NODE` and `_MAX_RETRY`, for a command line that has no flags."""
    import msgspec

    changes: dict[str, float | int] = {}
    fields = (("STOP_GRACE", "stopGrace"), ("PREEMPT_GRACE", "preemptGrace"), ("NPROC_PER_NODE", "nprocPerNode"), ("MAX_RETRY", "maxRetry"))
    for name, field in fields:
        text = os.environ.get(f"AEGIS_JOB_{name}", "")
        if text:
            try:
                changes[field] = float(text) if field.endswith("Grace") else int(text)
            except ValueError:
                raise ValueError(f"E130 AEGIS_JOB_{name}={text!r}: a number is needed") from None
    return msgspec.structs.replace(spec, **changes) if changes else spec


def _worker(rest: Sequence[str]) -> int:
    import argparse

    from aegis_agent.handover import BadTask, read_task

    parser = argparse.ArgumentParser(prog="aegis-agent worker", description="One worker of a managed job; started by the node daemon.")
    parser.add_argument("--task", "--slot-file", required=True, metavar="FILE", help="the task (JSON), - is stdin; removed: it holds a token")
    given = parser.parse_args(rest)
    try:
        task = read_task(given.task)
    except (BadTask, OSError) as error:
        sys.stderr.write(f"aegis-agent: {error}\n")
        return USAGE
    return _live(task)


def _live(task: WorkerTask, *, raw_if_bare: bool = False) -> int:
    """Be the worker. The memory is hidden before any secret is made."""
    import asyncio
    import logging

    import msgspec

    from aegis_agent.reaper import hide_memory

    hide_memory()
    level = os.environ.get("AEGIS_AGENT_LOG", "warning").upper()
    logging.basicConfig(level=level if level in logging.getLevelNamesMapping() else "WARNING", format="aegis-agent %(levelname)s %(message)s")
    if not task.job:
        from aegis_agent.plain import run_bare

        return asyncio.run(run_bare(msgspec.structs.replace(task, raw=True) if raw_if_bare else task, os.environ))
    from aegis_agent.worker import Worker

    async def live() -> int:  # what lives beside a worker is made in its loop
        return await Worker(task, os.environ).run()

    try:
        return asyncio.run(live())
    except ValueError as error:
        sys.stderr.write(f"aegis-agent: {error}\n")
        return USAGE


def _node(rest: Sequence[str]) -> int:
    from aegis_agent.daemon.cli import main as node

    return node(rest)


def _check(rest: Sequence[str]) -> int:
    from aegis_agent.checks.command import main as command_line

    return command_line(rest)


def _parse(rest: Sequence[str]) -> int:
    from aegis_agent.parse_command import main as parse

    return parse(rest)


def _ctl(rest: Sequence[str]) -> int:
    from aegis_agent.ctl import main as ctl

    return ctl(rest)


def _install(rest: Sequence[str]) -> int:
    from aegis_agent.install import main as install

    return install(rest)


_VERBS = {"run": _run, "worker": _worker, "node": _node, "check": _check, "parse": _parse, "ctl": _ctl, "install": _install}

if __name__ == "__main__":
    sys.exit(main())
