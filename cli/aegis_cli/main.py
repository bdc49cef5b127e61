"""`aegis`: the command line. Puts the commands together; each lives in `commands/`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from aegis_proto import VERSION

from aegis_cli.commands import context, creds, demo, doctor, ettr, fr, job, lemon, misc, net, node, run, settings, slurm, stack

app = typer.Typer(
    name="aegis",
    help="Keeps large training jobs running: restarts in place, finds the bad node, says what it cost.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"aegis {VERSION}")
        raise typer.Exit


@app.callback()
def top(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")] = False) -> None:
    """Keeps large training jobs running: restarts in place, finds the bad node, says what it cost."""


for module in (run, job, node, stack, creds, context, settings, doctor, demo, fr, ettr, net, lemon, slurm, misc):
    module.register(app)


def main() -> None:
    """Entry point."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # closed by who started us: works all the same
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for the life of the process
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


if __name__ == "__main__":
    main()
