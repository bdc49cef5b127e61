"""JSON nested beyond what can be read is unreadable like other damage, and ends nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from aegis_agent.control import ControlSocket
from aegis_agent.daemon.slotdir import Record, SlotDir
from aegis_agent.handover import read_exit, read_status
from aegis_bus.errors import Unreadable
from aegis_bus.jobstore import decode_head

DEEP = b'{"zz":' + b"[" * 5000 + b"]" * 5000 + b"}"


def test_a_head_nested_too_deeply_is_unreadable() -> None:
    with pytest.raises(Unreadable):
        decode_head("x", DEEP)


@pytest.mark.parametrize("data", [DEEP, b'{"uid":"\xff"}', b"\0" * 100, b""])
def test_files_of_an_agent_that_are_damaged_count_as_none(tmp_path: Path, data: bytes) -> None:
    files = SlotDir(tmp_path, "0")
    for name in ("record.json", "exit.json", "status.json"):
        (files.path / name).write_bytes(data)
    assert files.load() is None
    assert files.word(Record("j", "u", "w0", 1)).text == ""
    assert read_exit(files.path) is None and read_status(files.path) is None


async def test_a_request_to_the_control_socket_nested_too_deeply_is_answered() -> None:
    control = ControlSocket.__new__(ControlSocket)
    assert (await control._answer(DEEP, 1))["ok"] is False
