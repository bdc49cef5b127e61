"""Evidence of a hang, taken while the run is marked and nothing is stopped: flight records first (they need no stacks), then stacks, grouped.

Flight records: one byte into the pipe of each rank, where torch's watchdog listens (TORCH_NCCL_DEBUG_INFO_PIPE_FILE). Stacks: py-spy, which reads
from outside and pauses nothing, where it is installed and may. Writes `stacks.txt` into the log folder of the run; tells the master whether this
worker waits in a collective or is elsewhere, and where. A worker without stacks says nothing: absence is no finding.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from aegis_proto.phases import OrderPhase

from aegis_agent.companions import Companion
from aegis_agent.env import without_secrets
from aegis_agent.procs import descendants, processes

if TYPE_CHECKING:
    from aegis_agent.runner import Run
    from aegis_agent.worker import Worker

TAKE = 10.0
"""Seconds that the stacks of one process may take."""
MOST = 16
"""Processes of one worker whose stacks are taken: its ranks come first."""
MOST_BYTES = 4 << 20
DEPTH = 8
"""Innermost frames of a thread that say what it waits for."""
COLLECTIVE_FILES = ("torch/distributed/", "torch/nn/parallel/distributed.py", "deepspeed/comm/", "horovod/")
"""Where the python side of a collective lies. A frame here means that this rank waits for the others."""
COLLECTIVE_NAMES = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all", "recv", "send", "wait_tensor"})
PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


class Frame(msgspec.Struct, frozen=True):
    name: str
    filename: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        return f"{self.name} ({self.filename.rsplit('/', 1)[-1]}:{self.line})"


class Thread(msgspec.Struct, frozen=True):
    """One thread as `py-spy dump --json` tells it, innermost frame first."""

    frames: list[Frame] = []
    thread_name: str | None = None
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Stack:
    """The main thread of one process. `waiting`: inside of a collective; `where`: innermost frame of the user's own code, else innermost of all."""

    waiting: bool
    where: str


def read(text: str) -> Stack | None:
    """The main thread in the output of `py-spy dump --json`, None when there is none. ValueError when it is not that."""
    try:
        threads = msgspec.json.decode(text, type=list[Thread])
    except msgspec.MsgspecError as error:
        raise ValueError(f"not the output of py-spy dump --json: {error}") from None
    main = next((thread for thread in threads if thread.thread_name == "MainThread"), threads[0] if threads else None)
    if main is None or not main.frames:
        return None
    inner = main.frames[:DEPTH]
    waiting = any(part in frame.filename for frame in inner for part in COLLECTIVE_FILES) or any(frame.name in COLLECTIVE_NAMES for frame in inner)
    own = next((frame for frame in main.frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename), main.frames[0])
    return Stack(waiting, own.where)


def grouped(stacks: Sequence[Stack]) -> str:
    """`7x wait in train (train.py:30); 1x load (data.py:9)`, the largest group first."""
    groups = Counter((stack.waiting, stack.where) for stack in stacks)
    return "; ".join(f"{count}x {'waits in ' if waiting else ''}{where}" for (waiting, where), count in groups.most_common())


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
        py_spy = find_py_spy(environ.get("PATH"))
        if py_spy is None:
            worker.exec.say("no stacks: py-spy is not installed")
            return
        procs = processes()
        pids = [*run.pids, *sorted(descendants(procs, run.pids))]
        stacks: list[Stack] = []
        texts: list[str] = []
        for pid in [pid for pid in pids if _is_python(pid)][:MOST]:
            text = await self._dump(py_spy, pid)
            try:
                stack = read(text) if text else None
            except ValueError:
                continue
            if stack is not None:
                stacks.append(stack)
                texts.append(f"pid {pid}: {json.dumps(json.loads(text), indent=1)}\n")
        if not stacks:
            worker.exec.say("no stacks could be taken (this needs the right to trace: SYS_PTRACE, or kernel.yama.ptrace_scope below 2)")
            return
        if worker.exec.state_dir is not None:
            await asyncio.to_thread(_keep, worker.exec.state_dir / "logs" / str(run.plan.incarnation), "".join(texts))
        worker.exec.say(f"stacks: {grouped(stacks)}")
        ranks = stacks[: max(1, len(run.pids))]
        away = [stack for stack in ranks if not stack.waiting]
        silence = worker.exec.progress.silence(time.monotonic()) or 0.0
        worker.write.looked(silence, "elsewhere" if away else "waiting", (away or ranks)[0].where)

    async def _dump(self, py_spy: str, pid: int) -> str:
        """The stacks of one process as JSON, "" when they may not or cannot be read."""
        with tempfile.TemporaryFile() as output:
            child = self.worker.exec.reaper.spawn(
                [py_spy, "dump", "--json", "--nonblocking", "--pid", str(pid)],
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
            return output.read(MOST_BYTES).decode(errors="replace") if code == 0 else ""


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
