"""What a daemon knows of its slot is told also while its state directory cannot be written, and is kept as soon as it can."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from aegis_agent import scope
from aegis_agent.daemon.keeper import START_TRIES, Launch, SlotKeeper
from aegis_agent.daemon.reconcile import Action
from aegis_agent.daemon.slotdir import Record, SlotDir, Stage
from aegis_proto.messages import Slot


class FullDisk:
    """The folder of a slot on a disk without room, until `room`."""

    def __init__(self, files: SlotDir, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = False
        write = files.write

        def refuse(name: str, data: bytes) -> None:
            if not self.room:
                raise OSError(28, "No space left on device")
            write(name, data)

        monkeypatch.setattr(files, "write", refuse)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def keeper_of(tmp_path: Path, told: list[str]) -> SlotKeeper:
    return SlotKeeper(SlotDir(tmp_path, "0"), Launch(("true",), {}, "n1"), "boot", lambda: told.append("changed"), frozenset)


def record_of(process: subprocess.Popen[bytes]) -> Record:
    return Record("job", "uid-1", "w0", 1, Stage.RUNNING, process.pid, scope.start_ticks(process.pid) or 0, "boot")


async def test_an_end_is_told_while_the_disk_is_full_and_kept_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    told: list[str] = []
    keeper = keeper_of(tmp_path, told)
    keeper.record = record = keeper.files.save(record_of(sleeper))
    keeper._process = sleeper
    disk = FullDisk(keeper.files, monkeypatch)
    sleeper.kill()
    await keeper._perform(Action.SETTLE, None)
    assert told and (keeper.status.state, keeper.status.signal, keeper.status.clean) == ("gone", 9, True)
    await keeper._perform(Action.HOLD, None)
    assert keeper.files.load() == record, "nothing could be kept"
    disk.room = True
    await keeper._perform(Action.HOLD, None)
    assert keeper.files.load() == keeper.record


async def test_a_daemon_that_starts_on_a_full_disk_takes_over_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    keeper = keeper_of(tmp_path, [])
    keeper.files.save(record_of(sleeper))
    FullDisk(keeper.files, monkeypatch)
    keeper.adopt()
    assert (keeper.status.state, keeper.agent_pid) == ("running", sleeper.pid)
    keeper.close()


async def test_a_worker_that_went_plain_is_told_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    told: list[str] = []
    keeper = keeper_of(tmp_path, told)
    keeper.record = keeper.files.save(record_of(sleeper))
    (keeper.files.path / "status.json").write_text('{"uid":"uid-1","pod":"w0","attempt":1,"plain":true}')
    FullDisk(keeper.files, monkeypatch)
    await keeper._perform(Action.HOLD, None)
    assert told and keeper.status.plain


def test_what_is_held_is_kept_when_the_slot_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = keeper_of(tmp_path, [])
    slot = Slot("job-a", "uid-1", "default", "w0", 1, 1, era="era-1", deed="deed")
    disk = FullDisk(keeper.files, monkeypatch)
    keeper.want(slot, 1000, 1)
    record = Record("job-a", "uid-1", "w0", 1)
    assert (keeper.wanted, keeper.files.held(record)) == (slot, None)
    disk.room = True
    keeper.want(slot, 1000, 1)
    held = keeper.files.held(record)
    assert held is not None and (held.deed, held.era) == ("deed", "era-1")


async def test_a_worker_that_cannot_be_started_for_want_of_room_is_over_here_after_some_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    keeper = keeper_of(tmp_path, told)
    FullDisk(keeper.files, monkeypatch)
    slot = Slot("job-a", "uid-1", "default", "w0", 1, 1)
    keeper.want(slot, 1000, 1)
    for _ in range(START_TRIES - 1):
        with pytest.raises(OSError, match="No space left"):
            await keeper._perform(Action.START, slot)
        assert not told
    await keeper._perform(Action.START, slot)
    status = keeper.status
    assert told and (status.state, status.pod, status.clean, status.notStarted) == ("gone", "w0", True, True)
    assert status.message == "the agent could not be started: [Errno 28] No space left on device"
    another = Slot("job-b", "uid-2", "default", "w0", 1, 1)
    with pytest.raises(OSError, match="No space left"):  # the next one has its own tries
        await keeper._perform(Action.START, another)
