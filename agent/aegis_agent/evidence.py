"""Evidence of a hang, taken while the run is marked and nothing is stopped: flight records first (they need no stacks), then stacks and NCCL's RAS,
each looked at twice: what moves in between is slow, what does not is stuck.

Beside them the checks that need no free device (storage, devices, runtime, links, processes) look at this machine, the training untouched.

Flight records: one byte into the pipe of each rank, where torch's watchdog listens (TORCH_NCCL_DEBUG_INFO_PIPE_FILE). Stacks: py-spy, which reads
from outside and pauses nothing, where it is installed and may. Writes `stacks.txt` into the log folder of the run; tells the master at once whether
this worker waits in a collective or is elsewhere, and where; sends both looks to the store (BLOBS). A worker without stacks says nothing: absence is
no finding.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aegis_bus.errors import BusError
from aegis_proto.blobs import BlobKind
from aegis_proto.looks import RankStack, RasLooks, Stacks
from aegis_proto.messages import encode
from aegis_proto.phases import OrderPhase

from aegis_agent import blobs, ras
from aegis_agent.checks.registry import HANG, run_round
from aegis_agent.companions import Companion
from aegis_agent.diagnosis import context_of, interpreter_of
from aegis_agent.handover import now_ms
from aegis_agent.looking import output_of
from aegis_agent.procs import Proc, descendants, holds_connection, processes, variable
from aegis_agent.scope import scope_id
from aegis_agent.stacks import Stack, grouped, read

if TYPE_CHECKING:
    from aegis_agent.runner import Run
    from aegis_agent.worker import Worker

log = logging.getLogger(__name__)

TAKE = 10.0
"""Seconds that the stacks of one process may take."""
BETWEEN = 10.0
"""Seconds between two looks: ByteRobust's (SOSP 2025)."""
MOST = 16
"""Processes of one worker whose stacks are taken: its ranks come first."""
MOST_BYTES = 4 << 20
ASKERS = 3
"""Workers that ask NCCL's RAS: each answer tells of the whole job."""
PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


def ask_for_flight_records(prefix: str) -> int:
    """One byte into every pipe `<prefix><rank>.pipe`; how many took it. A pipe without a reader is left alone."""
    folder, name = os.path.split(prefix)
    asked = 0
    for path in Path(folder or ".").glob(f"{name}*.pipe"):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            asked += os.write(fd, b"1")
        except OSError:
            pass
        finally:
            os.close(fd)
    return asked


def find_py_spy(path: str | None = None) -> str | None:
    """py-spy beside our interpreter, or in PATH."""
    return shutil.which("py-spy", path=os.path.dirname(sys.executable)) or shutil.which("py-spy", path=path)


@dataclass(frozen=True, slots=True)
class Looked:
    """One process at one look. `start` with `pid` tells it from another that got its number."""

    pid: int
    start: int
    rank: int
    stack: Stack
    text: str


