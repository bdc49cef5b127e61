"""Deep tests around a job: they really run on this machine's processor and memory, and the epilog is held against the prolog of the same job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from aegis_agent.checks import hang
from aegis_agent.checks.answer import Answer
from aegis_agent.checks.nvml import Board, Survey
from aegis_agent.checks.settings import Settings
from aegis_agent.deep import baseline, busy, compare, work
from aegis_agent.deep.command import against
from aegis_proto.messages import CheckResult
from check_machine import lay, run_program
from harness.waiting import until_sync


def around(verb: str, folder: Path, **env: str) -> tuple[int, dict[str, CheckResult]]:
    """`aegis-agent check VERB` for job 7, under a python without torch: the meeting of the node with itself is tested elsewhere."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -E -S "$@"\n')
    python.chmod(0o755)
    (folder / "quiet.log").touch()
    environ = {**os.environ, "AEGIS_CHECKS_KERNEL_LOG": str(folder / "quiet.log"), "AEGIS_CHECKS_PYTHON": str(python), **env}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    argv = [sys.executable, "-m", "aegis_agent", "check", verb, "--job", "7", "--state", str(folder / "state"), "--seconds", "0.1", "--json"]
    done = subprocess.run(argv, env=environ, cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode in (0, 1), done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {line["CheckType"]: CheckResult(**line) for line in lines}


def test_a_node_that_is_as_it_was_passes_prolog_and_epilog_and_one_that_fails_since_does_not(tmp_path: Path) -> None:
    code, before = around("prolog", tmp_path)
    assert code == 0 and all(result.Pass for result in before.values()), before
    assert before["deep-memory"].values["bytes"] >= 1 << 20 and before["deep-copy"].values["host.gb_per_s"] > 0
    assert before["deep-compute"].values["gb_per_s"] > 0 and "not applicable" in before["allreduce"].Result
    code, after = around("epilog", tmp_path, AEGIS_CHECKS_EXPECTED_GPUS="2")
    assert code == 1 and not after["epilog"].Pass
    assert after["epilog"].code == "failed_since_prolog" and "gpu" in after["epilog"].Result
    assert "nothing to compare with" in against(tmp_path / "state" / "prolog-7.json", []).Result, "an epilog uses its prolog up"


@pytest.mark.skipif(not shutil.which("cc"), reason="SKIPPED: no C compiler: the fake NVML cannot be built")
def test_on_a_gpu_that_is_used_the_deep_tests_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="SKIPPED: nvidia-ml-py is not installed")
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(source)], check=True)
    code, results = around("prolog", tmp_path, LD_LIBRARY_PATH=str(tmp_path), FAKE_NVML=" 1.pid=4242", AEGIS_CHECKS_EXPECTED_GPUS="2")
    assert code == 1 and (results["deep"].Pass, results["deep"].code) == (False, "busy"), results["deep"]
    assert "refused" in results["deep"].Result and "pid 4242" in results["deep"].Result and not any(name.startswith("deep-") for name in results)


def test_a_gpu_that_does_not_tell_whether_it_is_used_is_taken_for_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, {"dev/nvidiactl": ""})
    for survey in (Survey(missing=True), Survey(boards=[Board(0, "0000:3b:00.0")])):
        monkeypatch.setattr(busy.nvml, "survey", lambda survey=survey: survey)
        answer = Answer("deep")
        busy.examine(answer, Settings(root=str(tmp_path)), {})
        assert not answer.line()["pass"]
    monkeypatch.setattr(busy.nvml, "survey", lambda: Survey(boards=[Board(0, "0000:3b:00.0", processes=())]))
    busy.examine(answer := Answer("deep"), Settings(root=str(tmp_path)), {})
    assert answer.line()["pass"]


def test_an_epilog_accuses_what_got_worse_on_a_device_and_only_tells_what_a_shared_host_does() -> None:
    before = [
        CheckResult("deep-copy-cuda", True, values={"h2d.gb_per_s.0": 50.0, "h2d.gb_per_s.1": 50.0, "bytes": 9.0}),
        CheckResult("deep-copy", True, values={"host.gb_per_s": 10.0, "host": 1.0}),
        CheckResult("gpu", True, values={"ecc_uncorrected 0": 0.0}),
        CheckResult("io", False, "it was broken before"),
    ]
    after = [
        CheckResult("deep-copy-cuda", True, values={"h2d.gb_per_s.0": 39.0, "h2d.gb_per_s.1": 41.0, "bytes": 3.0}),
        CheckResult("deep-copy", True, values={"host.gb_per_s": 1.0, "host": 1.0}),
        CheckResult("gpu", True, values={"ecc_uncorrected 0": 2.0}),
        CheckResult("io", False, "and is"),
        CheckResult("new", False),
    ]
    found = {(finding.code, finding.item): finding.severity for finding in compare.compare(before, after)}
    assert found == {
        ("slower_than_prolog", "deep-copy-cuda h2d.gb_per_s.0"): "critical",
        ("slower_than_prolog", "deep-copy host.gb_per_s"): "warning",
        ("errors_since_prolog", "gpu ecc_uncorrected 0"): "critical",
    }
    assert compare.compare(before, before) == ()


