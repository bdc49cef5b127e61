"""A node of an allocation whose first node is lost, or only seems to be: what it says to the others, and the code it leaves with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aegis_bus.settings import SlurmSettings
from aegis_cli.slurm import control, member
from aegis_cli.slurm.folder import Endpoint, Folder
from aegis_cli.slurm.member import Member
from aegis_cli.slurm.step import Step

ENDPOINT = Endpoint(0, ("tls://127.0.0.1:1",), "", "", {"a": "a", "b": "b", "c": "c"}, {}, "a")


@pytest.fixture
def deputy(tmp_path: Path) -> Member:
    here = Step("7", "0", 1, "b", "a,b,c", 0, str(tmp_path))
    folder = Folder.of(here)
    folder.make()
    return Member(here, folder, tmp_path / "base", max_retry=3, settings=SlurmSettings(owner_silent=10.0), say=print)


def test_a_word_of_having_left_is_taken_back_by_who_is_in_touch_again_or_works(deputy: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    works = False
    monkeypatch.setattr(deputy, "_works", lambda: works)
    heard = deputy._heard
    assert not deputy._given_up(ENDPOINT, heard + 5) and deputy.folder.left() == 0
    assert not deputy._given_up(ENDPOINT, heard + 11) and deputy.folder.left() == 1  # it waits for the third
    deputy._heard = heard + 20
    assert not deputy._given_up(ENDPOINT, heard + 21) and deputy.folder.left() == 0

    assert not deputy._given_up(ENDPOINT, heard + 31) and deputy.folder.left() == 1
    works = True
    assert not deputy._given_up(ENDPOINT, heard + 32) and deputy.folder.left() == 0

    works = False
    assert not deputy._given_up(ENDPOINT, heard + 33)
    deputy.noticed.set()  # who waits for the save counts only those who say so after the notice
    assert not deputy._given_up(ENDPOINT, heard + 34) and deputy.folder.left() == 0
    deputy.noticed.clear()

    assert not deputy._given_up(ENDPOINT, heard + 35)
    assert not deputy._given_up(ENDPOINT, heard + 34 + member.TOLD_WAIT)  # counted anew each time
    deputy.folder.write_left(2)
    assert deputy._given_up(ENDPOINT, heard + 36)


@pytest.mark.parametrize("damage", ["ledger", "folder", "slurm"])
def test_a_deputy_that_can_keep_nothing_leaves_the_requeue_to_slurm(deputy: Member, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(name: str) -> dict[str, str]:
        raise control.SlurmRefused("slurmctld is away")

    monkeypatch.setattr(control, "node", refuses if damage == "slurm" else lambda name: {"State": "DOWN"})
    if damage == "ledger":
        (deputy.folder.path / "ledger.json").write_text("{")
    elif damage == "folder":
        deputy.folder.path.rmdir()
    assert asyncio.run(deputy._abandoned(ENDPOINT)) == 75
    if damage == "folder":
        deputy._write_left()
