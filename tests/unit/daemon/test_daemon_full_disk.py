"""A state directory that cannot be written for a while: an exit code survives it, and what is held is kept as soon as it can be."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from aegis_agent import scope
from aegis_agent.daemon.keeper import Launch, SlotKeeper
from aegis_agent.daemon.slotdir import Record, SlotDir, Stage
from aegis_proto.messages import Slot


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


def test_what_is_held_is_kept_when_the_slot_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = SlotKeeper(SlotDir(tmp_path, "0"), Launch(("true",), {}, "n1"), "boot", lambda: None, frozenset)
    slot = Slot("job-a", "uid-1", "default", "w0", 1, 1, era="era-1", deed="deed")
    write = keeper.files.write

    def full(name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeper.files, "write", full)
    keeper.want(slot, 1000)
    record = Record("job-a", "uid-1", "w0", 1)
    assert (keeper.wanted, keeper.files.held(record)) == (slot, None)
    monkeypatch.setattr(keeper.files, "write", write)
    keeper.want(slot, 1000)
    held = keeper.files.held(record)
    assert held is not None and (held.deed, held.era) == ("deed", "era-1")
