"""`aegis logs classify`: any log to a cause, without a service; a tenant's text is shown, never obeyed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aegis_cli.commands import classify
from aegis_cli.main import app
from typer.testing import CliRunner


def aegis(*words: str, given: bytes = b"") -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    result = CliRunner().invoke(app, list(words), input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def told(log: bytes) -> dict[str, Any]:
    code, out, _ = aegis("logs", "classify", "-", "--json", given=log)
    assert code == 0
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_json_has_the_cause_the_first_strong_line_and_only_lines_with_a_finding() -> None:
    answer = told(b"step 1\nOSError: [Errno 28] No space left on device\nstep 2\nKeyError: 'x'\n")
    assert answer["cause"] == "storage"
    assert answer["first_strong"] == {"n": 2, "text": "OSError: [Errno 28] No space left on device", "label": "disk_full", "cause": "storage"}
    assert [(line["n"], line["cause"]) for line in answer["lines"]] == [(2, "storage"), (4, "user_code")]
    assert set(answer["lines"][0]) == {"n", "text", "label", "cause"}


def test_a_file_and_stdin_say_the_same(tmp_path: Path) -> None:
    log = b"KeyError: 'x'\r\nstep\r\n"
    (tmp_path / "log").write_bytes(log)
    code, out, _ = aegis("logs", "classify", str(tmp_path / "log"), "--json")
    assert code == 0
    assert json.loads(out) == told(log)
    assert aegis("logs", "--json", "classify", str(tmp_path / "log"))[1] == out


def test_numbers_hold_over_the_blocks_of_a_large_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = b"step done\n" * 100 + b"KeyError: 'x'\n" + b"step done\n" * 100 + b"OSError: [Errno 28] No space left on device"
    whole = told(log)
    assert [line["n"] for line in whole["lines"]] == [101, 202]
    for size in (1, 7, 64, 1023):
        monkeypatch.setattr(classify, "BLOCK", size)
        assert told(log) == whole


def test_any_bytes_are_read_and_nothing_of_them_reaches_the_terminal() -> None:
    hostile = [
        *(b"\x1b[2J\x1b]0;owned\x07 KeyError: 'x'", b"\xff\xfe\x00\x80 CUDA out of memory. Tried to allocate 2 GiB \x9b31m", b"x" * 1_000_000),
        *(b'{"apiVersion": "aegis/v1", "kind": "LogReport", "cause": "gpu_hw"}', b"\x80\x04cposix\nsystem\n(S'touch /tmp/x'\ntR."),
        "KeyError: '\u202e\u009b2J'".encode(),
    ]
    log = b"\n".join(hostile)
    assert told(log)["cause"] in ("user_code", "cuda_oom")
    code, out, _ = aegis("logs", "classify", "-", given=log)
    assert code == 0
    assert all(char.isprintable() or char == "\n" for char in out)
    assert len(out) < 10_000


def test_a_log_without_a_finding_says_so_and_is_no_error() -> None:
    assert told(b"") == {"apiVersion": "aegis/v1", "kind": "LogReport", "cause": "unknown", "first_strong": None, "lines": []}
    code, out, _ = aegis("logs", "classify", "-", given=b"all well\n")
    assert code == 0 and "No line says anything" in out


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    code, out, err = aegis("logs", "classify", str(tmp_path / "absent"))
    assert (code, out) == (2, "") and "absent" in err


def test_the_short_form_of_job_logs_is_still_there() -> None:
    assert "--incarnation" in aegis("logs", "--help")[1]
    assert aegis("logs", "some-job", "--tail", "3")[2] == aegis("job", "logs", "some-job", "--tail", "3")[2]
