"""The command line as a process, for tests against a real stack (the fixtures are in conftest)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAIT = 60.0


class Aegis:
    """Runs the command line as a process in an empty folder."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        self.environ, self.folder = environ, folder

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "aegis_cli", *words]
        pipes: dict[str, Any] = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return subprocess.Popen(command, env=self.environ, cwd=self.folder, text=True, **{**pipes, **more})

    def __call__(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=WAIT)
        return process.returncode, out, err

    def json(self, *words: str) -> Any:
        code, out, err = self(*words, "-o", "json")
        assert code == 0, err
        return json.loads(out)

    def submit(self, *words: str) -> str:
        code, out, err = self("job", "submit", *words)
        assert code == 0, err
        assert re.fullmatch(r"[a-z0-9-]+-[0-9a-f]{6}\n", out)
        return out.strip()

    def until(self, job: str, test: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT
        while True:
            found = self.json("job", "show", job)
            if test(found):
                return found
            assert time.monotonic() < deadline, f"{found['summary']}\n{self('job', 'why', job)[1]}"


def started(aegis: Aegis, process: subprocess.Popen[str], word: str = "ready") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(f"the run ended before its worker said {word}")
