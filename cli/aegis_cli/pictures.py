"""Pictures that a command of lemon's core was asked for: files (`--html`, `--png`) and text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from aegis_cli.errors import CliError
from aegis_cli.offline import core
from aegis_cli.options import Env

Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the pictures as one page that needs nothing from the net.")]
Png = Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Write the pictures as PNG.")]
Draw = Annotated[bool, typer.Option("--draw", help="Draw the pictures here, as text.")]


def write(env: Env, title: str, figures: Sequence[Any], command: str, *, html: Path | None, png: Path | None) -> None:
    """The files that were asked for."""
    for option, path in (("--html", html), ("--png", png)):
        if path is None:
            continue
        chart = core("aegis_lemon.pictures.chart", f"{command} {option}")
        content = chart.png(figures) if option == "--png" else chart.page(title, figures).encode()
        try:
            path.write_bytes(content)
        except OSError as error:
            raise CliError("E107", f"{option} {path}: {error.strerror}", exit=2) from None
        env.out.note(f"pictures in {path}")


def drawn(figures: Sequence[Any], command: str) -> str:
    """As text, one under the other."""
    text = core("aegis_lemon.pictures.text", command).text
    return "\n\n".join(text(figure) for figure in figures)
