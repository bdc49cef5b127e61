"""A program that looks at the machine or at a process beside the training: as a child with a deadline, since whatever it looks at may hang."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tempfile
from collections.abc import Sequence

from aegis_agent.env import without_secrets
from aegis_agent.executor import Executor


async def output_of(executor: Executor, argv: Sequence[str], seconds: float, most_bytes: int, *, nice: int = 0) -> bytes:
    """What it prints, up to `most_bytes`; empty when it does not end well within `seconds`. Nothing of it is left. OSError."""
    with tempfile.TemporaryFile() as output:
        child = executor.reaper.spawn(
            list(argv), env=without_secrets(executor.environ), stdout=output.fileno(), stderr=subprocess.DEVNULL, helper=True, nice=nice
        )
        try:
            async with asyncio.timeout(seconds):
                code = await asyncio.shield(child.exit)
        except TimeoutError:
            code = -1
        finally:
            child.signal_group(signal.SIGKILL)
        output.seek(0)
        return output.read(most_bytes) if code == 0 else b""
