"""How a followed run is ended by signals, and what is known of it afterwards. Against a real stack that stays up, and one that goes with its run."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from aegis_cli import past
from aegis_cli.stack import guard
from cli_data import detail, event
from cli_process import WAIT, Aegis, started

pytestmark = pytest.mark.timeout(300)
SAVES = "trap 'sleep 0.3; echo saved > saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
IGNORES = "trap '' TERM; echo $$ > pid; echo ready; while :; do sleep 0.1; done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_stops_with_grace_and_gives_the_exit_code(aegis: Aegis, number: signal.Signals) -> None:
    process = aegis.start("run", "--name", number.name.lower(), "--grace", "20s", "sh", "-c", SAVES)
    started(aegis, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + number
    assert "stopping" in err and "E303" in err
    assert (aegis.folder / "saved").read_text() == "saved\n"
    name = "Ctrl-C" if number is signal.SIGINT else number.name
    assert any(f": {name}" in line["what"] for line in aegis.json("job", "why", number.name.lower())["lines"])


def test_a_signal_that_the_caller_had_ignored_stays_ignored(aegis: Aegis) -> None:
    script = "echo ready; while [ ! -e go ]; do sleep 0.05; done"
    process = aegis.start("run", "sh", "-c", script, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    started(aegis, process)
    process.send_signal(signal.SIGHUP)
    (aegis.folder / "go").touch()
    assert (process.communicate(timeout=WAIT), process.returncode)[1] == 0


def test_a_second_ctrl_c_ends_the_grace_on_a_stack_that_stays_up(aegis: Aegis) -> None:
    process = aegis.start("run", "--name", "stubborn", "--grace", "300s", "sh", "-c", IGNORES)
    started(aegis, process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    for line in process.stderr:
        if "stopping" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 130
    assert "killing" in err
    assert int((aegis.folder / "pid").read_text()) not in guard.processes()
    assert aegis("status")[0] == 0


def test_a_signal_to_attach_leaves_the_job_running(aegis: Aegis) -> None:
    job = aegis.submit("--name", "onwards", "--", "sleep", "600")
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 143)):
        process = aegis.start("job", "attach", job)
        assert process.stderr is not None
        assert "job created" in process.stderr.readline()
        process.send_signal(number)
        assert "goes on" in process.communicate(timeout=WAIT)[1]
        assert process.returncode == code
    assert aegis.json("job", "show", job)["summary"]["phase"] != "Failed"
    assert aegis("job", "stop", job, "--grace", "0s")[0] == 0


def test_a_terminal_that_hangs_up_stops_the_run_and_a_living_one_is_left_clean(aegis: Aegis) -> None:
    aegis.environ |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    aegis.environ.pop("CI", None)
    for gone in (True, False):
        (aegis.folder / "saved").unlink(missing_ok=True)
        (aegis.folder / "here").unlink(missing_ok=True)
        controller, terminal = pty.openpty()
        script = f"touch here; {SAVES}"
        process = aegis.start("run", "--grace", "20s", "sh", "-c", script, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
        os.close(terminal)
        os.set_blocking(controller, False)
        seen, deadline = b"", time.monotonic() + WAIT
        while not (aegis.folder / "here").exists() or b"RunCommand" not in seen:
            seen += read(controller)
            assert time.monotonic() < deadline, seen
            time.sleep(0.02)
        if gone:
            os.close(controller)
        process.send_signal(signal.SIGHUP)
        while process.poll() is None:
            seen += b"" if gone else read(controller)
            assert time.monotonic() < deadline, seen
            time.sleep(0.02)
        assert process.returncode == 129
        assert (aegis.folder / "saved").exists()
        if not gone:
            assert b"\x1b[?25h" in seen.rpartition(b"\x1b[?25l")[2]  # the cursor is back
            os.close(controller)


def read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""


# --- afterwards ------------------------------------------------------------------------------------------------------------------


def test_a_run_is_explained_after_its_stack_has_gone(aegis: Aegis, tmp_path: Path) -> None:
    aegis.environ["AEGIS_STACK_DIR"] = str(tmp_path / "own-stack")
    code, _, err = aegis("run", "--name", "gone", "--max-retry", "0", "sh", "-c", "exit 3")
    assert code == 3
    assert "aegis job why gone-" in err
    wait_down(aegis)
    code, out, err = aegis("job", "why", "gone", "-o", "json")
    assert code == 0, err
    found = json.loads(out)
    assert "failed (budget)" in found["now"]
    assert any("exit 3" in line["what"] for line in found["lines"])
    assert "and its stack with it: told from" in err
    assert [job["name"] for job in aegis.json("job", "ls")["items"]] == ["gone"]
    assert aegis.json("job", "show", found["job"])["summary"]["phase"] == "Failed"
    assert aegis.json("job", "events", "gone")["items"][-1]["phase"] == "Failed"
    code, _, err = aegis("job", "show", "never")
    assert code == 3 and "no run" in err
    assert "went with its stack" in aegis("logs", "gone")[2]
    assert aegis("job", "stop", "gone")[0] == 5  # acting needs a bus


def wait_down(aegis: Aegis) -> None:
    deadline = time.monotonic() + WAIT
    while aegis("status")[0] != 5:
        assert time.monotonic() < deadline


def test_a_job_that_the_stack_does_not_know_may_be_one_of_the_runs_before(aegis: Aegis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", aegis.environ["HOME"])
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert past.keep(past.of(detail(phase="Succeed"), [event(1, "all finished", phase="Succeed")], 1_795_990_000.0))
    code, out, err = aegis("job", "why", "ddp")
    assert code == 0 and "ddp-7f3a21 succeeded" in out and "all finished" in out
    assert "told from" in err


def test_the_last_twenty_runs_are_kept_for_their_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for number in range(past.KEPT + 3):
        run = past.of(detail(job=f"job-{number}"), [event(number, "all passed, run")], 1_795_990_000.0 + number)
        assert past.keep(run)
        os.utime(past.folder() / f"job-{number}.json", ns=(number, number))
    assert past.keep(past.of(detail(job="last-1"), [], 1_795_999_000.0))
    found = past.runs()
    assert len(found) == past.KEPT
    assert [run.detail.summary.job for run in found[:2]] == ["last-1", f"job-{past.KEPT + 2}"]
    assert stat.S_IMODE(past.folder().stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in past.folder().iterdir()} == {0o600}


def test_a_record_that_cannot_be_read_or_written_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert past.runs() == [] and past.find("ddp") is None
    good = past.of(detail(), [], 1_795_990_000.0)
    assert past.keep(good)
    (past.folder() / "broken.json").write_bytes(msgspec.json.encode(good)[:-10])
    (past.folder() / "folder.json").mkdir()
    assert [run.detail.summary.job for run in past.runs()] == ["ddp-7f3a21"]
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert past.keep(good) is False


def test_down_names_the_jobs_that_it_ends(aegis: Aegis, tmp_path: Path) -> None:
    aegis.environ["AEGIS_STACK_DIR"] = str(tmp_path / "own-stack")
    assert aegis("up")[0] == 0
    job = aegis.submit("--name", "cut", "--", "sleep", "600")
    aegis.until(job, lambda found: found["summary"]["phase"] == "RunCommand")
    assert f"1 job with it: {job} (RunCommand)" in aegis("down", "--dry-run")[1]
    code, _, err = aegis("down")
    assert code == 0
    assert f"ended, and 1 job with it: {job} (RunCommand)" in err
    assert aegis("down")[2].startswith("no stack in")


def test_the_version_is_one_line() -> None:
    found = subprocess.run([sys.executable, "-m", "aegis_cli", "--version"], capture_output=True, text=True, timeout=WAIT, check=True)
    assert found.stdout.startswith("aegis ") and found.stdout.count("\n") == 1
