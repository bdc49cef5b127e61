"""`explain`, `version`, `completion`."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Annotated

import typer
from aegis_proto import VERSION

from aegis_cli import codes
from aegis_cli.errors import CliError
from aegis_cli.options import Env, command
from aegis_cli.output import Column


def versions() -> dict[str, str]:
    """Aegis, Python, nats-server and torch, as far as they are here (without importing torch)."""
    from aegis_bus.errors import ServerUnsuitable
    from aegis_bus.natsserver import find_server

    found = {"aegis": VERSION, "python": platform.python_version()}
    try:
        server = find_server()
        found["nats-server"] = f"{server.version_text} ({server.path})"
    except ServerUnsuitable as error:
        found["nats-server"] = str(error)
    try:
        found["torch"] = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        found["torch"] = "not installed"
    return found


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @command(app, "explain")
    def explain(env: Env, code: Annotated[str, typer.Argument(metavar="[CODE]", help="E101, W201, ...; none: all.")] = "") -> None:
        """What an error code means, why, and what to do."""
        if not code:
            columns = [Column("CODE", lambda row: row["code"]), Column("WHAT", lambda row: row["title"]), Column("EXIT", lambda row: row["exit"])]
            rows = [{"code": row.code, "title": row.title, "why": row.why, "do": row.do, "exit": row.exit} for row in codes.CODES.values()]
            env.out.listing("CodeList", rows, columns, lambda row: row["code"])
            return
        row = codes.CODES.get(code.upper())
        if row is None:
            raise CliError("E104", f'no code "{code}"', hint="aegis explain lists them")
        body = {"code": row.code, "title": row.title, "why": row.why, "do": row.do, "exit": row.exit}
        env.out.document("Code", body, codes.explain(code).rstrip(), row.code)

    @command(app, "version")
    def version(env: Env) -> None:
        """Versions of the parts that are here."""
        found = versions()
        env.out.document("Version", found, "\n".join(f"{name:<12} {value}" for name, value in found.items()), VERSION)

    @command(app, "completion")
    def completion(env: Env, shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish")] = "bash") -> None:
        """Print the completion script: `aegis completion bash > ~/.local/share/bash-completion/completions/aegis`."""
        from typer._completion_shared import get_completion_script

        if shell not in ("bash", "zsh", "fish"):
            raise CliError("E107", f'shell "{shell}": bash, zsh or fish', exit=2)
        env.out.text(get_completion_script(prog_name="aegis", complete_var="_AEGIS_COMPLETE", shell=shell))
