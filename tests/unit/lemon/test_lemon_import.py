"""Importers: Slurm's own output of a real cluster, host lists, and LANL's failure data."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest
from aegis_lemon.history import HistoryError, lanl, observe, read, slurm
from aegis_lemon.history.rows import Imported
from aegis_proto.hostlist import HostlistError, expand
from hypothesis import given
from hypothesis import strategies as st

DATA = Path(os.environ.get("AEGIS_SHARED_DATA", Path(__file__).resolve().parents[3].parent / "shared/data"))
needs_data = pytest.mark.skipif(not (DATA / "slurm").is_dir(), reason=f"third-party samples are not in {DATA}")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ["node1"]),
        ("node[1-3,7]", ["node1", "node2", "node3", "node7"]),
        ("a[08-11],b", ["a08", "a09", "a10", "a11", "b"]),
        ("r[1-2]n[01-02]-ib", ["r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"]),
        ("x,x,x[1]", ["x", "x1"]),
        ("", []),
    ],
)
def test_host_lists_expand_as_slurm_writes_them(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["a[1-2", "a]1[", "a[[1]]", "a[x-y]", "a[3-1]", "a[1-9999999]", "a[1-900]b[1-900]"])
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(HostlistError, match="host list"):
        expand(text)


@given(st.text("a1[],-0 ", max_size=30))
def test_any_text_is_a_host_list_or_refused(text: str) -> None:
    try:
        names = expand(text)
    except HostlistError:
        return
    assert len(set(names)) == len(names)


@needs_data
def test_a_real_clusters_accounting_comes_in_whole(tmp_path: Path) -> None:
    folder = DATA / "slurm"
    found = slurm.convert(
        folder / "sacct-requeued.psv", folder / "sacctmgr-events.psv", folder / "sinfo-R-down.txt", folder / "scontrol-job-exclude.txt"
    )  # fmt: skip
    assert found.problems == []
    assert any("2 jobs never started" in note for note in found.notes)
    found.write(tmp_path)
    history = read(tmp_path)
    assert history.left_out == 0
    infra = history.rows_of("SELECT j.job, n.name FROM jobs j JOIN nodes n ON n.node = j.blame WHERE failure = 'infra' ORDER BY j.job")
    assert dict(infra)["16"] == "node4" and dict(infra)["21"] == "node1"  # NODE_FAIL, and the node that stopped responding
    seen = observe(history)
    assert seen.signals["xid_cnt"].tolist() == [1, 1, 0, 0]  # from the reasons of the drains
    assert seen.signals["excl_jobid_count"].sum() >= 1


@needs_data
def test_steps_are_left_out_and_said(tmp_path: Path) -> None:
    found = Imported()
    slurm.read_sacct(DATA / "slurm/sacct-dup-steps.psv", found)
    assert found.problems == [] and any("steps left out" in note for note in found.notes)
    assert all("." not in job["job"] for job in found.jobs)


def test_rows_that_slurm_would_not_write_are_shown_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "s.psv").write_text(
        "JobID|State|NodeList|Start|End\n1|COMPLETED|n[1-2]|2026-01-01T00:00:00|2026-01-01T01:00:00\n2|COMPLETED|n[1-|2026-01-01T00:00:00|Unknown\n"
        "3|MELTED|n1|2026-01-01T00:00:00|Unknown\n4|FAILED|n1\n5|PENDING|None assigned|Unknown|Unknown\n"
        "6|CANCELLED by 7|n1|2026-01-01T00:00:00|Unknown\n7|FAILED|n1|2026-01-01T02:00:00|2026-01-01T01:00:00\n"
        f"8|FAILED|{'n' * 2**24}x|2026-01-01T02:00:00|Unknown\n9|FAILED|n1|soon|Unknown\n10|FAILED|n1|0001-01-01T00:00:00|Unknown\n"
    )
    found = slurm.convert(tmp_path / "s.psv")
    assert [job["job"] for job in found.jobs] == ["1", "6"]
    assert [(problem.line, problem.text.split(":")[0]) for problem in found.problems] == [
        (3, 'host list "n[1-"'),
        (4, 'state "MELTED" is not known'),
        (5, "3 cells, the header has 5"),
        (8, "the clock went backwards"),
        (9, "field larger than field limit (16777216)"),
        (10, 'time "soon"'),
        (11, 'time "0001-01-01T00'),
    ]
    assert slurm.convert(tmp_path / "s.psv").write(tmp_path) == {"jobs": 2, "events": 0, "nodes": 0}


def test_a_file_of_another_command_is_refused_with_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "s.psv").write_text("JobID|Name\n1|a\n")
    with pytest.raises(HistoryError, match="sacct -aPXD"):
        slurm.convert(tmp_path / "s.psv")
    with pytest.raises(HistoryError, match="no file"):
        slurm.convert(tmp_path / "none.psv")


def test_a_planned_reason_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "e.psv").write_text(
        "NodeName|TimeStart|TimeEnd|State|Reason\nn1|2026-01-01T00:00:00|Unknown|DOWN|maintenance of the rack\n"
        "n1|2026-01-02T00:00:00|Unknown|DOWN*|Not responding\nn1|2026-01-02T00:00:00|2026-01-01T00:00:00|DOWN*|Not responding\n"
    )
    found = slurm.convert(events=tmp_path / "e.psv")
    assert [event["kind"] for event in found.events] == ["out", "outage"]
    assert [str(problem) for problem in found.problems] == ["e.psv line 4: the clock went backwards: ends 86400 s before it starts"]


def test_a_folder_that_holds_another_import_says_what_stays(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job,start,end,nodes\na,0,9,n1\n")
    found = Imported(events=[{"time": 1.0, "node": "n1", "kind": "failure"}])
    found.write(tmp_path)
    assert found.notes == [f"{tmp_path / 'jobs.csv'} was there before and stays"]
    nothing = Imported()
    assert nothing.write(tmp_path / "new") == {"jobs": 0, "events": 0, "nodes": 0}
    assert nothing.notes == ["nothing that can be used: no file is written"]


@needs_data
def test_lanl_system_20_has_the_outages_of_its_description(tmp_path: Path) -> None:
    found = lanl.convert(DATA / "traces/lanl_failures_1996_2005.csv.xz", "20", nodes=512)
    assert len(found.events) + len(found.problems) == 2478
    assert len(found.nodes) == 512 and sum(node["role"] == "first" for node in found.nodes) == 16
    found.write(tmp_path)
    history = read(tmp_path)
    days = (history.last - history.first) / 86_400
    assert history.rows["events"] / (512 * days) * 1000 == pytest.approx(3.56, abs=0.05)


def test_lanl_rows_that_cannot_be_are_shown(tmp_path: Path) -> None:
    header = "System,nodenumz,Prob Started,Prob Fixed,Facilities,Hardware,Human Error,Network,Undetermined,Software\n"
    rows = "2,0,6/21/2005 10:54,6/21/2005 11:00,,CPU,,,,\n2,x,6/21/2005 10:54,,,,,,,\n2,1,6/21/2005 10:54,6/20/2005 11:00,,,,,,\n3,1,,,,,,,,\n"
    rows += "2,-4,6/21/2005 10:54,,,,,,,\n2,99999999,6/21/2005 10:54,,,,,,,\n"
    (tmp_path / "l.csv").write_text(header + rows)
    found = lanl.convert(tmp_path / "l.csv", "2")
    assert [event["value"] for event in found.events] == ["Hardware"]
    assert [problem.line for problem in found.problems] == [3, 4, 6, 7]
    assert lanl.convert(tmp_path / "l.csv", "9").notes == ["no outage of system 9"]


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    whole = lzma.compress(b"System,nodenumz,Prob Started,Prob Fixed,Facilities,Hardware,Human Error,Network,Undetermined,Software\n" * 9)
    for number, part in enumerate((whole[:-20], whole[:12] + bytes(9) + whole[21:])):
        (tmp_path / f"{number}.csv.xz").write_bytes(part)
        with pytest.raises(HistoryError, match=f"{number}.csv.xz"):
            lanl.convert(tmp_path / f"{number}.csv.xz", "2")
