"""A tool that a check asks: bounded in time, and gone when the check is."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from aegis_agent.lifeline import end_with


def ask(argv: Sequence[str], seconds: float, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    """Its output and exit code. OSError when it cannot be started, TimeoutExpired when it does not end in time: it is killed then, and not waited for
    (what a driver holds has no end). `env`: its environment, ours when None. Main thread of a check only.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        preexec_fn=partial(end_with, os.getpid()),  # noqa: PLW1509 (main thread, prctl only)
    )
    try:
        out, error = process.communicate(timeout=seconds)
    except BaseException:
        process.kill()
        process.returncode = -signal.SIGKILL
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        raise
    return subprocess.CompletedProcess(argv, process.returncode, out, error)
