"""When a run of the job has failed, here or elsewhere: one snapshot of this machine for it, to the store (stream BLOBS). Nothing waits for it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import msgspec
from aegis_bus.errors import BusError
from aegis_proto import subjects
from aegis_proto.blobs import pieces
from aegis_proto.messages import encode
from aegis_proto.phases import OrderPhase

from aegis_agent.companions import Companion
from aegis_agent.env import without_secrets
from aegis_agent.handover import now_ms

if TYPE_CHECKING:
    from aegis_agent.runner import Run
    from aegis_agent.worker import Worker

log = logging.getLogger(__name__)

TAKE = 15.0
"""Seconds that a snapshot may take."""
MOST_BYTES = 256 << 10
AFTER = frozenset({OrderPhase.STOP, OrderPhase.TROUBLESHOOT, OrderPhase.HANG})
"""Orders that follow a failure, or a suspicion of one."""


class FirstLayer(Companion):
    """At most one snapshot per run of the command."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._taken = -1
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def ordered(self, phase: OrderPhase) -> None:
        run = self.worker.exec.run
        if phase in AFTER and run is not None:
            self._once(run.plan.incarnation)

    def run_ended(self, run: Run) -> None:
        if not run.result.cancelled() and run.result.result().ending is not None:
            self._once(run.plan.incarnation)

    def _once(self, incarnation: int) -> None:
        if incarnation <= self._taken:
            return
        self._taken = incarnation
        task = asyncio.create_task(self._take(incarnation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, incarnation: int) -> None:
        worker, task = self.worker, self.worker.task
        try:
            data = await self._ask()
            if not data:
                return
            ident = f"s{secrets.token_hex(4)}"
            sent = pieces(data, "snapshot", uid=task.uid, attempt=task.attempt, incarnation=incarnation, name=task.node)
            await worker.uplink.wait_connected()
            for piece in sent:  # dated when it goes, so that the store can tell this machine's clock
                body = encode(msgspec.structs.replace(piece, at=now_ms()))
                await worker.uplink.publish(subjects.blob(task.job, task.pod, ident), body, f"{ident}-{piece.index}-{worker.boot}")
        except (OSError, ValueError, BusError) as error:
            log.info("no snapshot: %s", error)

    async def _ask(self) -> bytes:
        """The snapshot as JSON, empty when it could not be taken in time."""
        with tempfile.TemporaryFile() as output:
            child = self.worker.exec.reaper.spawn(
                [sys.executable, "-m", "aegis_agent.snapshot"],
                env=without_secrets(self.worker.exec.environ),
                stdout=output.fileno(),
                stderr=subprocess.DEVNULL,
                helper=True,
            )
            try:
                async with asyncio.timeout(TAKE):
                    code = await asyncio.shield(child.exit)
            except TimeoutError:
                code = -1
            finally:
                child.signal_group(signal.SIGKILL)
            output.seek(0)
            return output.read(MOST_BYTES) if code == 0 else b""