class Evidence(Companion):
    """Taken once per order to mark; ends with the mark."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._task: asyncio.Task[None] | None = None

    def ordered(self, phase: OrderPhase) -> None:
        if self._task is not None:
            self._task.cancel()
        run = self.worker.exec.run
        if phase is OrderPhase.HANG and run is not None and run.alive:
            self._task = asyncio.create_task(self._take(run))

    async def _take(self, run: Run) -> None:
        worker = self.worker
        environ = {**worker.exec.environ, **run.plan.user}
        if prefix := environ.get(PIPE_VARIABLE) or run.plan.pipe_prefix:
            asked = ask_for_flight_records(prefix)
            worker.exec.say(f"{asked} ranks were asked for their flight records")
        await asyncio.gather(self._stacks(run, environ.get("PATH")), self._ras(run, environ.get(ras.ADDRESS_VARIABLE, "")), self._checks())

    # --- checks ------------------------------------------------------------------------------------------------------------------

    async def _checks(self) -> None:
        """Every result is told; a failed one is a word to people."""
        worker, task = self.worker, self.worker.task
        context = context_of(worker.exec, await interpreter_of(worker.exec), HANG)
        scope = scope_id(task.uid, task.pod, task.attempt, "check-hang")
        results = await run_round(worker.exec.reaper, context, worker.exec.environ, scope=scope)
        for result in results:
            worker.write.noticed(result)
        failed = [f"{result.CheckType} failed: {result.Result}" for result in results if not result.Pass]
        worker.exec.say(f"hang: {len(results)} checks beside the run: {'; '.join(failed) or 'passed'}")

    # --- stacks ------------------------------------------------------------------------------------------------------------------

    async def _stacks(self, run: Run, path: str | None) -> None:
        worker = self.worker
        py_spy = find_py_spy(path)
        if py_spy is None:
            worker.exec.say("no stacks: py-spy is not installed")
            return
        began = time.monotonic()
        first = await self._look(py_spy, run)
        if not first:
            worker.exec.say("no stacks could be taken (this needs the right to trace: SYS_PTRACE, or kernel.yama.ptrace_scope below 2)")
            return
        if worker.exec.state_dir is not None:
            await asyncio.to_thread(_keep, worker.exec.state_dir / "logs" / str(run.plan.incarnation), "".join(look.text for look in first))
        worker.exec.say(f"stacks: {grouped([look.stack for look in first])}")
        ranks = [look.stack for look in first[: max(1, len(run.pids))]]
        away = [stack for stack in ranks if not stack.waiting]
        silence = worker.exec.progress.silence(time.monotonic()) or 0.0
        worker.write.looked(silence, "elsewhere" if away else "waiting", (away or ranks)[0].where)
        await asyncio.sleep(BETWEEN)
        second = await self._look(py_spy, run)
        told = compared(first, second)
        moved = [f"pid {stack.pid} ({stack.where})" for stack in told if stack.moved]
        worker.exec.say(f"stacks {BETWEEN:g} s later: {', '.join(moved)} moved" if moved else f"stacks {BETWEEN:g} s later: none moved")
        body = Stacks(now_ms(), round(time.monotonic() - began, 1), told)
        await self._send("stacks", encode(body), run.plan.incarnation)

    async def _look(self, py_spy: str, run: Run) -> list[Looked]:
        """Ranks first."""
        procs = processes()
        plan = run.plan
        own = {pid: plan.index * plan.nproc + n for n, pid in enumerate(run.pids)} if run.nested is None else {}
        found: list[Looked] = []
        for pid in [pid for pid in (*run.pids, *sorted(descendants(procs, run.pids))) if pid in procs and _is_python(pid)][:MOST]:
            data = await output_of(self.worker.exec, [py_spy, "dump", "--json", "--nonblocking", "--pid", str(pid)], TAKE, MOST_BYTES)
            try:
                stack = read(text) if (text := data.decode(errors="replace")) else None
            except ValueError:
                continue
            if stack is not None:
                shown = f"pid {pid}: {json.dumps(json.loads(text), indent=1)}\n"
                found.append(Looked(pid, procs[pid].start, own.get(pid, rank_of(pid, procs)), stack, shown))
        return found

    # --- NCCL RAS ----------------------------------------------------------------------------------------------------------------

    async def _ras(self, run: Run, text: str) -> None:
        if self.worker.exec.index >= ASKERS:
            return
        began = time.monotonic()
        host, port = ras.address(text)

        def ours(local: int, remote: int) -> bool:
            return holds_connection((*run.pids, *descendants(processes(), run.pids)), local, remote)

        try:
            first = await ras.look(host, port, ours)
            if not first:
                return
            await asyncio.sleep(BETWEEN)
            second = await ras.look(host, port, ours)
        except ras.Foreign:
            self.worker.exec.say(f"NCCL RAS was not asked: {host}:{port} is held by a process that is not of this run ({ras.ADDRESS_VARIABLE} tells)")
            return
        body = RasLooks(now_ms(), round(time.monotonic() - began, 1), tuple(filter(None, (first, second))))
        await self._send("ras", encode(body), run.plan.incarnation)
        self.worker.exec.say("NCCL RAS was asked what it sees")

    async def _send(self, kind: BlobKind, data: bytes, incarnation: int) -> None:
        try:
            await blobs.send(self.worker, kind, data, incarnation, name=kind)
        except (ValueError, BusError) as error:
            log.info("%s not sent: %s", kind, error)


def compared(first: Sequence[Looked], second: Sequence[Looked]) -> tuple[RankStack, ...]:
    """Two looks as they are told: the later one of each process, and whether it moved; who was not seen again is told as it was."""
    before = {(look.pid, look.start): look.stack for look in first}
    after = {(look.pid, look.start): look for look in second}
    moved = {key: before[key].frames != look.stack.frames for key, look in after.items() if key in before}
    every = {**{(look.pid, look.start): look for look in first}, **after}
    return tuple(
        RankStack(look.pid, look.stack.waiting, look.stack.where, look.stack.frames, look.rank, moved.get(key)) for key, look in every.items()
    )


def rank_of(pid: int, procs: dict[int, Proc]) -> int:
    """The rank in the job that this process is, -1 for one below it (a loader, a compiler): they carry the same variable."""
    text = variable(pid, "RANK")
    parent = procs[pid].parent if pid in procs else 0
    return int(text) if text.isdecimal() and len(text) < 8 and variable(parent, "RANK") != text else -1


def _is_python(pid: int) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False


def _keep(folder: Path, text: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stacks.txt").write_text(text)
    except OSError:
        pass  # the evidence was told in short
