"""`aegis fr analyze`, and the genuine dumps with known truth where they are at hand."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from aegis_cli.main import app
from aegis_lognexus.flight import analyze, decode, from_mapping, read_folder, synthetic
from typer.testing import CliRunner

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
        assert set(truth["culprits"]) < set(report.culprits) and (report.cause, report.confidence) == ("not_joined", "low")
    else:
        assert (list(report.culprits), report.cause) == (truth["culprits"], truth["cause"])
        if truth.get("first_bad_op"):
            assert report.first_bad_op is not None and truth["first_bad_op"] == {"pg": report.first_bad_op.pg, "seq": report.first_bad_op.seq}


@pytest.mark.skipif(not GENUINE, reason="NO SAMPLES: AEGIS_SHARED_DATA (default: shared/data beside the checkout) has no genuine dumps")
@pytest.mark.parametrize("folder", GENUINE, ids=lambda p: p.name)
def test_genuine_dumps_less_one_never_accuse_an_innocent_with_certainty(folder: Path) -> None:
    truth = json.loads((folder / "truth.json").read_text())
    dumps = read_folder(folder)
    sure = ("high",) if truth["cause"].startswith("p2p_") else ("high", "medium")  # what no dump records leaves doubt that the dumps cannot know of
    for lost in dumps:
        report = analyze({r: d for r, d in dumps.items() if r != lost})
        assert report.confidence not in sure or set(report.culprits) <= set(truth["culprits"])


def raws(folder: Path, json_form: bool = False) -> dict[int, dict[str, Any]]:
    """{rank: what it wrote} of a genuine set."""
    files = [p for p in folder.iterdir() if p.name.startswith(("fr_", "_dump_")) and (p.suffix == ".json") is json_form]
    return {int(p.stem.rpartition("_")[2]): decode.load(p.read_bytes()) for p in files}


@pytest.mark.skipif(not GENUINE, reason="NO SAMPLES: AEGIS_SHARED_DATA (default: shared/data beside the checkout) has no genuine dumps")
@pytest.mark.parametrize("folder", GENUINE, ids=lambda p: p.name)
def test_genuine_dumps_of_ranks_with_other_numbers_name_the_same_ones(folder: Path) -> None:
    told = raws(folder)
    plain = analyze({rank: from_mapping(rank, raw) for rank, raw in told.items()})
    rng = random.Random(7)
    world = max(json.loads((folder / "truth.json").read_text())["world"], max(told) + 1)
    for first in (0, 0, 100):
        number = [first + n for n in rng.sample(range(world), world)]
        dumps = {}
        for rank, raw in told.items():
            members = {k: v | {"ranks": str([number[int(n)] for n in re.findall(r"\d+", v["ranks"])])} for k, v in raw["pg_config"].items()}
            dumps[number[rank]] = from_mapping(number[rank], raw | {"pg_config": members})
        report = analyze(dumps)
        assert report.culprits == tuple(sorted(number[r] for r in plain.culprits)) and report.slow == tuple(sorted(number[r] for r in plain.slow))
        assert (report.verdict, report.cause, report.confidence) == (plain.verdict, plain.cause, plain.confidence)


@pytest.mark.skipif(not GENUINE, reason="NO SAMPLES: AEGIS_SHARED_DATA (default: shared/data beside the checkout) has no genuine dumps")
@pytest.mark.parametrize("folder", [p for p in GENUINE if p.parent.name == "gloo"], ids=lambda p: p.name)
def test_genuine_dumps_say_the_same_as_json(folder: Path) -> None:
    as_pickle, as_json = (analyze({r: from_mapping(r, raw) for r, raw in raws(folder, json_form=form).items()}) for form in (False, True))
    assert (as_json.culprits, as_json.slow, as_json.cause) == (as_pickle.culprits, as_pickle.slow, as_pickle.cause)


def aegis_fr(*words: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `aegis fr analyze`."""
    result = CliRunner().invoke(app, ["fr", "analyze", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_json_output_has_the_promised_fields(tmp_path: Path) -> None:
    synthetic.write(synthetic.Job(world=8, side=2, entries=40, culprit=5), tmp_path)
    code, out, _ = aegis_fr(tmp_path, "--json")
    told = json.loads(out)
    assert (code, told["culprits"], told["verdict"]) == (0, [5], "hang")
    assert {"verdict", "culprits", "cause", "first_bad_op", "confidence", "evidence", "missing"} <= told.keys()


def test_text_output_names_the_culprit_and_html_is_one_page(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    synthetic.write(synthetic.Job(world=8, side=2, entries=40, culprit=5), dumps)
    page = tmp_path / "m.html"
    code, out, _ = aegis_fr(dumps, "--matrix", "--html", page)
    assert code == 0
    assert "Hang: rank 5" in out and "RANK" in out and "<- culprit" in out
    assert page.read_text().startswith("<!doctype html>") and '<tr class="culprit"><th>5</th>' in page.read_text()


def test_a_healthy_set_names_nobody(tmp_path: Path) -> None:
    synthetic.write(synthetic.Job(world=4, side=0, entries=20), tmp_path)
    assert json.loads(aegis_fr(tmp_path, "--json")[1])["verdict"] == "healthy"


def test_a_folder_without_dumps_is_an_error_that_says_what_was_expected(tmp_path: Path) -> None:
    code, _, err = aegis_fr(tmp_path)
    assert code == 2 and "nccl_trace_rank_0" in err
    code, _, err = aegis_fr(tmp_path / "absent")
    assert code == 2 and "absent" in err and "Errno" not in err
    (tmp_path / "notes").write_text("")
    code, _, err = aegis_fr(tmp_path / "notes")
    assert code == 2 and "give the folder" in err


def test_without_numpy_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("aegis_lognexus")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    code, _, err = aegis_fr(tmp_path)
    assert code == 1 and err.startswith("E124") and "numpy" in err and "aegis-train[lognexus]" in err


def test_a_tenants_text_is_shown_harmlessly(tmp_path: Path) -> None:
    bad = "\x1b[2J\x1b]0;x\x07<script>alert(1)</script>\ud800\u202e"
    for rank, raw in synthetic.dumps(synthetic.Job(world=4, side=0, entries=20, culprit=2)):
        for e in raw["entries"]:
            e["process_group"] = ("0", bad)
            e["profiling_name"] = "nccl:" + bad
        raw["pg_config"]["0"]["desc"] = bad
        (tmp_path / f"fr_{rank}.json").write_text(json.dumps(raw))
    page = tmp_path / "m.html"
    code, out, _ = aegis_fr(tmp_path, "--matrix", "--html", page)
    assert code == 0
    assert "\x1b" not in out and "\x07" not in out and "\u202e" not in out
    assert "<script>" not in page.read_text() and "\x1b" not in page.read_text()
    code, out, _ = aegis_fr(tmp_path, "--json")
    assert code == 0 and json.loads(out)["culprits"] == [2] and "\x1b" not in out


def test_a_pickle_with_a_class_does_not_stop_the_rest(tmp_path: Path) -> None:
    synthetic.write(synthetic.Job(world=4, side=0, entries=20, culprit=2), tmp_path)
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [Path("/")]}))
    told = json.loads(aegis_fr(tmp_path, "--json")[1])
    assert told["culprits"] == [2] and any("refused" in m for m in told["missing"])
