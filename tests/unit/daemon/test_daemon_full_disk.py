"""An exit code survives a state directory that cannot be written for a while."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from aegis_agent import scope
from aegis_agent.daemon.keeper import Launch, SlotKeeper
from aegis_agent.daemon.slotdir import Record, SlotDir, Stage


async def test_the_exit_code_is_told_after_the_disk_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = SlotKeeper(SlotDir(tmp_path, "0"), Launch(("true",), {}, "n1"), "boot", lambda: None, frozenset)
    process = subprocess.Popen(["sleep", "0.2"])  # noqa: ASYNC220
    start = scope.start_ticks(process.pid) or 0
    keeper.record = record = keeper.files.save(Record("job", "uid-1", "w0", 1, Stage.RUNNING, process.pid, start, "boot"))
    keeper._process = process
    process.wait()
    save, tries = keeper.files.save, []

    def full(new: Record) -> Any:
        tries.append(new)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        return save(new)

    monkeypatch.setattr(keeper.files, "save", full)
    with pytest.raises(OSError):
        await keeper._settle(record)
    await keeper._settle(record)
    assert keeper.record is not None
    assert (keeper.record.stage, keeper.record.exitCode) == (Stage.GONE, 0)
