"""`aegis job script` and `aegis slurm weights`: what Slurm is given. The part inside an allocation is `aegis_cli.slurm`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from aegis_parsers.slurm import Change, changes, node_records

from aegis_cli import spec
from aegis_cli.commands import run as running
from aegis_cli.commands.settings import configuration
from aegis_cli.errors import CliError
from aegis_cli.options import Env, command
from aegis_cli.output import Column
from aegis_cli.slurm import control
from aegis_cli.slurm.script import script as text_of
from aegis_cli.slurm.step import PLACING

COLUMNS = [
    Column("NODE", lambda row: row.node),
    Column("WEIGHT", lambda row: str(row.weight)),
    Column("FEATURES", lambda row: ",".join(row.features) or "-"),
    Column("WHY", lambda row: row.why),
]


def job_script(group: typer.Typer) -> None:
    """Add `job script`."""

    @command(group, "script", pass_through=True)
    def script(
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
        platform: Annotated[str, typer.Option("--platform", metavar="slurm", help="For which scheduler.")] = "slurm",
        time_limit: Annotated[str, typer.Option("--time-limit", metavar="TIME", help="--time of sbatch, as 1-00:00:00.")] = "",
    ) -> None:
        """Print the batch script that trains under Aegis in an allocation."""
        if platform != "slurm":
            raise CliError("E107", f'--platform "{platform}": expected slurm (on Kubernetes a job file is applied as it is)', exit=2)
        if nproc_per_node == "auto":
            raise CliError(
                "E116", "--nproc-per-node auto: the GPUs of this machine are not those of the nodes, and Slurm is asked for a number: give it"
            )
        wishes = spec.Wishes(
            tuple(cmd or ()), file, name, workers, nproc_per_node, max_retry, spares, tuple(environment or ()), checkpoint_dir, grace, warm
        )
        configured = {"placingTimeout": PLACING, **spec.defaults(configuration(env))}
        print(text_of(spec.build(wishes, env.namespace or "default", None, configured), limit=time_limit), end="")


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="What Slurm is told of nodes.", no_args_is_help=True)
    app.add_typer(group, name="slurm")

    @command(group, "weights", acting=True)
    def weights(
        env: Env,
        scores: Annotated[Path, typer.Option("--scores", metavar="FILE", help="What `aegis lemon rank -o json` printed; - = stdin.")],
        apply: Annotated[bool, typer.Option("--apply", help="Tell Slurm (needs its rights of an operator).")] = False,
    ) -> int:
        """Node weights and the feature aegis_suspect from scores: nodes that fail jobs are given last."""
        found = read_scores(scores)
        try:
            todo = changes(found, node_records(control.run("scontrol", "-o", "show", "node")))
        except control.SlurmRefused as error:
            raise CliError("E108", f"Slurm does not answer: {error}") from None
        except ValueError as error:
            raise CliError("E107", str(error)) from None
        env.out.listing("ActionList", todo, COLUMNS, lambda row: row.node)
        if apply and not env.dry_run:
            return _apply(env, todo)
        if todo:
            env.out.note(f"{len(todo)} nodes would be changed: --apply tells Slurm")
        return 0


def read_scores(path: Path) -> list[tuple[str, float, bool]]:
    """(node, score, flagged) of each node of a ranking; E117 when it is none. Of a detector that counts, whose score is no share, who is flagged."""
    try:
        ranking = json.loads(sys.stdin.read() if str(path) == "-" else path.read_text())
        nodes = [(str(node["node"]), float(node.get("score", 0.0)), bool(node.get("flagged", False))) for node in ranking["nodes"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CliError("E117", f"{path}: expected the ranking of `aegis lemon rank -o json`: {error}") from None
    counted = ranking.get("detector") in ("count", "rules")
    return [(node, float(flagged) if counted else score, flagged) for node, score, flagged in nodes]


def _apply(env: Env, todo: list[Change]) -> int:
    failed = 0
    for change in todo:
        try:
            control.run(*change.words)
        except control.SlurmRefused as error:
            failed += 1
            env.out.note(f"{change.node}: {error}")
    env.out.note(f"{len(todo) - failed} of {len(todo)} nodes changed")
    return 1 if failed else 0
