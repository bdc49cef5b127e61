"""`aegis ettr`: fields for scripts, one sentence for people, and errors that name the option."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from aegis_cli import codes
from harness.commands import aegis, read


def test_expected_gives_the_fields_that_scripts_read() -> None:
    body = read("ettr", "expected", "--gpus", "12288", "--rf", "6.5", "--write", "300", "--restart", "300", "--queue", "0")
    assert body["kind"] == "ExpectedETTR"
    assert body["exact"] == pytest.approx(0.7327, abs=5e-5)
    assert body["ceiling"] == pytest.approx(0.966, abs=5e-4)
    assert body["interval"] == pytest.approx(38.0 * 60, abs=3)
    assert body["exact"] - 0.02 < body["first_order"] < body["ceiling"]
    fixed = read("ettr", "expected", "--gpus", "16000", "--rf", "6.5", "--write", "0", "--restart", "5min", "--interval", "1h")
    assert (fixed["interval"], fixed["first_order"]) == (3600, pytest.approx(0.684, abs=5e-4))


def test_a_simulation_is_a_second_opinion() -> None:
    words = ("ettr", "expected", "--gpus", "12288", "--rf", "6.5", "--write", "10", "--simulate", "20000")
    body = read(*words)
    assert abs(body["simulated"]["ettr"] - body["exact"]) < 4 * body["simulated"]["error"]
    assert body["simulated"] != read(*words, "--shape", "0.5")["simulated"] and body == read(*words)
    assert "standard error" in aegis(*words)[1] and "simulated" not in read(*words[:-2])


def test_without_failures_no_interval_is_needed() -> None:
    assert read("ettr", "expected", "--gpus", "8", "--rf", "0", "--write", "60")["interval"] is None


def test_a_plan_reads_the_failures_that_were_seen() -> None:
    body = read("ettr", "plan", "--gpus", "4096", "--write", "30", "--restart", "180", "--failures", "7", "--days", "3", "--interval", "1h")
    assert body["rf"] == pytest.approx(7 / (512 * 3) * 1000)
    assert body["interval_low"] < body["interval"] < body["interval_high"]
    assert body["now"] < body["expected"] < body["ceiling"]


def test_a_contour_has_as_many_points_as_asked() -> None:
    body = read("ettr", "contour", "--gpus", "12288", "--points", "20")
    assert len(body["ettr"]) == len(body["ettr"][0]) == len(body["boundary"]) == 20
    assert "*" in aegis("ettr", "contour", "--gpus", "12288")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ettr", "expected", "--gpus", "8", "--rf=-1"), "rf -1"),
        (("ettr", "expected", "--gpus", "0", "--rf", "1"), "nodes 0"),
        (("ettr", "expected", "--gpus", "8", "--rf", "1", "--write", "soon"), "--write"),
        (("ettr", "expected", "--gpus", "8", "--rf", "1", "--interval=-5"), "--interval"),
        (("ettr", "expected", "--gpus", "8", "--rf", "1", "--method", "guess"), "young, daly, exact"),
        (("ettr", "expected", "--gpus", "1e300", "--rf", "1e300"), "a failure rate that is a number"),
        (("ettr", "expected", "--gpus", "8", "--rf", "1", "--write", "5", "--simulate", "9", "--shape", "0.001"), "shape 0.001"),
        (("ettr", "plan", "--gpus", "8", "--write", "1", "--restart", "1"), "--failures with --days"),
        (("ettr", "plan", "--gpus", "8", "--write", "1", "--restart", "1", "--rf", "1", "--target", "1.5"), "target 1.5"),
        (("ettr", "contour", "--gpus", "8", "--rf", "5"), "LOW..HIGH"),
        (("ettr", "contour", "--gpus", "8", "--rf", "5..1"), "low < high"),
        (("ettr", "contour", "--gpus", "8", "--rf", "1e-300..1"), "1e-09 <= low"),
    ],
)
def test_a_value_that_cannot_be_is_a_usage_error_that_names_it(words: tuple[str, ...], said: str) -> None:
    code, out, err = aegis(*words)
    assert (code, out) == (codes.USAGE, "")
    assert said in err


def test_without_the_extra_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "aegis_lemon.ettr.contour", raising=False)
    code, _, err = aegis("ettr", "contour", "--gpus", "8")
    assert code == codes.NEGATIVE
    assert "E124 aegis ettr contour needs numpy" in err and "aegis-train[lemon]" in err
    assert aegis("ettr", "expected", "--gpus", "8", "--rf", "1")[0] == 0  # the closed forms need nothing


LEDGER = "job,state,start,end,stopped,gpus,priority,cluster\n"


def test_measured_prints_every_definition_by_group(tmp_path: Path) -> None:
    rows = ["a,queued,0,100,,1024,high,x", "a,productive,200,1100,,1024,high,x", "a,restoring,100,200,,1024,high,x", "a,lost,1100,1200,1,1024,high,x"]
    rows += ["b,productive,2026-01-01,2026-01-01T02:00:00,0,8,low,x"]
    (tmp_path / "l.csv").write_text(LEDGER + "\n".join(rows) + "\n")
    body = read("ettr", "measured", "--ledger", str(tmp_path / "l.csv"))
    groups = {row["group"]: row for row in body["groups"]}
    assert set(groups) == {"all", "1-8", "513-1024"}
    assert groups["513-1024"]["ettr"]["value"] == pytest.approx(900 / 1200)
    assert groups["513-1024"]["no_queue"]["value"] == groups["513-1024"]["cumulative"]["value"] == pytest.approx(900 / 1100)
    assert groups["all"]["seconds"]["productive"] == 8100
    assert {row["group"] for row in read("ettr", "measured", "--ledger", str(tmp_path / "l.csv"), "--by", "priority")["groups"]} == {
        "all",
        "high",
        "low",
    }
    assert "RUNTIME-GOODPUT" in aegis("ettr", "measured", "--ledger", str(tmp_path / "l.csv"))[1]


def test_a_ledger_with_broken_rows_says_which_runs_it_leaves_out(tmp_path: Path) -> None:
    rows = [
        "a,productive,0,10,,,,",
        "b,dancing,0,10,,,,",
        "c,productive,0,10,,,,",
        "c,saving,10,x,,,,",
        "d,productive,0,10,,,,",
        "d,saving,12,13,,,,",
    ]
    rows += ["e,productive,9,1,,,,", "f,productive,0", "g,productive,0,10,maybe,,,"]
    rows += ["h,productive,0,1e15,,,,", f"i,productive,0,10,,{'9' * 5000},,", f"j,{'x' * 2**24}x,0,10,,,,"]
    (tmp_path / "l.csv").write_text(LEDGER + "\n".join(rows) + "\n")
    body = read("ettr", "measured", "--ledger", str(tmp_path / "l.csv"))
    assert body["groups"][0]["runs"] == 1
    assert [row["line"] for row in body["left_out"]] == [3, 5, 8, 9, 10, 11, 12, 13, 0, 0]
    assert "not whole without line 5" in body["left_out"][8]["text"] and "in no state" in body["left_out"][9]["text"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no column job, state, start, end"), (LEDGER, "holds no run"), (LEDGER + "a,productive,3,1,,,,\n", "clock went backwards")],
)
def test_a_ledger_that_gives_no_answer_is_a_usage_error(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "l.csv").write_text(text)
    code, out, err = aegis("ettr", "measured", "--ledger", str(tmp_path / "l.csv"))
    assert (code, out) == (codes.USAGE, "") and said in err
    assert "no file" in aegis("ettr", "measured", "--ledger", str(tmp_path / "none.csv"))[2]
