"""`aegis ettr`: fields for scripts, one sentence for people, and errors that name the option."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from aegis_cli import codes
from aegis_cli.main import app
from typer.testing import CliRunner


def aegis(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def read(*words: str) -> dict[str, Any]:
    code, out, err = aegis(*words, "--json")
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_expected_gives_the_fields_that_scripts_read() -> None:
    body = read("ettr", "expected", "--gpus", "12288", "--rf", "6.5", "--write", "300", "--restart", "300", "--queue", "0")
    assert body["kind"] == "ExpectedETTR"
    assert body["exact"] == pytest.approx(0.7327, abs=5e-5)
    assert body["ceiling"] == pytest.approx(0.966, abs=5e-4)
    assert body["interval"] == pytest.approx(38.0 * 60, abs=3)
    assert body["exact"] - 0.02 < body["first_order"] < body["ceiling"]
    fixed = read("ettr", "expected", "--gpus", "16000", "--rf", "6.5", "--write", "0", "--restart", "5min", "--interval", "1h")
    assert (fixed["interval"], fixed["first_order"]) == (3600, pytest.approx(0.684, abs=5e-4))


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
        (("ettr", "plan", "--gpus", "8", "--write", "1", "--restart", "1"), "--failures with --days"),
        (("ettr", "plan", "--gpus", "8", "--write", "1", "--restart", "1", "--rf", "1", "--target", "1.5"), "target 1.5"),
        (("ettr", "contour", "--gpus", "8", "--rf", "5"), "LOW..HIGH"),
        (("ettr", "contour", "--gpus", "8", "--rf", "5..1"), "low < high"),
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
