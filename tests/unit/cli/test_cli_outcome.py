"""How a finished job ends the command that waited for it: exit code and sentence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aegis_cli import outcome
from aegis_proto.api import JobDetail, WorkerView
from aegis_proto.phases import Phase
from cli_data import detail, step


def failed(reason: str, cause: str = "error", exit_code: int | None = None, max_retry: int = 3) -> JobDetail:
    found = detail(phase="Failed", failedReason=reason, exitCode=exit_code, maxRetry=max_retry, lastReason=cause)
    last = step(950, Phase.RUN_COMMAND, Phase.TROUBLESHOOTING, 2, "2:2:3", cause, podName="w2", message="w2 failed", counted=True)
    return msgspec.structs.replace(found, transitions=(*found.transitions, last))


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (detail(phase="Succeed", exitCode=0), 0),
        (failed("stopped", exit_code=143), 143),
        (failed("command", exit_code=127), 127),
        (failed("command", exit_code=126), 126),
        (failed("exited", exit_code=9), 9),
        (failed("placing"), 75),
        (failed("boot"), 75),
        (failed("budget", "killed", 137), 75),
        (failed("budget", "signal", 139), 76),
        (failed("budget", "signal", 134), 76),
        (failed("budget", "signal", 137), 75),
        (failed("budget", "gpuLost"), 75),
        (failed("budget", "error", 1), 76),
        (failed("budget", "hung"), 76),
        (failed("budget", "error", 3, max_retry=0), 3),
        (failed("budget", "signal", 137, max_retry=0), 137),
        (failed("budget", "killed", None, max_retry=0), 75),
    ],
)
def test_exit_code(found: JobDetail, code: int) -> None:
    assert outcome.exit_code(found) == code
    error = outcome.problem(found)
    assert (error is None) == (code == 0)
    assert error is None or error.exit == code


def test_only_the_ctrl_c_of_this_very_run_ends_with_130() -> None:
    assert outcome.exit_code(failed("stopped"), signalled=2) == 130
    assert outcome.exit_code(failed("budget", "error", 1), signalled=2) == 76
    error = outcome.problem(failed("stopped"), signalled=2)
    assert error is not None and error.exit == 130
    assert outcome.report(failed("stopped"), (), 2)["exitCode"] == 130


@pytest.mark.parametrize(
    ("max_retry", "kinds"),
    [(1, "2 error"), (2, "1 killed, 2 error"), (3, "of the last 3: 1 killed, 2 error"), (20, "of the last 3: 1 killed, 2 error")],
)
def test_the_kinds_of_faults_add_up_to_what_they_are_said_to_be(max_retry: int, kinds: str) -> None:
    error = outcome.problem(failed("budget", "error", 1, max_retry))
    assert error is not None
    assert error.message == f"Failed: {max_retry + 1} faults, {max_retry} allowed ({kinds}; the last: w2 failed)"


def test_budget_spent_says_how_many_of_which_kind_and_the_last() -> None:
    error = outcome.problem(failed("budget", "error", 1, max_retry=2))
    assert error is not None
    assert error.code == "E301"
    assert error.message == "Failed: 3 faults, 2 allowed (1 killed, 2 error; the last: w2 failed)"


def test_w202_says_that_a_plain_job_ran_without_aegis_and_how_it_ended() -> None:
    error = outcome.problem(failed("exited", exit_code=9))
    assert error is not None
    assert str(error) == f"W202 {detail().summary.job} ran without Aegis and ended with exit code 9"


@pytest.mark.parametrize(("word", "near"), [("pyhton", "python"), ("torchrnu", "torchrun"), ("python", ""), ("./train", ""), ("zzzzqqq", "")])
def test_a_misspelt_command_gets_the_nearest_one(word: str, near: str, tmp_path: Any) -> None:
    for name in ("python", "torchrun", "bash"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert outcome.nearest_command(word, str(tmp_path)) == near


def test_command_not_found_names_worker_node_and_code() -> None:
    found = failed("command", exit_code=127)
    worker = WorkerView("w0", "cn-114", state="Failed", exitCode=127)
    found = msgspec.structs.replace(found, workers=(worker,), command=("sh", "-c", "zzzzqqq train.py"))
    error = outcome.problem(found)
    assert error is not None
    assert str(error) == 'E111 w0 on cn-114: "zzzzqqq" not found in PATH (exit 127). Not counted, not retried.'


def test_the_report_is_whole_and_in_plain_types() -> None:
    report = outcome.report(failed("budget", "error", 1))
    assert report["incarnations"] == 3
    assert report["exitCode"] == 76
    assert [phase["phase"] for phase in report["phases"]][:3] == ["BootChecking", "RunCommand", "Restarting"]
    assert sum(phase["counted"] for phase in report["phases"]) == 3
    assert msgspec.json.decode(msgspec.json.encode(report)) == report
