"""`aegis demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aegis_cli.options import Env, command


def register(app: typer.Typer) -> None:
    """Add `demo`."""

    @command(app, "demo")
    def demo(
        env: Env,
        report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write what happened (JSON) there.", show_default=False)] = None,
        keep: Annotated[bool, typer.Option("--keep", help="Leave the folder of the demo for reading.")] = False,
    ) -> int:
        """A real training, killed three ways, recovered: on virtual nodes of this machine, in about a minute."""
        from aegis_cli.commands.run import check_report
        from aegis_cli.demo import show

        if report is not None:
            check_report(report)
        return show.main(env, report, keep)
