"""What a slot said before is not obeyed again behind a restore; a server whose clock was set back is."""

from __future__ import annotations

from pathlib import Path

from aegis_agent.daemon.keeper import Launch, SlotKeeper
from aegis_agent.daemon.slotdir import SlotDir
from aegis_proto.messages import Slot

HOUR = 3600_000


def slot(attempt: int) -> Slot:
    return Slot("job-a", "uid-1", "default", "w0", attempt, 1)


def keeper_at(tmp_path: Path, since: int, seq: int) -> SlotKeeper:
    keeper = SlotKeeper(SlotDir(tmp_path, "0"), Launch(("true",), {}, "n1"), "boot", lambda: None, frozenset)
    keeper.want(slot(2), since, seq)
    return keeper


def test_a_slot_of_a_restored_store_is_not_obeyed(tmp_path: Path) -> None:
    keeper = keeper_at(tmp_path, 10 * HOUR, 900)
    keeper.want(slot(1), 9 * HOUR, 700)
    assert keeper.wanted == slot(2)


def test_a_server_whose_clock_was_set_back_is_obeyed(tmp_path: Path) -> None:
    keeper = keeper_at(tmp_path, 10 * HOUR, 900)
    keeper.want(slot(3), 9 * HOUR, 901)
    assert keeper.wanted == slot(3)


def test_a_store_that_was_made_anew_is_obeyed(tmp_path: Path) -> None:
    keeper = keeper_at(tmp_path, 10 * HOUR, 900)
    keeper.want(slot(3), 11 * HOUR, 4)
    assert keeper.wanted == slot(3)
