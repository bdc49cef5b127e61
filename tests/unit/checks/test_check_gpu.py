"""The GPU check against NVIDIA's real bindings, over a library that we compile; the tools of others as scripts that print what those printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aegis_agent.checks.nvml import Failure, ask
from aegis_agent.deep.compare import compare
from aegis_agent.monitors import gpus
from aegis_agent.monitors.gpus import Nvml
from aegis_proto.messages import CheckResult
from check_machine import kernel_record, run_program
from harness.waiting import until

CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="SKIPPED: no C compiler: the fake NVML cannot be built")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pynvml", reason="SKIPPED: nvidia-ml-py is not installed")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run([str(CC), "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    return folder


def gpu(library: Path, tmp_path: Path, facts: str = "", **env: str) -> dict[str, Any]:
    return run_program("gpu", tmp_path, {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": f" {facts}", **env})


def test_healthy_gpus_pass(library: Path, tmp_path: Path) -> None:
    answer = gpu(library, tmp_path, AEGIS_CHECKS_EXPECTED_GPUS="2")
    assert (answer["pass"], answer["code"], answer["values"]["gpus"]) == (True, "", 2.0), answer
    assert answer["values"]["margin_celsius 0"] == 50.0


def test_errors_that_came_since_the_prolog_are_seen_by_the_epilog(library: Path, tmp_path: Path) -> None:
    before, after = (gpu(library, tmp_path, facts) for facts in ("1.ecc=2 1.remapped=1", "1.ecc=3 1.remapped=1"))
    assert before["pass"] and after["pass"], "remapped: not by itself a reason to fail"
    found = compare([CheckResult("gpu", True, values=before["values"])], [CheckResult("gpu", True, values=after["values"])])
    assert [(finding.code, finding.item) for finding in found] == [("errors_since_prolog", "gpu ecc_uncorrected 1")], (before, after)


@pytest.mark.parametrize(
    ("facts", "code", "item"),
    [
        ("1.lost=1", "gpu_lost", "GPU 1"),
        ("1.nohandle=1", "gpu_lost", "GPU 1"),
        ("0.reset=1", "gpu_requires_reset", "GPU 0"),
        ("0.failed=1 0.remapped=8", "row_remap_failed", "10:00.0"),
        ("1.old=1 1.ecc=3", "ecc_uncorrected", "11:00.0"),
        ("1.dark=2", "nvlink_inactive", "11:00.0: links 2 of 4"),
        ("init=18", "driver_library_mismatch", "node"),
        ("init=9", "driver_not_loaded", "node"),
        ("count=1", "gpu_count", "1 of 2 GPUs"),
        ("1.eccbroken=1", "unknown", "11:00.0 ECC"),
    ],
)
def test_a_gpu_that_cannot_be_trained_on_fails_and_is_named(library: Path, tmp_path: Path, facts: str, code: str, item: str) -> None:
    answer = gpu(library, tmp_path, facts, AEGIS_CHECKS_EXPECTED_GPUS="2")
    assert not answer["pass"] and code in (answer["code"], *answer["result"].split()) and item in answer["result"], answer


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ("0.ecc=3 0.remapped=1", "ecc_uncorrected"),  # the driver has remapped it: judged by the state
        ("0.pending=1", "row_remap_pending"),
        ("0.reasons=0x40", "throttle_hw_thermal_slowdown"),
        ("0.temp=91", "gpu_hot"),
        ("0.width=8", "pcie_width"),
        ("bridge=2", "nvlink_inactive"),  # every board alike: as it was built
    ],
)
def test_what_does_not_stop_a_training_is_only_a_warning(library: Path, tmp_path: Path, facts: str, code: str) -> None:
    answer = gpu(library, tmp_path, facts)
    assert answer["pass"] and answer["code"] == code, answer


def test_a_guest_that_may_not_see_the_hosts_side_is_well(library: Path, tmp_path: Path) -> None:
    answer = gpu(library, tmp_path, "0.guest=1")
    assert answer["pass"] and answer["code"] == "" and "cannot be read: PCIe width" in answer["result"], answer


def test_a_library_without_a_gpu_is_fine_where_none_is_expected(library: Path, tmp_path: Path) -> None:
    answer = gpu(library, tmp_path, "init=9", AEGIS_CHECKS_ROOT=str(tmp_path))
    assert answer["pass"] and answer["result"].startswith("not applicable"), answer
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    answer = gpu(library, tmp_path, "init=9", AEGIS_CHECKS_ROOT=str(tmp_path))
    assert (answer["pass"], answer["code"]) == (False, "driver_not_loaded"), answer


def test_an_xid_of_another_tenants_gpu_accuses_nobody_while_all_of_ours_are_here(library: Path, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(kernel_record("NVRM: Xid (PCI:0000:77:00): 79, pid=1, name=python, GPU has fallen off the bus."))
    env = {"AEGIS_CHECKS_KERNEL_LOG": str(log)}
    assert gpu(library, tmp_path, AEGIS_CHECKS_EXPECTED_GPUS="2", **env)["pass"]
    answer = gpu(library, tmp_path, AEGIS_CHECKS_EXPECTED_GPUS="3", **env)
    assert not answer["pass"] and "xid_79 0000:77:00" in answer["result"], answer


def test_one_lost_gpu_does_not_hide_the_others(library: Path, tmp_path: Path) -> None:
    answer = gpu(library, tmp_path, "count=3 0.lost=1 2.failed=1")
    assert "gpu_lost" in answer["result"] and "row_remap_failed 00000000:12:00.0" in answer["result"], answer


def test_an_xid_of_this_boot_counts_and_the_state_of_remapping_beats_its_event(library: Path, tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(kernel_record("NVRM: Xid (PCI:0000:10:00): 64, pid='<unknown>', name=<unknown>, row remap failure"))
    answer = gpu(library, tmp_path, AEGIS_CHECKS_KERNEL_LOG=str(log))
    assert answer["pass"] and "the state of the remapping decides" in answer["result"], answer
    log.write_text(kernel_record("NVRM: Xid (PCI:0000:11:00): 79, pid=1, name=python, GPU has fallen off the bus."))
    answer = gpu(library, tmp_path, AEGIS_CHECKS_KERNEL_LOG=str(log))
    assert not answer["pass"] and "xid_79 0000:11:00" in answer["result"], answer
    log.write_text(kernel_record("NVRM: Xid (PCI:0000:11:00): 13, pid=1, name=python, Graphics Exception"))
    assert gpu(library, tmp_path, AEGIS_CHECKS_KERNEL_LOG=str(log))["pass"]


def test_no_gpu_is_fine_only_where_none_is_expected(tmp_path: Path) -> None:
    answer = run_program("gpu", tmp_path, {"PATH": str(tmp_path)})
    assert answer["pass"] and answer["result"].startswith("not applicable"), answer
    answer = run_program("gpu", tmp_path, {"PATH": str(tmp_path), "AEGIS_CHECKS_EXPECTED_GPUS": "8"})
    assert not answer["pass"] and "0 of 8 GPUs" in answer["result"], answer


def test_a_setting_that_cannot_be_read_is_said_and_accuses_nobody(tmp_path: Path) -> None:
    answer = run_program("gpu", tmp_path, {"PATH": str(tmp_path), "AEGIS_CHECKS_EXPECTED_GPUS": "eight"})
    assert answer["pass"] and answer["code"] == "settings" and "AEGIS_CHECKS_EXPECTED_GPUS='eight'" in answer["result"]


NPU = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 23.0.rc2                 Version: 23.0.rc2                                              |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B                | {health}| 90.2        43                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3162 / 65536         |
+===========================+===============+====================================================+
"""


