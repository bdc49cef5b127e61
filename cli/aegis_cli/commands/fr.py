"""`aegis fr analyze DIR`: who hangs and why, from a folder of flight records. Needs no service.

Reads the dumps (in limited children: they are a tenant's), writes the HTML page where it is asked to. Exit code 0 whatever the finding: the question
was what happened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aegis_cli.errors import CliError
from aegis_cli.offline import core
from aegis_cli.options import Env, command


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Flight records of torch's collectives.", no_args_is_help=True)
    app.add_typer(group, name="fr")

    @group.callback()
    def fr() -> None:
        """Flight records of torch's collectives."""

    @command(group, "analyze")
    def analyze(
        env: Env,
        *,
        folder: Annotated[Path, typer.Argument(metavar="DIR", help="Dumps, one file per rank (pickle or JSON).")],
        matrix: Annotated[bool, typer.Option("--matrix", help="Add the rank x (group, seq) matrix.")] = False,
        html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the matrix as an HTML page.", show_default=False)] = None,
    ) -> None:
        """Who hangs and why: dumps of the flight recorder to culprits, a cause, evidence, and what was missing."""
        flight = core("aegis_lognexus.flight", "aegis fr analyze")
        try:
            dumps = flight.read_folder(folder)
        except NotADirectoryError:
            raise CliError("E107", f"{folder} is one file: give the folder with the dumps of all ranks", exit=2) from None
        except OSError as error:
            raise CliError("E107", f"{folder}: {error.strerror}", exit=2) from None
        except ValueError as error:
            raise CliError("E107", str(error), exit=2) from None
        if not dumps:
            raise CliError("E107", f"{folder}: no file that belongs to a rank; expected names that end in the rank, as in nccl_trace_rank_0", exit=2)
        found = flight.explain(dumps)
        if html is not None:
            try:
                html.write_text(found.html(f"Flight records of {folder.absolute().name}"), encoding="utf-8", errors="backslashreplace")
            except OSError as error:
                raise CliError("E107", f"--html {html}: {error.strerror}", exit=2) from None
        env.out.document("FlightReport", found.report.as_json(), found.text(matrix), found.report.cause)
