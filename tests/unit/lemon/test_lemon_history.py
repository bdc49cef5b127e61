"""History: the documented format, rows that are broken, and what is counted from the rest."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pytest
from aegis_lemon.detect import rank
from aegis_lemon.history import History, HistoryError, observe, read
from aegis_lemon.history.coalesce import Failure, episodes, merge_outages, share_common
from hypothesis import given, settings
from hypothesis import strategies as st

JOBS = "job,start,end,nodes,state,blame,user,family,excluded\n"
EVENTS = "time,node,kind,end,value,job\n"
T0 = 1_767_225_600  # 2026-01-01


def put(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def texts(history: History) -> list[str]:
    return [str(problem) for problem in history.problems]


def test_times_are_seconds_or_iso_with_or_without_a_zone(tmp_path: Path) -> None:
    rows = f"a,{T0},{T0 + 3600},n1\nb,2026-01-01T01:00:00Z,2026-01-01 03:00:00+01:00,n1\nc,2026-01-01,2026-01-01T12:00:00.5,n1\n"
    history = read(put(tmp_path, jobs="job,start,end,nodes\n" + rows))
    assert history.left_out == 0
    assert history.rows_of("SELECT job, s, e FROM jobs ORDER BY job") == [
        ("a", T0, T0 + 3600),
        ("b", T0 + 3600, T0 + 7200),
        ("c", T0, T0 + 43200.5),
    ]


def test_broken_rows_are_counted_and_shown_with_their_lines(tmp_path: Path) -> None:
    rows = [
        "ok,2026-01-01,2026-01-02,n1;n2,completed,,,,",
        "x1,soon,2026-01-02,n1,completed,,,,",
        "x2,2026-01-02,2026-01-01,n1,completed,,,,",
        "x3,2026-01-01,2026-01-02,,completed,,,,",
        "x4,2026-01-01,2026-01-02,n1,exploded,,,,",
        "x5,2026-01-01,2026-01-02,n1,node_fail,n9,,,",
        "x6,2026-01-01,2026-01-02,n1",
        "",
        '"x7\nx",2026-01-01,1e30,n1,completed,,,,',
        ",2026-01-01,2026-01-02,n1,completed,,,,",
        "ok,2026-01-01,2026-01-02,n1;n2,completed,,,,",
    ]
    history = read(put(tmp_path, jobs=JOBS + "\n".join(rows) + "\n"))
    assert (history.rows["jobs"], history.left_out) == (1, 9)
    assert texts(history) == [
        'jobs.csv line 3: start "soon": expected seconds since 1970 or ISO 8601',
        "jobs.csv line 4: the clock went backwards: ends 86400.0 s before it starts",
        "jobs.csv line 5: no nodes",
        'jobs.csv line 6: state "exploded" is not known',
        "jobs.csv line 7: blames n9, which is not among its nodes",
        "jobs.csv line 8: 4 cells, the header has 9",
        'jobs.csv line 10: end "1e30": expected seconds since 1970 or ISO 8601, or empty while it runs',
        "jobs.csv line 12: no job id",
        "jobs.csv line 13: repeats an earlier row",
    ]


def test_broken_events_are_shown_too(tmp_path: Path) -> None:
    bad = ["2026-01-01,n1,xid,,many,", "2026-01-01,n1,sneeze,,,", "2026-01-02,n1,out,2026-01-01,,", "2026-01-01,n1,exclude,,,", ",n1,ticket,,,"]
    rows = "\n".join(["2026-01-01,n1,xid,,79,", *bad, ""])
    history = read(put(tmp_path, events=EVENTS + rows))
    assert history.rows["events"] == 1
    assert [problem.line for problem in history.problems] == [3, 4, 5, 6, 7]
    assert "clock went backwards" in texts(history)[2]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "expected jobs.csv"),
        ({"jobs": ""}, "no column job, start, end, nodes"),
        ({"jobs": "job,start,nodes\n"}, "no column end"),
        ({"jobs": JOBS}, "holds no job and no event"),
        ({"jobs": JOBS + "a,b,c,d,,,,,\n"}, "1 rows left out: jobs.csv line 2"),
        ({"jobs": "job,job,start,end,nodes\n"}, "more than once"),
    ],
)
def test_a_history_that_gives_no_answer_says_why(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(HistoryError, match=said):
        read(put(tmp_path, **files))
    with pytest.raises(HistoryError, match="no file or folder"):
        read(tmp_path / "nowhere")


def test_unknown_nodes_and_columns_are_named_and_kept(tmp_path: Path) -> None:
    history = read(put(tmp_path, jobs="job,start,end,nodes,mood\na,0,9,n1;n7,good\n", nodes="node,role\nn1,head\nn2,\n"))
    assert history.names == ["n1", "n2", "n7"]
    assert any("1 nodes are not in nodes.csv: n7" in note for note in history.notes)
    assert any("mood" in note for note in history.notes)
    assert observe(history).role == ["head", "", ""]


def test_overlapping_outages_count_as_one(tmp_path: Path) -> None:
    rows = "0,n1,out,3600,,\n1800,n1,outage,7200,,\n9000,n1,out,,,\n"
    history = read(put(tmp_path, events=EVENTS + rows))
    assert any("1 outages begin while their node is out already" in note for note in history.notes)
    assert observe(history).signals["out_count"].tolist() == [2]


def test_parquet_reads_as_csv_does(tmp_path: Path) -> None:
    first = "SELECT 'a' job, TIMESTAMP '2026-01-01' start, TIMESTAMP '2026-01-02' \"end\", ['n1', 'n2'] nodes"
    rows = f"{first} UNION ALL SELECT 'b', TIMESTAMP '2026-01-03', NULL, ['n1']"
    duckdb.sql(f"COPY ({rows}) TO '{tmp_path / 'jobs.parquet'}' (FORMAT parquet)")
    history = read(tmp_path / "jobs.parquet")
    assert (history.names, history.rows["jobs"], history.left_out) == (["n1", "n2"], 2, 0)
    assert observe(history).exposure.tolist() == [1.0, 1.0]
    put(tmp_path, jobs=JOBS)
    with pytest.raises(HistoryError, match="which of them"):
        read(tmp_path)


def test_a_parquet_file_whose_pages_are_overwritten_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.parquet"
    duckdb.sql(f"COPY (SELECT i::VARCHAR job, i::DOUBLE start, i + 9.0 \"end\", 'n1' nodes FROM range(9000) t(i)) TO '{path}' (FORMAT parquet)")
    whole = bytearray(path.read_bytes())
    whole[50:3000] = bytes(byte ^ 0x5A for byte in whole[50:3000])
    path.write_bytes(whole)  # the footer is as it was
    with pytest.raises(HistoryError, match=r"jobs\.parquet"):
        read(path)


def story(tmp_path: Path) -> History:
    """Four nodes over ten days, in seconds."""
    day = 86_400
    jobs = [
        f"a,0,{5 * day},n1;n2,node_fail,n1,u1,f1,n4",
        f"b,{5 * day},{6 * day},n1,node_fail,,u2,f1,",  # one node: who else
        f"c,{6 * day},{7 * day},n1,completed,,u1,f2,n4;n3",
        f"d,{6 * day},{8 * day},n2;n3,node_fail,,u1,f2,",  # unnamed
        f"e,{6 * day},{7 * day},n3;n4,failed,,u3,f1,",  # an XID 79 of n4 three minutes before: the node's failure
        f"f,{7 * day},{8 * day},n4,failed,,u3,f1,",  # an XID 13: the user's
        f"g,{8 * day},,n2;n3,running,,,,",
        f"h,{9 * day},{9 * day + 3600},n4,timeout,,,,n4",
    ]
    events = [
        f"{7 * day - 180},n4,xid,,79,",
        f"{7 * day - 178},n4,xid,,79,",  # the same within five seconds
        f"{8 * day - 60},n4,xid,,13,",
        f"{5 * day + 600},n1,failure,,,",  # an episode with a's end
        f"{5 * day + 60},n1,out,{5 * day + 7200},,",
        f"{9 * day},n1,ticket,,,",
        f"{9 * day},n3,exclude,,,z",
    ]
    return read(put(tmp_path, jobs=JOBS + "\n".join(jobs) + "\n", events=EVENTS + "\n".join(events) + "\n"))


def test_the_seven_signals_of_a_small_story(tmp_path: Path) -> None:
    history = story(tmp_path)
    assert history.left_out == 0
    seen = observe(history)
    assert seen.names == ["n1", "n2", "n3", "n4"]
    assert {name: values.tolist() for name, values in seen.signals.items()} == {
        "excl_jobid_count": [0, 0, 2, 3],
        "xid_cnt": [0, 0, 0, 1],
        "tickets": [1, 0, 0, 0],
        "out_count": [1, 0, 0, 0],
        "multi_node_node_fails": [1, 0, 0, 1],
        "single_node_node_fails": [1, 0, 0, 0],
        "single_node_node_failure_rate": [0.5, 0, 0, 0],
    }
    assert seen.hard.tolist() == [2, 0, 0, 1]
    assert (seen.blame.start.tolist(), seen.blame.node.tolist()) == ([0, 2], [1, 2])
    assert seen.users[0] == {"u1", "u2"} and seen.families[0] == {"f1"}
    last = 9 * 86_400 + 3600
    assert seen.exposure == pytest.approx([7, 7 + (last - 8 * 86_400) / 86_400, 3 + (last - 8 * 86_400) / 86_400, 2 + 3600 / 86_400])


def test_a_window_sees_only_what_lies_in_it_and_nothing_later(tmp_path: Path) -> None:
    history = story(tmp_path)
    early = observe(history, window=2 * 86_400.0, now=6.5 * 86_400)
    assert early.hard.tolist() == [2, 0, 0, 0]
    assert early.exposure == pytest.approx([0.5 + 1 + 0.5, 0.5 + 0.5, 0.5 + 0.5, 0.5])
    assert len(early.blame) == 0
    late = observe(history, window=2 * 86_400.0)
    assert late.hard.tolist() == [0, 0, 0, 1] and late.signals["tickets"].tolist() == [1, 0, 0, 0]


def test_what_was_before_a_repair_does_not_count_and_the_part_is_remembered(tmp_path: Path) -> None:
    day = 86_400
    jobs = f"a,0,{2 * day},n1,node_fail,,,,\nb,{4 * day},{5 * day},n1,completed,,,,\n"
    events = f"{3 * day},n1,repair,,S1,\n"
    history = read(put(tmp_path, jobs=JOBS + jobs, events=EVENTS + events, nodes="node,serial\nn1,S7\nn2,S1\nn3,S3\n"))
    seen = observe(history)
    assert seen.hard.tolist() == [0, 0, 0] and seen.exposure.tolist() == [1, 0, 0]
    assert seen.probation.tolist() == [True, True, False]  # the slot, and where the part is now
    before = observe(history, now=2.5 * day)
    assert before.hard.tolist() == [1, 0, 0] and not before.probation.any()


def test_a_history_without_jobs_counts_days_in_service(tmp_path: Path) -> None:
    day = 86_400
    nodes = f"node,since,until\nn1,0,\nn2,{5 * day},\nn3,0,{2 * day}\n"
    seen = observe(read(put(tmp_path, events=EVENTS + f"0,n1,outage,60,,\n{10 * day},n1,outage,,,\n", nodes=nodes)))
    assert seen.by_calendar and seen.exposure.tolist() == [10, 5, 2] and seen.hard.tolist() == [2, 0, 0]


def test_one_fault_that_shows_often_is_one_episode_but_an_hour_does_not_slide() -> None:
    often = [Failure(0, minute * 60.0) for minute in range(0, 24 * 60, 20)]
    assert len(episodes(often)) == 24
    assert len(episodes(often, {0: [(600.0, 5 * 3600.0)]})) == 1 + 19  # out of service until five
    assert [failure.node for failure in episodes([Failure(1, 5.0), Failure(0, 0.0), Failure(1, 6.0)])] == [0, 1]


def test_a_run_that_outlives_a_failure_does_not_die_of_it() -> None:
    runs = [Failure(0, 1000.0, "single", began=0.0), Failure(0, 1200.0, "single", began=0.0), Failure(0, 2000.0, "single", began=500.0)]
    again = Failure(0, 2500.0, "single", began=2100.0)  # placed on the node that was just lost
    assert [failure.time for failure in episodes([*runs, again])] == [1000.0, 2000.0]


def test_a_jobs_failure_names_the_kind_of_an_episode() -> None:
    found = episodes([Failure(0, 0.0), Failure(0, 60.0, "multi", "u1")])
    assert [(failure.time, failure.kind, failure.user) for failure in found] == [(0.0, "multi", "u1")]


def test_nodes_of_a_rack_that_fail_together_share_one_fault() -> None:
    groups = ["r1", "r1", "r1", "r1", "r2"]
    together = [Failure(node, 10.0 * node) for node in range(4)] + [Failure(4, 20.0)]
    assert [failure.weight for failure in share_common(together, groups)] == [0.25] * 4 + [1.0]
    apart = [Failure(node, 5000.0 * node) for node in range(4)]
    assert [failure.weight for failure in share_common(apart, groups)] == [1.0] * 4
    assert [failure.weight for failure in share_common(together, [""] * 5)] == [1.0] * 5


def test_outages_join_when_they_touch() -> None:
    assert merge_outages([(5, 9), (0, 3), (3, 4), (6, 7)]) == [(0, 4), (5, 9)]


def test_a_long_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aegis_lemon.history.files.PIECE", 7)
    rows = "".join(f"j{i},{i},{i + 10},n{i % 5},completed,,,,\n" for i in range(100)) + "broken\n"
    history = read(put(tmp_path, jobs=JOBS + rows))
    assert (history.rows["jobs"], texts(history)) == (100, ["jobs.csv line 102: 1 cells, the header has 9"])
    assert np.isclose(observe(history).exposure.sum() * 86_400, 1000)


CELLS = st.one_of(
    st.sampled_from(
        [
            "",
            "n1",
            "n1;n2",
            "n1;;n1",
            "0",
            "-1",
            "1e18",
            "nan",
            "inf",
            "2026-01-01",
            "2026-13-01",
            "9999-12-31",
            "node_fail",
            "infra",
            "xid",
            "79",
            "out",
            "é",
            "\0",
            '"',
        ]
    ),
    st.text(max_size=6),
)


@given(
    table=st.sampled_from(["jobs", "events", "nodes"]),
    rows=st.lists(st.lists(CELLS, min_size=1, max_size=10), max_size=6),
    tail=st.binary(max_size=20),
)
@settings(max_examples=30, deadline=None)
def test_any_file_is_ranked_or_refused_and_every_row_is_accounted_for(table: str, rows: list[list[str]], tail: bytes) -> None:
    header = {"jobs": JOBS, "events": EVENTS, "nodes": "node,role,rack,switch,serial,since,until\n"}[table]
    with tempfile.TemporaryDirectory() as folder:
        text = header + "".join(",".join(row) + "\n" for row in rows)
        (Path(folder) / f"{table}.csv").write_bytes(text.encode("utf-8", "replace") + tail)
        try:
            history = read(Path(folder))
        except HistoryError as error:
            assert str(error)
            return
        ranking = rank(observe(history))
        assert [node for node in ranking.nodes if not math.isfinite(node.score) or not math.isfinite(node.exposure)] == []
        assert history.left_out >= len(history.problems)
