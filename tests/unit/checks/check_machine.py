"""A machine for the checks to look at: files below a folder, a kernel log, and programs run as a round runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def lay(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run_program(name: str, cwd: Path, environ: Mapping[str, str], /, **context: Any) -> dict[str, Any]:
    """The answer of one check's program in a clean environment for checks. Without a kernel log of its own, an empty one."""
    (cwd / "quiet.log").touch()
    clean = {key: value for key, value in os.environ.items() if not key.startswith("AEGIS_CHECKS_")}
    clean |= {"AEGIS_CHECKS_KERNEL_LOG": str(cwd / "quiet.log"), **environ}
    done = subprocess.run(
        [sys.executable, "-m", f"aegis_agent.checks.{name}"],
        input=json.dumps({"cwd": str(cwd), **context}) + "\n",
        capture_output=True,
        text=True,
        env=clean,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def kernel_record(text: str) -> str:
    """A record of /dev/kmsg, written now."""
    return f"6,0,{time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000},-;{text}\n"
