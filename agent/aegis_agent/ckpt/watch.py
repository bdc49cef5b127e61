"""News of complete checkpoints while a run goes on: w0 looks at the folder every few seconds, in a thread that a stalled mount may keep.

Evidence of an earlier incarnation never counts: what is there when the run starts is known, and only what is complete since then is news.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aegis_agent.ckpt.layouts import Complete, complete
from aegis_agent.ckpt.tree import DiskTree, Tree
from aegis_agent.companions import Companion

if TYPE_CHECKING:
    from aegis_agent.runner import Run
    from aegis_agent.worker import Worker

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks."""
OPTIONS = ("--save", "--output_dir", "--output-dir", "--save_dir", "--save-dir", "--checkpoint_dir", "--checkpoint-dir", "--ckpt_dir", "--ckpt-dir")
"""What trainings call the folder on their command line (Megatron-LM, Hugging Face, DeepSpeed and torchtitan examples)."""


def find_folder(named: str, command: Sequence[str], cwd: str) -> Path | None:
    """The folder of checkpoints: as the job names it, else as the command does; None when neither does. Relative to `cwd`."""
    if named and named != "auto":
        return Path(cwd) / named
    words = list(command)
    if len(words) >= 3 and words[1] == "-c":
        try:
            words = shlex.split(words[2])
        except ValueError:
            return None
    for i, word in enumerate(words):
        option, sign, value = word.partition("=")
        if option in OPTIONS:
            value = value if sign else words[i + 1] if i + 1 < len(words) else ""
            if value and not value.startswith("-") and "$" not in value:
                return Path(cwd) / value
    return None


class News:
    """Complete checkpoints of one incarnation. The first look only learns what earlier ones left."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int, tuple[int, int, int]]] | None = None

    def look(self, tree: Tree) -> list[Complete]:
        """What has become complete since the look before, lowest step first."""
        found = complete(tree)
        before = self._known
        self._known = (before or set()) | {(one.path, one.step, one.mark) for one in found}
        return [] if before is None else [one for one in found if (one.path, one.step, one.mark) not in before]


class CheckpointWatch(Companion):
    """Of w0: the others save into the same folder, or beside it at the same step."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._news = News()
        self._looking: threading.Thread | None = None
        self._folder: Path | None = None
        self._run: Run | None = None

    def run_started(self, run: Run) -> None:
        spec = self.worker.spec
        self._folder = find_folder(spec.checkpointDir, spec.command, spec.cwd) if self.worker.exec.index == 0 else None
        self._news, self._run, self._looking = News(), run, None
        self._look()

    async def work(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            if self._run is not None and self._run.alive:
                self._look()

    def _look(self) -> None:
        """One look at a time; one that hangs in a dead mount is the last."""
        if self._folder is None or (self._looking is not None and self._looking.is_alive()):
            return
        loop = asyncio.get_running_loop()
        news, tree, run = self._news, DiskTree(self._folder), self._run
        assert run is not None

        def look() -> None:
            found = news.look(tree)
            if found:
                try:
                    loop.call_soon_threadsafe(self._tell, run, found)
                except RuntimeError:
                    pass  # the loop has ended

        self._looking = threading.Thread(target=look, name="checkpoints", daemon=True)
        self._looking.start()

    def _tell(self, run: Run, found: list[Complete]) -> None:
        if run is not self._run or run is not self.worker.exec.run:
            return  # of an earlier incarnation
        progress = self.worker.exec.progress
        for one in found:
            if one.step > progress.checkpoint:
                progress.saved(one.step)
                self.worker.exec.say(f"complete checkpoint: step {one.step} ({one.layout}, {one.path})")
