"""`aegis job convert`: a job of another kind as an AegisJob, on stdout; what was dropped, on stderr. Asks no service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from aegis_cli.convert import Converted, NotConvertible, convert
from aegis_cli.errors import CliError, from_text
from aegis_cli.options import Env, command


def register(group: typer.Typer) -> None:
    """Add `job convert`."""

    @command(group, "convert")
    def job_convert(
        env: Env,
        *,
        file: Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="PyTorchJob, TrainJob, JobSet or Volcano Job; - = stdin.")],
        strict: Annotated[bool, typer.Option("--strict", help="Exit 1 when something was dropped.")] = False,
    ) -> int:
        """Write another kind of training job as an AegisJob; says what has no place in it."""
        import yaml

        try:
            text = file.read_text() if str(file) != "-" else sys.stdin.read()
            documents = [document for document in yaml.safe_load_all(text) if document is not None]
            found = [convert(document) for document in documents]
        except (OSError, UnicodeDecodeError) as error:
            raise CliError("E117", f"{file}: {getattr(error, 'strerror', None) or error}") from None
        except yaml.YAMLError as error:
            raise CliError("E117", f"{file} is not YAML or JSON: {' '.join(str(error).split())[:300]}") from None
        except NotConvertible as error:
            raise from_text(f"E117 {file}: {str(error).removeprefix('E117 ')}", "E117") from None
        if not found:
            raise CliError("E117", f"{file} is empty")
        if env.out.machine or env.out.form == "name":
            env.out.listing("ConversionList", [_document(item) for item in found], [], lambda row: row["job"]["metadata"]["name"])
        else:
            sys.stdout.write(yaml.safe_dump_all([item.job for item in found], sort_keys=False))
        for item in found:
            for kind, lines in (("note", item.notes), ("dropped", item.dropped)):
                for line in lines:
                    env.out.note(f"{kind:<8} {line}")
        return 1 if strict and any(item.dropped for item in found) else 0


def _document(item: Converted) -> dict[str, Any]:
    return {"job": item.job, "dropped": list(item.dropped), "notes": list(item.notes)}
