"""A tool that a check asks: bounded in time, and gone when the check is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import partial

from aegis_agent.lifeline import end_with


def ask(argv: Sequence[str], seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Its output and exit code. OSError when it cannot be started, TimeoutExpired when it does not end in time. Main thread of a check only."""
    return subprocess.run(
        argv,
        capture_output=True,
        timeout=seconds,
        check=False,
        stdin=subprocess.DEVNULL,
        preexec_fn=partial(end_with, os.getpid()),
    )