def test_another_vendors_tool_is_asked_and_its_alarm_fails(tmp_path: Path) -> None:
    tool = tmp_path / "npu-smi"
    for health, passed in (("OK            ", True), ("Critical      ", False)):
        tool.write_text("#!/bin/sh\n/bin/cat <<'E'\n" + NPU.format(health=health) + "E\n")
        tool.chmod(0o755)
        answer = run_program("gpu", tmp_path, {"PATH": str(tmp_path), "AEGIS_CHECKS_EXPECTED_GPUS": "1"})
        assert answer["pass"] is passed and answer["values"]["gpus"] == 1.0, answer


async def test_a_driver_that_holds_its_caller_holds_the_monitors_process_alone(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waits in the kernel would keep the agent from ending; a child does not. Nothing is asked while it is held, and then again."""
    facts, threads = tmp_path / "facts", threading.active_count()
    started: list[subprocess.Popen[bytes]] = []
    facts.write_text("1.util=40")
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML_FILE": str(facts)}
    monkeypatch.setenv("AEGIS_CHECKS_EXPECTED_GPUS", "2")

    def start(argv: Sequence[str], fd: int) -> None:
        started.append(subprocess.Popen(argv, env=env, stdin=fd, stdout=fd))

    nvml = Nvml(start)
    try:
        seen = await nvml.read()
        assert seen is not None and (seen.use, seen.power) == ((0.0, 40.0), (400.0, 400.0))
        monkeypatch.setattr(gpus, "DEADLINE", 0.05)
        facts.write_text("hang=1")
        with pytest.raises(TimeoutError):
            await nvml.read()
        assert await nvml.read() is None and threading.active_count() == threads
        facts.write_text("0.lost=1")
        await until(lambda: started[0].poll() is not None, 60, "the process ends when its driver comes back")
        with pytest.raises(OSError, match="GPU is lost"):
            await nvml.read()
        assert len(started) == 2
    finally:
        nvml.close()
        for process in started:
            process.kill()
            process.wait()


def test_an_answer_of_the_library_that_cannot_be_read_is_unknown_and_no_crash() -> None:
    pynvml = pytest.importorskip("pynvml", reason="SKIPPED: nvidia-ml-py is not installed")

    def too_many() -> None:
        raise MemoryError

    for question in (b"\xff".decode, too_many):
        assert isinstance(ask(pynvml, question), Failure)
