"""The options that every command takes, added to each by `command`, so that they may stand before or after the command's own.

A command's first parameter is the `Env`: what the shared options said.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer
from aegis_proto.job import duration

from aegis_cli.errors import CliError, from_text
from aegis_cli.output import FORMATS, Output

PASS_THROUGH = {"allow_interspersed_args": False}
"""Context settings of commands that take a user's command line: everything after its first word belongs to it, with or without `--`."""


@dataclass(frozen=True)
class Env:
    """The shared options, resolved."""

    out: Output
    context: str = ""
    namespace: str = ""
    timeout: float = 10.0
    timeout_given: bool = False
    watch: bool = False
    dry_run: bool = False
    reason: str = ""
    yes: bool = False
    config: str = ""


_COMMON: dict[str, tuple[Any, Any]] = {
    "context": (Annotated[str, typer.Option("--context", "-c", metavar="NAME", help="Which bus and credentials (aegis context ls).")], ""),
    "namespace": (Annotated[str, typer.Option("--namespace", "-n", metavar="NS", help="Namespace of the jobs.")], ""),
    "output": (Annotated[str, typer.Option("--output", "-o", metavar="FORMAT", help="table, wide, json, yaml or name.")], "table"),
    "as_json": (Annotated[bool, typer.Option("--json", help="Same as -o json.")], False),
    "quiet": (Annotated[bool, typer.Option("--quiet", "-q", help="No notes on stderr.")], False),
    "verbose": (Annotated[int, typer.Option("--verbose", "-v", count=True, help="More about what goes on.")], 0),
    "timeout": (Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long to wait for an answer (10s).")], ""),
    "no_color": (Annotated[bool, typer.Option("--no-color", help="No colours (also NO_COLOR).")], False),
    "config": (Annotated[str, typer.Option("--config", metavar="FILE", envvar="AEGIS_CONFIG", help="aegis.toml to use.")], ""),
}
_WATCH: dict[str, tuple[Any, Any]] = {"watch": (Annotated[bool, typer.Option("--watch", "-w", help="Go on as things change.")], False)}
_ACTING: dict[str, tuple[Any, Any]] = {
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")], False),
    "yes": (Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")], False),
}

_REASON: dict[str, tuple[Any, Any]] = {"reason": (Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept with the event.")], "")}
"""Only for verbs whose reason is kept: elsewhere the option is refused, not dropped."""


def _resolve(values: dict[str, Any]) -> Env:
    form = "json" if values.get("as_json") else str(values.get("output", "table"))
    out = Output(form if form in FORMATS else "table", bool(values["quiet"]), int(values["verbose"]), not values["no_color"])
    if form not in FORMATS:
        raise CliError("E107", f'-o "{form}": expected one of {", ".join(FORMATS)}', exit=2)
    given = str(values.get("timeout", ""))
    try:
        timeout = duration(given, "--timeout") if given else 10.0
    except ValueError as error:
        raise CliError("E116", str(error).removeprefix("E117 "), exit=2) from None
    return Env(
        out,
        str(values["context"]),
        str(values["namespace"]),
        timeout,
        bool(given),
        bool(values.get("watch")),
        bool(values.get("dry_run")),
        str(values.get("reason", "")),
        bool(values.get("yes")),
        str(values["config"]),
    )


def _check_config(path: str) -> None:
    """A file that was named is right, or it is said, also by a command that needs nothing of it."""
    from aegis_bus import config

    try:
        config.load(config_file=path)
    except config.ConfigError as error:
        raise from_text(str(error), "E130") from None


def command(
    app: typer.Typer, name: str, *aliases: str, watch: bool = False, acting: bool = False, reason: bool = False, pass_through: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register `function(env, ...)` as a command; `aliases` work and are not listed."""
    extra = {**_COMMON, **(_WATCH if watch else {}), **(_ACTING if acting else {}), **(_REASON if reason else {})}

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]

        @functools.wraps(function)
        def run(**values: Any) -> None:
            shared = {key: values.pop(key) for key in extra}
            form = "json" if shared.get("as_json") else str(shared["output"])
            try:
                env = _resolve(shared)
                if env.config:
                    _check_config(env.config)
                code = function(env, **values)
            except CliError as error:
                Output(form, color=not shared["no_color"]).error(error)
                raise typer.Exit(error.exit) from None
            raise typer.Exit(code or 0)

        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [p.replace(kind=kind, annotation=hints[p.name]) for p in own]
        parameters += [inspect.Parameter(key, kind, annotation=annotation, default=default) for key, (annotation, default) in extra.items()]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        del run.__wrapped__  # typer would look through it at the first parameter
        settings = dict(PASS_THROUGH) if pass_through else {}
        for index, title in enumerate((name, *aliases)):
            app.command(title, hidden=index > 0, context_settings=settings)(run)
        return function

    return register
