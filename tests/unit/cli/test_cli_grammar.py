"""The grammar: every command of the table is there and takes the shared options; a mistake is a usage error (exit 2) that says what was expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aegis_cli import codes
from aegis_cli.main import app
from typer.testing import CliRunner

JOB_ACTS = ["stop", "suspend", "resume", "restart", "set", "inject"]
COMMANDS = [
    *(("job", verb) for verb in ["submit", "ls", "show", "events", "logs", "why", "attach", "wait", "convert", *JOB_ACTS]),
    *(("node", verb) for verb in ["ls", "show", "taint", "untaint", "lost"]),
    *(("net", verb) for verb in ["ls", "show", "job", "top", "sample", "rollout", "pairs", "sim", "parse"]),
    *(("creds", verb) for verb in ["issue", "ls", "revoke"]),
    *(("context", verb) for verb in ["add", "use", "ls"]),
    *(("config", verb) for verb in ["show", "check", "init"]),
    *(("lemon", verb) for verb in ["rank", "show", "tune", "import", "generate"]),
    *(("ettr", verb) for verb in ["expected", "measured", "plan", "contour"]),
    *[("fr", "analyze"), ("logs", "classify")],
    *((verb,) for verb in ["run", "logs", "up", "down", "status", "setup", "doctor", "demo", "explain", "version", "completion"]),
]
ALIASES = [("job", "list"), ("job", "describe"), ("node", "list"), ("node", "describe"), ("context", "list")]
SHARED = ("--context", "--namespace", "--output", "--json", "--quiet", "--verbose", "--timeout", "--no-color", "--config")
KEEPING = {*(("job", verb) for verb in JOB_ACTS), *(("node", verb) for verb in ["taint", "untaint", "lost"])}
"""Verbs that keep a reason with what happened."""
ACTING = [*sorted(KEEPING), ("run",), ("job", "submit"), ("creds", "issue"), ("up",), ("down",), ("setup",)]


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stack, no context, no configuration of this machine."""
    for name in ("AEGIS_CONTEXT", "AEGIS_BUS_SERVERS", "AEGIS_BUS_CREDS", "AEGIS_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AEGIS_STACK_DIR", str(tmp_path / "stack"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def aegis(*words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("words", COMMANDS + ALIASES, ids=" ".join)
def test_every_command_of_the_table_is_there_and_takes_the_shared_options(words: tuple[str, ...]) -> None:
    code, out, _ = aegis(*words, "--help")
    assert code == 0
    for option in SHARED:
        assert option in out


@pytest.mark.parametrize("words", ACTING, ids=" ".join)
def test_acting_verbs_take_dry_run_and_yes_and_a_reason_where_it_is_kept(words: tuple[str, ...]) -> None:
    out = aegis(*words, "--help")[1]
    assert "--dry-run" in out and "--yes" in out
    assert ("--reason" in out) is (words in KEEPING)


@pytest.mark.parametrize(
    "words", [("fly",), ("job", "fly"), ("job", "ls", "--fly"), ("job", "show"), ("node", "taint"), ("run", "--workers", "x", "a")]
)
def test_what_is_not_in_the_grammar_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert aegis(*words)[0] == codes.USAGE


def test_aliases_are_not_listed() -> None:
    out = aegis("job", "--help")[1]
    assert "\n  ls " in out
    assert "\n  list " not in out
    assert "describe" not in out


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--dry-run", "--json", "-N", "2", "python", "train.py", "--lr", "1", "-N", "7", "--json"),
        ("run", "--dry-run", "--json", "-N", "2", "--", "python", "train.py", "--lr", "1", "-N", "7", "--json"),
        ("run", "-o", "json", "--workers", "2", "--dry-run", "--", "python", "train.py", "--lr", "1", "-N", "7", "--json"),
    ],
)
def test_a_command_line_is_taken_as_it_is_with_and_without_dashes(words: tuple[str, ...]) -> None:
    code, out, _ = aegis(*words)
    job = json.loads(out)
    assert code == 0
    assert job["command"] == ["python", "train.py", "--lr", "1", "-N", "7", "--json"]
    assert job["workers"] == 2
    assert job["name"] == "train"
    assert (job["apiVersion"], job["kind"]) == ("aegis/v1", "Job")


def test_dry_run_prints_placement_environment_budget_and_deadlines() -> None:
    code, out, _ = aegis("run", "--dry-run", "-N", "3", "--max-retry", "5", "--", "python", "train.py")
    assert code == 0
    for text in (
        "placement   3 workers",
        "3 virtual nodes",
        "environment",
        "budget      5 faults",
        "deadlines   placed within 1800 s",
        "stopped after 600 s",
    ):
        assert text in out


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("run",), "E107", "no command"),
        (("job", "ls", "-o", "xml"), "E107", "table, wide, json, yaml, name"),
        (("job", "ls", "--sort", "luck"), "E107", "age, name, restarts"),
        (("job", "ls", "--phase", "Sleeping"), "E107", "RunCommand"),
        (("job", "wait", "x", "--for", "lunch"), "E107", "phase=X"),
        (("job", "set", "x", "lr=2"), "E107", "max-retry"),
        (("job", "show", "x", "--lang", "fr"), "E107", "en or zh"),
        (("job", "show", "x", "--timeout", "soon"), "E116", "10min"),
        (("creds", "issue", "--role", "king"), "E107", "reader, nsreader, user, operator, node"),
        (("creds", "revoke"), "E107", "exactly one"),
        (("completion", "tcsh"), "E107", "bash, zsh or fish"),
    ],
)
def test_a_wrong_value_names_what_was_expected(words: tuple[str, ...], code: str, text: str) -> None:
    status, out, err = aegis(*words)
    assert status == codes.USAGE
    assert out == ""
    assert err.startswith(f"{code} ")
    assert text in err


def test_errors_are_json_when_results_would_be() -> None:
    status, out, err = aegis("job", "ls", "-o", "json")
    error = json.loads(err)["error"]
    assert status == codes.UNREACHABLE
    assert out == ""
    assert error["code"] == "E101"
    assert set(error) == {"code", "message", "hint", "details"}


def test_without_context_and_stack_the_message_says_how_to_begin() -> None:
    status, _, err = aegis("job", "ls")
    assert status == codes.UNREACHABLE
    assert "E101 cannot reach the bus" in err
    assert "aegis up" in err


def test_no_color_wins_over_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    red = "\x1b[1;31m"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert red in aegis("job", "ls")[2]
    assert red not in aegis("job", "ls", "--no-color")[2]
    monkeypatch.setenv("NO_COLOR", "1")
    assert red not in aegis("job", "ls")[2]


def test_explain_knows_every_code_and_refuses_others() -> None:
    for code in codes.CODES:
        status, out, _ = aegis("explain", code.lower())
        assert status == 0
        assert "Why " in out
        assert "Do " in out
    assert aegis("explain", "E999")[0] == codes.NOT_FOUND
    listing = json.loads(aegis("explain", "--json")[1])
    assert listing["kind"] == "CodeList"
    assert len(listing["items"]) == len(codes.CODES)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    code, out, _ = aegis("completion", shell)
    assert code == 0
    assert "_AEGIS_COMPLETE" in out


def test_version_as_json_names_what_is_here() -> None:
    found = json.loads(aegis("version", "--json")[1])
    assert found["kind"] == "Version"
    assert {"aegis", "python", "nats-server", "torch"} <= set(found)
