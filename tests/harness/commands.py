"""The `aegis` command line inside the test's own process, for commands that need no service."""

from __future__ import annotations

import json
from typing import Any

from aegis_cli.main import app
from typer.testing import CliRunner


def aegis(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr. What is no exit of the command is raised."""
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def read(*words: str) -> dict[str, Any]:
    """The JSON answer of a command that must succeed."""
    code, out, err = aegis(*words, "--json")
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out)
    return answer
