"""`aegis config show|check|init` and the configuration of every command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from aegis_bus import config as files
from aegis_bus.settings import UNTRUSTED_MAY_NOT_SET

from aegis_cli.errors import CliError, from_text
from aegis_cli.offline import core
from aegis_cli.options import Env, command
from aegis_cli.output import Column


def configuration(env: Env) -> files.Config:
    """The configuration as it stands for this command; E130 names file and line, or the variable."""
    try:
        return files.load(config_file=env.config or None)
    except files.ConfigError as error:
        raise from_text(str(error), "E130") from None


@dataclass(frozen=True)
class Row:
    """One setting; `value` as its type."""

    key: str
    value: Any
    origin: str


def check_addresses(config: files.Config) -> None:
    """Sinks and addresses for people, as lognexus would read them at its start; where it is not installed nobody can tell."""
    try:
        for url in config.lognexus.sinks:
            core("aegis_lognexus.sinks", "aegis config check").target(url)
        if config.notify.urls:
            core("aegis_lognexus.notify", "aegis config check").addresses(config.notify.urls)
    except ValueError as error:
        raise from_text(str(error), "E130") from None
    except CliError as error:
        if error.code != "E124":
            raise


def shown(value: Any) -> str:
    """A value as it would stand in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{part}"' for part in value) + "]"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:g}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def template(config: files.Config) -> str:
    """A commented aegis.toml with every key and its default."""
    lines = ["# Every key with its default. Durations: seconds, or 10min, 24h. aegis config check FILE tells mistakes."]
    lines.append(f"# A file of the working folder may not set {', '.join(f'[{name}]' for name in UNTRUSTED_MAY_NOT_SET)}.")
    section = ""
    for key, value, _ in config.rows():
        head, _, name = key.partition(".")
        if head != section:
            section = head
            lines += ["", f"[{section}]"]
        lines.append(f"# {name} = {shown(value)}")
    return "\n".join(lines) + "\n"


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Settings: what they are, where they come from, mistakes.", no_args_is_help=True)
    app.add_typer(group, name="config")

    @command(group, "show")
    def show(
        env: Env,
        pattern: Annotated[str, typer.Argument(metavar="[KEY]", help="Only keys that begin so.")] = "",
        origin: Annotated[bool, typer.Option("--origin", help="Which file or variable won.")] = False,
    ) -> None:
        """Every setting as it stands now."""
        rows = [Row(key, value, source) for key, value, source in configuration(env).rows() if key.startswith(pattern)]
        if not rows:
            raise CliError("E130", f'no setting begins with "{pattern}"', "aegis config show")
        columns = [
            Column("KEY", lambda row: row.key),
            Column("VALUE", lambda row: shown(row.value)),
            Column("ORIGIN", lambda row: row.origin, wide=not origin),
        ]
        env.out.listing("Config", rows, columns, lambda row: row.key)

    @command(group, "check")
    def check(env: Env, file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Check this file too.")] = None) -> None:
        """Say what is wrong with the configuration; silent and 0 when nothing is."""
        if file is not None:
            try:
                found = files.load(config_file=str(file))
            except files.ConfigError as error:
                raise from_text(str(error), "E130") from None
        else:
            found = configuration(env)
        check_addresses(found)
        env.out.note("configuration in order")

    @command(group, "init", acting=True)
    def init(env: Env, file: Annotated[Path, typer.Argument(metavar="[FILE]")] = Path("aegis.toml")) -> None:
        """Write a commented aegis.toml."""
        text = template(files.Config())
        if env.dry_run:
            env.out.text(text.rstrip())
            return
        try:
            with open(file, "x") as target:
                target.write(text)
        except FileExistsError:
            raise CliError("E105", f"{file} exists: nothing was written") from None
        except OSError as error:
            raise CliError("E130", f"{file}: {error.strerror}") from None
        env.out.note(f"wrote {file}")
