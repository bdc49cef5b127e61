"""`aegis lemon`: from files to a ranking, for scripts and for people; worlds with a truth; and clear refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from aegis_bus.settings import LemonSettings
from aegis_cli import codes
from aegis_lemon.detect import Rules, Thresholds
from aegis_lemon.generate import WorldSpec, generate
from aegis_lemon.history.schema import SIGNALS
from harness.commands import aegis, read

SMALL = ["--nodes", "300", "--lemons", "4"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("world")
    code, _, err = aegis("lemon", "generate", "--ratio", "225", "--attributed", "0.7", "--seed", "5", "--out", str(out), "--days", "60", *SMALL)
    assert code == 0, err
    return out


def test_a_generated_fleets_lemons_are_ranked_first(world: Path) -> None:
    truth = json.loads((world / "truth.json").read_text())
    body = read("lemon", "rank", "--history", str(world))
    assert body["kind"] == "LemonRanking" and len(body["nodes"]) == 300
    assert {node["node"] for node in body["nodes"] if node["flagged"]} == set(truth["lemons"])
    assert body["nodes"][0].keys() >= {"node", "score", "flagged", "signals"}
    assert list(body["nodes"][0]["signals"]) == list(SIGNALS)
    assert body["left_out"] == {"count": 0, "rows": []}


@pytest.mark.parametrize("detector", ["mixture", "shrinkage", "count", "cusum", "rules"])
def test_every_detector_can_be_chosen(world: Path, detector: str) -> None:
    truth = set(json.loads((world / "truth.json").read_text())["lemons"])
    body = read("lemon", "rank", "--history", str(world), "--detector", detector)
    flagged = {node["node"] for node in body["nodes"] if node["flagged"]}
    assert flagged & truth and len(flagged - truth) <= 1
    assert body["detector"] == detector


def test_thresholds_are_those_of_the_configuration(world: Path, tmp_path: Path) -> None:
    rules = ("lemon", "rank", "--history", str(world), "--detector", "rules")
    (tmp_path / "aegis.toml").write_text("[lemon]\nruleMulti = 99\nruleRate = 0.99\n")
    strict = read(*rules, "--config", str(tmp_path / "aegis.toml"))
    assert any(node["flagged"] for node in read(*rules)["nodes"]) and not any(node["flagged"] for node in strict["nodes"])
    settings = LemonSettings(rule_xid=7, count=4, certain=0.5, times=9, posterior=0.1, least=1)
    assert Thresholds.of(settings) == Thresholds(0.1, 1, 4, 0.5, 9, rules=Rules(2, 7, 0.2, 2))


def test_people_get_the_flagged_nodes_with_what_speaks_against_them(world: Path) -> None:
    out = aegis("lemon", "rank", "--history", str(world))[1]
    assert "NODE" in out.splitlines()[0] and "times the fleet" in out
    assert out.splitlines()[-1].startswith("4 of 300 nodes flagged")
    names = aegis("lemon", "rank", "--history", str(world), "-o", "name")[1].split()
    assert sorted(names) == json.loads((world / "truth.json").read_text())["lemons"]


def test_a_window_that_ends_earlier_looks_at_nothing_later(world: Path) -> None:
    body = read("lemon", "rank", "--history", str(world), "--now", "2026-01-08", "--window", "7d")
    assert sum(node["exposure"] for node in body["nodes"]) < 7 * 300
    assert body["now"] == 1_767_830_400


def test_tuning_prints_a_curve_with_intervals_and_a_prediction(world: Path) -> None:
    body = read("lemon", "tune", "--history", str(world), "--truth", str(world / "truth.json"))
    assert body["best"]["recall"] == 1 and body["best"]["precision_low"] < 1
    assert body["prediction"]["steps"] == 1 and body["prediction"]["ratio"] > 10
    text = aegis("lemon", "tune", "--history", str(world))[1]
    assert "no truth was given" in text and "then fail" in text


def test_the_same_seed_gives_the_same_world_and_another_another(tmp_path: Path) -> None:
    spec = WorldSpec(seed=3, nodes=100, lemons=2, days=5)
    assert [(job.start, job.culprit) for job in generate(spec).jobs] == [(job.start, job.culprit) for job in generate(spec).jobs]
    assert generate(spec).lemon.tolist() != generate(WorldSpec(seed=4, nodes=100, lemons=2, days=5)).lemon.tolist()


def test_worlds_with_every_option_can_be_read(tmp_path: Path) -> None:
    options = ["--black-hole", "--bursts", "--roles", "--onset", "0.5"]
    assert (
        aegis("lemon", "generate", "--ratio", "50", "--attributed", "0.5", "--seed", "1", "--days", "20", "--out", str(tmp_path), *SMALL, *options)[0]
        == 0
    )
    body = read("lemon", "rank", "--history", str(tmp_path))
    assert body["left_out"]["count"] == 0
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert len(truth["lemons"]) == 4 and set(truth["onset"]) == set(truth["lemons"])


def test_broken_rows_are_said_and_the_rest_is_ranked(tmp_path: Path) -> None:
    rows = "".join(f"j{i},then,2026-01-02,n1\n" for i in range(30))
    (tmp_path / "jobs.csv").write_text(f"job,start,end,nodes\nok,2026-01-01,2026-01-02,n1\n{rows}")
    code, out, err = aegis("lemon", "rank", "--history", str(tmp_path))
    assert code == 0 and "0 of 1 nodes flagged" in out
    assert 'jobs.csv line 3: start "then"' in err and "30 of 31 rows left out" in err
    assert len([line for line in err.splitlines() if line.startswith("jobs.csv line")]) == 10
    assert read("lemon", "rank", "--history", str(tmp_path))["left_out"]["rows"][29]["line"] == 32


def test_slurms_files_become_a_history(tmp_path: Path) -> None:
    (tmp_path / "s.psv").write_text("JobID|State|NodeList|Start|End\n1|NODE_FAIL|n[1-2]|2026-01-01T00:00:00|2026-01-01T01:00:00\nx|y\n")
    out = tmp_path / "history"
    body = read("lemon", "import", "--sacct", str(tmp_path / "s.psv"), "--out", str(out))
    assert body["rows"]["jobs"] == 1 and body["left_out"]["rows"][0]["line"] == 3
    assert len(read("lemon", "rank", "--history", str(out))["nodes"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rank", "--history", "/nowhere"), "E141 there is no file or folder /nowhere"),
        (("rank", "--history", "{world}", "--detector", "magic"), "expected one of blame, mixture"),
        (("rank", "--history", "{world}", "--now", "soon"), '--now "soon"'),
        (("rank", "--history", "{world}", "--window", "long"), "--window"),
        (("show", "nowhere", "--history", "{world}"), 'node "nowhere": not in the history of 300 nodes'),
        (("tune", "--history", "{world}", "--truth", "{world}/jobs.csv"), "expected JSON with a list lemons"),
        (("rank", "--history", "{world}", "--now", "nan"), '--now "nan"'),
        (("import", "--out", "{world}"), "--lanl"),
        (("import", "--lanl", "{world}/jobs.csv", "--out", "{world}/x"), "expected LANL's failure data"),
        (("generate", "--ratio", "5", "--attributed", "1", "--seed", "-1", "--out", "{world}/x"), "seed -1"),
        (("generate", "--ratio", "5", "--attributed", "1", "--seed", "1", "--days", "1", "--out", "/proc/nowhere"), "/proc/nowhere"),
        (("import", "--sacct", "/nowhere", "--out", "{world}"), "there is no file /nowhere"),
        (("generate", "--ratio", "0.5", "--attributed", "1", "--seed", "1", "--out", "{world}/x"), "ratio 0.5"),
        (("generate", "--ratio", "5", "--attributed", "1", "--seed", "1", "--out", "{world}/x", "--lemons", "5000"), "5000 lemons"),
    ],
)
def test_what_cannot_be_is_a_usage_error_that_says_what_was_expected(world: Path, words: tuple[str, ...], said: str) -> None:
    code, out, err = aegis("lemon", *(word.replace("{world}", str(world)) for word in words))
    assert (code, out) == (codes.USAGE, "")
    assert said in err


def test_without_the_extra_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch, world: Path) -> None:
    for name in [name for name in sys.modules if name.startswith("aegis_lemon.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, _, err = aegis("lemon", "rank", "--history", str(world))
    assert code == codes.NEGATIVE and "needs duckdb" in err and "aegis-train[lemon]" in err


def test_the_map_shows_the_days_on_which_the_worst_nodes_failed(world: Path) -> None:
    truth = json.loads((world / "truth.json").read_text())
    out = aegis("lemon", "rank", "--history", str(world), "--map")[1]
    rows = [line for line in out.splitlines() if " * " in line]
    assert sorted(line.split()[0] for line in rows) == truth["lemons"]
    assert all(len(line.split()[-1]) == 28 and set(line.split()[-1]) <= set(".123456789+") for line in rows)


def test_a_nodes_story_names_its_failures_and_when_it_turned_bad(tmp_path: Path) -> None:
    day = 86_400
    jobs = [f"a{i},{i * day},{i * day + 43_200},n{i % 20},completed,,u1" for i in range(100)]
    jobs += [f"b{i},{60 * day + i * 2 * day},{60 * day + i * 2 * day + 3600},n3;n4,node_fail,n3,u{i}" for i in range(6)]
    (tmp_path / "jobs.csv").write_text("job,start,end,nodes,state,blame,user\n" + "\n".join(jobs) + "\n")
    body = read("lemon", "show", "n3", "--history", str(tmp_path), "--now", str(75 * day))
    assert body["flagged"] and len(body["failures_seen"]) == 6 and body["below"]["multi_node_node_fails"] == 0.95
    assert [change["onset"] for change in body["changes"]] == [60 * day + 3600]
    text = aegis("lemon", "show", "n3", "--history", str(tmp_path), "--now", str(75 * day))[1]
    assert "turned bad about 1970-03-02 01:00" in text and "failed a job of several nodes, u0" in text
    assert "not flagged" in aegis("lemon", "show", "n4", "--history", str(tmp_path))[1]


def test_time_to_failure_falls_as_one_over_size(world: Path) -> None:
    from aegis_lemon.history import read as read_history
    from aegis_lemon.history.sizes import by_size, settled_rate

    history = read_history(world)
    sizes = by_size(history)
    assert [size.high for size in sizes][:4] == [1, 2, 4, 8]
    rate, low, high = settled_rate(history)
    assert low < 6.5 * 1.2 and high > 6.5 * 0.8 and low < rate < high
    assert all(size.mttf is None or size.mttf_low < size.mttf for size in sizes)
