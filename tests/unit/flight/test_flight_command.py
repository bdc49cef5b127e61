"""`aegis fr analyze`, and the genuine dumps with known truth where they are at hand."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from aegis_lognexus.flight import analyze, main, read_folder, synthetic

DATA = Path(os.environ.get("AEGIS_SHARED_DATA") or Path(__file__).resolve().parents[4] / "shared/data") / "fr"
GENUINE = sorted(p.parent for p in DATA.glob("*/*/truth.json"))


@pytest.mark.skipif(not GENUINE, reason="NO SAMPLES: AEGIS_SHARED_DATA (default: shared/data beside the checkout) has no genuine dumps")
@pytest.mark.parametrize("folder", GENUINE, ids=lambda p: p.name)
def test_genuine_dumps_give_the_true_culprits_and_cause(folder: Path) -> None:
    truth = json.loads((folder / "truth.json").read_text())
    report = analyze(read_folder(folder))
    if truth["cause"] == "p2p_no_send":  # gloo records no send or receive: the dumps are empty
        assert (report.verdict, report.culprits) == ("no_evidence", ())
    elif truth["cause"] == "p2p_no_recv":  # sender and receiver look alike: both, never with certainty
        assert set(truth["culprits"]) < set(report.culprits) == {0, 1} and report.confidence == "low"
    else:
        assert (list(report.culprits), report.cause) == (truth["culprits"], truth["cause"])
        if truth.get("first_bad_op"):
            assert report.first_bad_op is not None and truth["first_bad_op"] == {"pg": report.first_bad_op.pg, "seq": report.first_bad_op.seq}


@pytest.mark.skipif(not GENUINE, reason="NO SAMPLES: AEGIS_SHARED_DATA (default: shared/data beside the checkout) has no genuine dumps")
@pytest.mark.parametrize("folder", GENUINE, ids=lambda p: p.name)
def test_genuine_dumps_less_one_never_accuse_an_innocent_with_certainty(folder: Path) -> None:
    truth = json.loads((folder / "truth.json").read_text())
    dumps = read_folder(folder)
    for lost in dumps:
        report = analyze({r: d for r, d in dumps.items() if r != lost})
        assert report.confidence != "high" or set(report.culprits) <= set(truth["culprits"])


def test_json_output_has_the_promised_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.write(synthetic.Job(world=8, side=2, entries=40, culprit=5), tmp_path)
    assert main(["analyze", str(tmp_path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["culprits"] == [5] and told["verdict"] == "hang"
    assert {"verdict", "culprits", "cause", "first_bad_op", "confidence", "evidence", "missing"} <= told.keys()


def test_text_output_names_the_culprit_and_html_is_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    synthetic.write(synthetic.Job(world=8, side=2, entries=40, culprit=5), dumps)
    page = tmp_path / "m.html"
    assert main(["analyze", str(dumps), "--matrix", "--html", str(page)]) == 1
    out = capsys.readouterr().out
    assert "Hang: rank 5" in out and "RANK" in out and "<- culprit" in out
    assert page.read_text().startswith("<!doctype html>") and '<tr class="culprit"><th>5</th>' in page.read_text()


def test_a_healthy_set_ends_with_code_0(tmp_path: Path) -> None:
    synthetic.write(synthetic.Job(world=4, side=0, entries=20), tmp_path)
    assert main(["analyze", str(tmp_path)]) == 0


def test_a_folder_without_dumps_is_an_error_that_says_what_was_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(tmp_path)]) == 2
    assert "nccl_trace_rank_0" in capsys.readouterr().err
    assert main(["analyze", str(tmp_path / "absent")]) == 2


def test_a_tenants_text_is_shown_harmlessly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = "\x1b[2J\x1b]0;x\x07<script>alert(1)</script>\ud800\u202e"
    for rank, raw in synthetic.dumps(synthetic.Job(world=4, side=0, entries=20, culprit=2)):
        for e in raw["entries"]:
            e["process_group"] = ("0", bad)
            e["profiling_name"] = "nccl:" + bad
        raw["pg_config"]["0"]["desc"] = bad
        (tmp_path / f"fr_{rank}.json").write_text(json.dumps(raw))
    page = tmp_path / "m.html"
    assert main(["analyze", str(tmp_path), "--matrix", "--html", str(page)]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out and "\u202e" not in out
    assert "<script>" not in page.read_text() and "\x1b" not in page.read_text()
    assert main(["analyze", str(tmp_path), "--json"]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_a_pickle_with_a_class_does_not_stop_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    synthetic.write(synthetic.Job(world=4, side=0, entries=20, culprit=2), tmp_path)
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [Path("/")]}))
    assert main(["analyze", str(tmp_path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["culprits"] == [2] and any("refused" in m for m in told["missing"])
