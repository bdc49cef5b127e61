"""`aegis context add|use|ls`: which buses there are, and which one is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from aegis_proto.ids import is_id, nearest_id

from aegis_cli.context import Target, contexts_file, load, store
from aegis_cli.errors import CliError
from aegis_cli.options import Env, command
from aegis_cli.output import Column


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Which bus, and as whom.", no_args_is_help=True)
    app.add_typer(group, name="context")

    @command(group, "add", acting=True)
    def add(
        env: Env,
        name: Annotated[str, typer.Argument(metavar="NAME")],
        server: Annotated[list[str], typer.Option("--server", metavar="URL", help="tls://host:4222; may be repeated.")],
        creds: Annotated[Path | None, typer.Option("--creds", metavar="FILE", help="Credentials (aegis creds issue).")] = None,
        ca: Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="CA of the bus servers.")] = None,
    ) -> None:
        """Add or replace a context; the first one is in use at once."""
        if not is_id(name):
            raise CliError("E110", f'context name "{name}": use a-z, 0-9 and -, at most 40. Nearest: {nearest_id(name)}')
        for path in (creds, ca):
            if path is not None and not path.is_file():
                raise CliError("E130", f"there is no file {path}")
        contexts, current = load()
        target = Target(name, tuple(server), str(creds.absolute()) if creds else "", str(ca.absolute()) if ca else "", env.namespace)
        if env.dry_run:
            env.out.text(f"would add {name}: {', '.join(server)} to {contexts_file()}")
            return
        contexts[name] = target
        store(contexts, current or name)
        env.out.note(f"context {name} added" + ("" if current else ", in use"))

    @command(group, "use", acting=True)
    def use(env: Env, name: Annotated[str, typer.Argument(metavar="NAME|none")]) -> None:
        """Use a context from now on; none: the stack of this machine."""
        contexts, _ = load()
        if name != "none" and name not in contexts:
            raise CliError("E104", f'no context "{name}" (known: {", ".join(sorted(contexts)) or "none"})')
        if not env.dry_run:
            store(contexts, "" if name == "none" else name)
        env.out.note(f"context in use: {name}")

    @command(group, "ls", "list")
    def ls(env: Env) -> None:
        """The contexts; * is in use."""
        contexts, current = load()
        columns = [
            Column("USE", lambda target: "*" if target["name"] == current else ""),
            Column("NAME", lambda target: target["name"]),
            Column("SERVERS", lambda target: ", ".join(target["servers"])),
            Column("NAMESPACE", lambda target: target["namespace"]),
            Column("CREDS", lambda target: target["creds"], wide=True),
        ]
        rows = [
            {"name": t.name, "servers": list(t.servers), "creds": t.creds, "ca": t.ca, "namespace": t.namespace, "inUse": t.name == current}
            for t in contexts.values()
        ]
        env.out.listing(
            "ContextList", rows, columns, lambda target: target["name"], f"no contexts in {contexts_file()}: the stack of this machine is used"
        )
