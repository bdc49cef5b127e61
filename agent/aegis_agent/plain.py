"""A command that nobody manages: run, reaped, ended, left with its own exit code, as a container's entry point should. Never loads the bus."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping

from aegis_agent.executor import Executor, last_word
from aegis_agent.handover import NOT_FOUND, Status, WorkerTask, now_ms
from aegis_agent.nested import unknown_word
from aegis_agent.reasons import Ending, not_found_message


async def run_bare(task: WorkerTask, environ: Mapping[str, str]) -> int:
    """Run the command of `task`; its exit code (128+n for signal n).

    The first SIGTERM or SIGINT is forwarded as it is, and the command has `preemptGrace` seconds; the second one kills.
    """
    bare = task.spec.nprocPerNode == 1
    executor = Executor(task, environ, light=bare)
    signals = 0
    stopping: set[asyncio.Task[object]] = set()

    def status() -> Status:
        run = executor.run
        alive = run is not None and run.alive
        return Status(pid=os.getpid(), boot="", pod=task.pod, plain=True, running=alive, step=executor.progress.step, why="not managed", at=now_ms())

    def on_signal(number: int) -> None:
        nonlocal signals
        signals += 1
        if executor.run is None:
            return
        if signals == 1 and number == signal.SIGINT:
            executor.run.send_signal(number)  # the command hears an interrupt as an interrupt
        else:
            stopping.add(asyncio.ensure_future(executor.run.stop(task.spec.preemptGrace if signals == 1 else 0.0)))

    await executor.open(on_signal, status)
    run = executor.start_plain()
    executor.write_status(status())
    result = await run.result
    await run.stop()
    await executor.close(last_word(task, result.code, reason="exited", run=run, plain=True))
    if result.ending is not None and (hint := _hint(task, environ, result.ending)):
        executor.err.write(f"aegis-agent: {hint}\n".encode())
        executor.err.flush(1.0)
    return result.code


def _hint(task: WorkerTask, environ: Mapping[str, str], end: Ending) -> str:
    """E111 for a command that is not there; the shell's own complaint has gone past us."""
    if end.message.startswith("E111"):
        return end.message
    name = unknown_word(task.spec.command, environ.get("PATH", "")) if end.code == NOT_FOUND and not end.signal else ""
    return not_found_message(task.pod, task.node, name, NOT_FOUND, environ) if name else ""
