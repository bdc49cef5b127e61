"""What a shell and a home can do to the command line: closed streams, an environment that is no UTF-8, a damaged contexts file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def aegis(tmp_path: Path, *words: bytes | str, shell_head: str = "", shell_tail: str = "", **env: bytes) -> subprocess.CompletedProcess[bytes]:
    kept = {k.encode(): os.fsencode(v) for k, v in os.environ.items() if not k.startswith("AEGIS_")}
    kept |= {b"PYTHONPATH": os.fsencode(os.pathsep.join(p for p in sys.path if p)), b"XDG_CONFIG_HOME": os.fsencode(tmp_path / "config")}
    kept |= {b"AEGIS_STACK_DIR": os.fsencode(tmp_path / "stack")} | {k.encode(): v for k, v in env.items()}
    argv: list[bytes] = [b"sh", b"-c", f'{shell_head}exec "$@" {shell_tail}'.encode(), b"sh", os.fsencode(sys.executable), b"-m", b"aegis_cli"]
    argv += [os.fsencode(word) for word in words]
    return subprocess.run(argv, env=kept, capture_output=True, timeout=60, cwd=tmp_path, check=False)


@pytest.mark.parametrize("tail", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_break_no_command(tmp_path: Path, tail: str) -> None:
    done = aegis(tmp_path, "run", "--dry-run", "--", "true", shell_tail=tail)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr


def test_a_variable_that_is_no_utf8_stops_no_run(tmp_path: Path) -> None:
    done = aegis(tmp_path, "run", "--dry-run", "--", "true", LC_ODD=b"\xff\xfe")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [(b"--", b"\xff"), (b"--env", b"K=\xff", b"--", b"true")])
def test_a_command_or_variable_asked_for_that_is_no_utf8_is_refused_with_words(tmp_path: Path, words: tuple[bytes, ...]) -> None:
    done = aegis(tmp_path, "run", "--dry-run", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(b"E116") and b"UTF-8" in done.stderr, done.stderr


def test_a_job_file_with_half_a_character_is_refused_with_words(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text('name: x\ncommand: "\\ud800"\n')
    done = aegis(tmp_path, "run", "--dry-run", "-f", "job.yaml")
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False), done.stderr


def test_a_large_environment_is_named_by_its_largest_variable(tmp_path: Path) -> None:
    done = aegis(tmp_path, "run", "--dry-run", "--", "true", LMOD_CACHE=b"x" * 60_000)
    assert done.returncode == 2 and b"LMOD_CACHE 60000" in done.stderr, done.stderr


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = aegis(tmp_path, "run", "--dry-run", "--", "true", shell_head='cd gone && rmdir "$PWD" && ')
    assert (done.returncode, done.stderr[:4]) == (2, b"E116"), done.stderr


@pytest.mark.parametrize(
    "text", [b"- a", b"text", b"5", b"contexts: [1]", b"\xff\xfe", b"[" * 5000, b"current: a\ncontexts: {a: {servers: 'nats://x'}}"]
)
def test_a_damaged_contexts_file_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config" / "aegis").mkdir(parents=True)
    (tmp_path / "config" / "aegis" / "contexts.yaml").write_bytes(text)
    done = aegis(tmp_path, "job", "ls", "--timeout", "1s")
    assert (done.returncode, done.stderr[:4]) == (2, b"E130"), done.stderr
    assert b"contexts.yaml" in done.stderr


def test_a_configuration_file_that_is_named_and_not_there_is_no_silence(tmp_path: Path) -> None:
    for words in (("job", "ls"), ("status",), ("node", "ls")):
        done = aegis(tmp_path, *words, "--config", "/nope.toml")
        assert (done.returncode, done.stderr[:4]) == (2, b"E130"), (words, done.stderr)
