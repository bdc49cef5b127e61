"""The history on disk: what a crash left half is cut off, another era begins anew, and what is old is forgotten."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aegis_lemon.history import read
from aegis_lemon.watch.collector import Memory, Run
from aegis_lemon.watch.kept import Files

NOTHING = b"{}"


def job(name: str, start: float) -> dict[str, Any]:
    return Run(name, 0, start, "n1", end=start + 10, state="completed").row(["n1"])


def event(at: float, kind: str = "ticket", end: float | str = "") -> dict[str, Any]:
    return {"time": at, "node": "n1", "kind": kind, "end": end, "value": "", "job": ""}


def test_rows_behind_the_last_note_are_cut_off_and_heard_again(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.open("era")
    memory = Memory({"j": Run("j", 1, 5.0, "n1")}, out={"n2": (1.0, 2)})
    files.add(7, msgspec.json.encode(memory), [job("a", 1), job("b", 2)], [event(3)])
    with (tmp_path / "jobs.csv").open("a") as out:
        out.write("c-0,1,2,n")  # killed while it wrote
    again = Files(tmp_path).open("era")
    assert (again.seq, again.known()) == (7, memory)
    assert read(tmp_path).rows == {"jobs": 2, "events": 1, "nodes": 0}
    assert not read(tmp_path).problems


def test_a_file_that_an_earlier_version_began_keeps_its_columns(tmp_path: Path) -> None:
    began = "job,start,end,nodes,state,failure,blame,user,family,excluded\r\n"
    (tmp_path / "jobs.csv").write_text(began, newline="")
    (tmp_path / "kept.json").write_bytes(msgspec.json.encode({"era": "era", "seq": 3, "memory": {}, "sizes": {"jobs": len(began)}, "v": 1}))
    files = Files(tmp_path)
    assert files.open("era").seq == 3
    files.add(4, NOTHING, [{**job("a", 1), "cause": "gpu_hw"}], [])
    history = read(tmp_path)
    assert (history.rows["jobs"], history.left_out) == (1, 0)


def test_another_era_begins_anew_and_a_few_of_before_are_kept(tmp_path: Path) -> None:
    for n in range(7):
        files = Files(tmp_path)
        assert files.open(f"era-{n}").seq == 0
        files.add(7, NOTHING, [job("a", 1)], [])
    assert sorted(path.name for path in tmp_path.glob("old-*")) == ["old-3", "old-4", "old-5", "old-6"]
    (tmp_path / "kept.json").write_bytes(b"{broken")
    assert Files(tmp_path).open("era-6").seq == 0
    assert (tmp_path / "jobs.csv").read_text().count("\n") == 1


def test_what_was_over_long_ago_is_forgotten_and_what_lasts_is_not(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.open("era")
    files.add(1, NOTHING, [job("old", 10), job("new", 2000)], [event(10), event(10, "out", 3000.0), event(2000)])
    assert files.forget(1000) == 2
    files.add(2, NOTHING, [job("newer", 3000)], [])
    assert read(tmp_path).rows == {"jobs": 2, "events": 2, "nodes": 0}
    assert Files(tmp_path).open("era").seq == 2 and not read(tmp_path).problems


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_what_a_full_disk_kept_from_being_noted_is_written_once(tmp_path: Path, fails: str) -> None:
    files = Files(tmp_path)
    files.open("era")
    files.add(1, NOTHING, [job("a", 1)], [])

    def full(*_: object) -> None:
        with (tmp_path / "jobs.csv").open("a") as out:
            out.write("half of a l")
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, fails, full)
        with pytest.raises(OSError, match="No space"):
            files.add(2, NOTHING, [job("b", 2)], [event(2)])
    assert files.kept.seq == 1
    files.add(2, NOTHING, [job("b", 2)], [event(2)])
    assert read(tmp_path).rows == {"jobs": 2, "events": 1, "nodes": 0} and not read(tmp_path).problems
    assert Files(tmp_path).open("era").sizes == files.kept.sizes