def test_a_node_is_held_against_its_own_good_speeds_and_takes_no_slow_one_for_usual(tmp_path: Path) -> None:
    def of(speed: float, *, passed: bool = True) -> list[CheckResult]:
        return [CheckResult("deep-copy-cuda", passed, values={"h2d.gb_per_s.0": speed, "p2p1.gb_per_s.0": 300.0})]

    path = tmp_path / "own" / baseline.FILE
    assert "nothing to compare" in baseline.judge(path, of(50.0)).Result
    baseline.judge(path, of(1.0, passed=False))  # what failed measures nothing
    for speed in (52.0, 51.0, 43.0):
        assert baseline.judge(path, of(speed)).Pass
    slow = baseline.judge(path, of(39.0))
    assert (slow.Pass, slow.code) == (False, "slower_than_baseline") and "h2d.gb_per_s.0 39" in slow.Result and "p2p1" not in slow.Result
    assert len(baseline.load(path).speeds["deep-copy-cuda h2d.gb_per_s.0"]) == 4, "a slow one is not learned"
    for _ in range(10):
        baseline.judge(path, of(45.0))
    assert len(baseline.load(path).speeds["deep-copy-cuda h2d.gb_per_s.0"]) == baseline.KEPT


def test_bandwidth_in_a_round_below_what_the_node_had_is_told_where_it_counts_and_fails_nothing(tmp_path: Path) -> None:
    def of(speed: float, counts: bool = True) -> list[CheckResult]:
        values = {"net.4194304.2": speed, "net.4194304.5": speed / 2, "local.4194304.1": 400.0} | ({"counts": 1.0} if counts else {})
        return [CheckResult("gpu", True), CheckResult("performance", True, "well", values=values)]

    path = tmp_path / "rounds.json"
    assert baseline.in_round(path, of(10.0, counts=False)) == of(10.0, counts=False) and not path.exists()
    for speed in (50.0, 48.0, 50.0):
        assert baseline.in_round(path, of(speed)) == of(speed)
    [gpu, told] = baseline.in_round(path, of(30.0))
    assert (told.Pass, told.code) == (True, "slower_than_baseline") and "net.4194304 30, 50 when it was well" in told.Result and gpu.code == ""


def test_a_processor_that_errs_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right, calls = work.chain, []

    def errs(data: bytes) -> bytes:
        calls.append(1)
        return right(data) if len(calls) != 3 else right(data[:-1] + b"\x01")

    monkeypatch.setattr(work, "chain", errs)
    with pytest.raises(work.Broken, match="differ"):
        work.host_compute(60.0)


def test_what_is_measured_on_a_device_has_ended_there_and_not_only_on_the_first_one() -> None:
    torch, third = mock.MagicMock(), SimpleNamespace(type="cuda", index=3)
    torch.equal.return_value = True
    work.device_copy(torch, third, 0.0, [SimpleNamespace(type="cuda", index=0)])
    work.device_compute(torch, third, 0.0)
    waits = torch.cuda.synchronize.call_args_list
    assert len(waits) >= 5 and all(wait == mock.call(third) for wait in waits), waits


@pytest.mark.parametrize("told", [signal.SIGSTOP, None])
def test_a_training_that_is_stopped_is_seen_and_left_alone(tmp_path: Path, told: signal.Signals | None) -> None:
    scope = f"hang{os.getpid()}.w0.1."
    child = subprocess.Popen(["sleep", "600"], env={**os.environ, "AEGIS_SCOPE": f"{scope}3"})
    try:
        stat = Path(f"/proc/{child.pid}/stat")
        until_sync(lambda: "(sleep)" in stat.read_text(), 10)
        if told is not None:
            child.send_signal(told)
            until_sync(lambda: ") T " in stat.read_text(), 10)
        answer = run_program("hang", tmp_path, {}, scope=scope)
        if told is None:
            assert answer["pass"] and answer["values"]["processes"] == 1
        else:
            assert (answer["pass"], answer["code"]) == (False, "hang_stopped") and f"pid {child.pid}" in answer["result"]
        assert child.poll() is None
        assert "no training runs here" in run_program("hang", tmp_path, {}, scope=f"{scope}9.")["result"]
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("scope", "is_one"),
    [
        ("u.w0.1.3", True),
        ("u.w0.1.12.r1", True),
        ("agents.w0.1.3", True),
        ("", False),
        ("u.w0.1.agent", False),
        ("u.w0.1.agent-" + "." * 60, False),
        ("u.w0.1.check-io", False),
        ("check.77.0-together", False),
    ],
)
def test_agents_standbys_and_checks_are_no_training(scope: str, is_one: bool) -> None:
    assert hang.training(scope) is is_one
