"""Runtime, RDMA, memory, power and contention, against trees of files and an interpreter that says what we want."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aegis_agent.checks import contention, rdma, runtime, tool
from aegis_agent.checks.answer import Answer
from aegis_agent.checks.limits import limit, limits
from aegis_agent.checks.settings import from_environment
from check_machine import kernel_record, lay, run_program

IB = "sys/class/infiniband"


def ports(root: Path, **states: tuple[str, str, str]) -> None:
    for device, (state, phys, rate) in states.items():
        folder = f"{IB}/{device}/ports/1"
        lay(
            root,
            {
                f"{folder}/state": f"{state}\n",
                f"{folder}/phys_state": f"{phys}\n",
                f"{folder}/rate": f"{rate} Gb/sec (4X NDR)\n",
                f"{folder}/link_layer": "InfiniBand\n",
                f"{folder}/lid": "0x5\n",
                f"{folder}/counters/link_downed": "3\n",
            },
        )


UP, DOWN = ("4: ACTIVE", "5: LinkUp", "400"), ("1: DOWN", "3: Disabled", "10")
POLLING = ("1: DOWN", "2: Polling", "10")


def check_rdma(root: Path, **env: str) -> dict[str, Any]:
    return run_program("rdma", root, {"AEGIS_CHECKS_ROOT": str(root), **env})


def test_ports_as_expected_pass(tmp_path: Path) -> None:
    ports(tmp_path, mlx5_0=UP, mlx5_1=UP)
    for expected in ("2x400", "mlx5_0/1=400,mlx5_1/1=400"):
        answer = check_rdma(tmp_path, AEGIS_CHECKS_EXPECTED_PORTS=expected)
        assert answer["pass"] and answer["code"] == "", answer


def test_a_missing_or_slow_port_of_the_expected_set_fails(tmp_path: Path) -> None:
    ports(tmp_path, mlx5_0=UP, mlx5_1=POLLING, mlx5_2=("4: ACTIVE", "5: LinkUp", "200"))
    answer = check_rdma(tmp_path, AEGIS_CHECKS_EXPECTED_PORTS="3x400")
    assert not answer["pass"] and "1 of 3 active ports of 400 Gb/s; slower: mlx5_2/1 200" in answer["result"], answer
    answer = check_rdma(tmp_path, AEGIS_CHECKS_EXPECTED_PORTS="mlx5_1/1=400,mlx5_2/1=400")
    assert "rdma_port_missing mlx5_1/1" in answer["result"] and "rdma_rate mlx5_2/1: 200 of 400" in answer["result"]


def test_an_unexpected_dark_port_is_a_warning_and_one_switched_off_is_nothing(tmp_path: Path) -> None:
    ports(tmp_path, mlx5_0=UP, mlx5_1=POLLING, mlx5_2=DOWN)
    answer = check_rdma(tmp_path)
    assert answer["pass"] and answer["code"] == "ib_port_down" and "mlx5_2/1:" not in answer["result"], answer
    assert check_rdma(tmp_path, AEGIS_CHECKS_EXPECTED_PORTS="0x400")["code"] in ("ib_port_down", "rdma_port_extra")


def test_a_port_that_tells_no_counter_is_judged_by_its_state(tmp_path: Path) -> None:
    ports(tmp_path, mlx5_0=UP)
    counter = tmp_path / IB / "mlx5_0/ports/1/counters/link_downed"
    counter.unlink()
    counter.symlink_to("/proc/self/mem")  # reading at 0 gives EIO, as a register that may not be read does
    answer = check_rdma(tmp_path, AEGIS_CHECKS_EXPECTED_PORTS="mlx5_0/1=400")
    assert answer["pass"] and "every counter failed" in answer["result"], answer


def test_no_adapter_is_fine_only_where_none_is_expected(tmp_path: Path) -> None:
    assert check_rdma(tmp_path)["result"].startswith("not applicable")
    answer = check_rdma(tmp_path, AEGIS_CHECKS_EXPECTED_PORTS="8x400")
    assert not answer["pass"] and "0 of 8 active ports" in answer["result"]


def test_a_counter_that_rises_counts_and_one_that_stands_high_does_not(tmp_path: Path) -> None:
    from aegis_parsers.ib.live import Reader

    ports(tmp_path, mlx5_0=UP)
    reader = Reader(tmp_path / IB)
    before = reader.poll()
    answer = Answer("rdma")
    rdma.judge_counters(answer, before, reader.poll(), 1.0)
    assert answer.line()["pass"] and not answer.draft.has_any()
    lay(tmp_path, {f"{IB}/mlx5_0/ports/1/counters/link_downed": "4\n"})
    rdma.judge_counters(answer, before, reader.poll(), 1.0)
    assert (answer.line()["pass"], answer.line()["code"]) == (False, "rdma_link_downed")


def interpreter(tmp_path: Path, body: str) -> str:
    path = tmp_path / "python3"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_users_python_is_asked_not_ours(tmp_path: Path) -> None:
    said = '{"python": "3.12.1", "torch": "2.9.0", "cuda": "12.8", "nccl": "2.27.3", "driver_cuda": "12.8", "devices": 8}'
    answer = run_program("runtime", tmp_path, {"AEGIS_CHECKS_PYTHON": interpreter(tmp_path, f"echo '{said}'"), "AEGIS_CHECKS_EXPECTED_GPUS": "8"})
    assert answer["pass"] and "torch=2.9.0 cuda=12.8 nccl=2.27.3" in answer["result"] and answer["values"]["devices"] == 8.0, answer
    hooked = interpreter(tmp_path, f"echo '{said}'; echo 'bye: 3 objects freed'")
    assert runtime.ask(hooked, {})[0]["torch"] == "2.9.0", "what a hook of the user's prints at the end is no answer"
    job = interpreter(tmp_path, 'echo "{\\"torch\\": \\"$VERSION\\"}"')  # as a round asks: what the command names, with what the job sets
    answer = run_program("runtime", tmp_path, {"AEGIS_CHECKS_PYTHON": "/not/this"}, python=job, env={"VERSION": "2.7"})
    assert answer["pass"] and "torch=2.7" in answer["result"], answer


def test_a_tool_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(process: object, timeout: float | None = None) -> int:
        raise AssertionError("a process that a driver holds would be waited for")

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(subprocess.TimeoutExpired):
        tool.ask(["sleep", "600"], 0.2)


def test_a_python_that_does_not_start_is_a_broken_runtime(tmp_path: Path) -> None:
    answer = run_program("runtime", tmp_path, {"AEGIS_CHECKS_PYTHON": interpreter(tmp_path, "echo 'libssl.so: missing' >&2; exit 127")})
    assert not answer["pass"] and answer["code"] == "python_broken" and "libssl.so: missing" in answer["result"]


def test_the_real_interpreter_answers_without_importing_torch(tmp_path: Path) -> None:
    said, why = runtime.ask(sys.executable, {})
    assert not why and said["python"] == sys.version.split()[0]
    broken = tmp_path / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise SystemExit(9)")
    (broken / "version.py").write_text("__version__ = '9.9'\ncuda: str = '13.0'\n")
    answer = run_program("runtime", tmp_path, {"AEGIS_CHECKS_PYTHON": sys.executable, "PYTHONPATH": f"{tmp_path}:" + ":".join(sys.path)})
    assert not answer["pass"] and "torch has no lib folder" in answer["result"] and "torch=9.9 cuda=13.0" in answer["result"], answer


@pytest.mark.parametrize(
    ("said", "loaded", "code"),
    [
        ({"libcuda": "550.54.15", "cuinit": 803}, "535.161.08", "driver_library_mismatch"),
        ({"torch": "2.9", "cuda": "13.0", "driver_cuda": "12.4", "devices": 8}, "550.54.15", "driver_too_old"),
        ({"torch": "2.9", "cuda": "12.8"}, "", "cuda_unusable"),
        ({"torch": "2.9", "cuda": "12.8", "driver_cuda": "12.8", "cuinit": 100}, "", "cuda_unusable"),
        ({"torch": "2.9", "cuda": "12.8", "driver_cuda": "12.8", "devices": 7}, "", "device_count"),
    ],
)
def test_versions_that_cannot_work_together_fail(said: dict[str, Any], loaded: str, code: str) -> None:
    answer = Answer("runtime")
    runtime.judge(answer, said, loaded, 8)
    assert (answer.line()["pass"], answer.line()["code"]) == (False, code)


def test_versions_that_work_together_pass() -> None:
    for said in (
        {"torch": "2.9", "cuda": "12.8", "driver_cuda": "12.4", "devices": 8, "libcuda": "550.54.15"},
        {"torch": "2.9+cpu"},
        {"cuinit": 100, "driver_cuda": "12.4", "torch": "2.9"},
    ):
        answer = Answer("runtime")
        runtime.judge(answer, said, "550.54.15", None)
        assert answer.line()["pass"], said


def test_an_uncorrected_memory_error_fails_and_corrected_ones_warn(tmp_path: Path) -> None:
    mc = "sys/devices/system/edac/mc/mc0"
    env = {"AEGIS_CHECKS_ROOT": str(tmp_path)}
    lay(tmp_path, {f"{mc}/ce_count": "5\n", f"{mc}/ue_count": "0\n"})
    assert run_program("memory", tmp_path, env)["code"] == ""
    lay(tmp_path, {f"{mc}/ce_count": "20000\n"})
    answer = run_program("memory", tmp_path, env)
    assert (answer["pass"], answer["code"]) == (True, "memory_corrected")
    lay(tmp_path, {f"{mc}/ue_count": "1\n"})
    answer = run_program("memory", tmp_path, env)
    assert (answer["pass"], answer["code"]) == (False, "memory_uncorrected")
    lay(tmp_path, {f"{mc}/ue_count": "?\n"})
    assert run_program("memory", tmp_path, env)["pass"] is False  # unknown is never healthy


def test_a_machine_check_of_this_boot_fails(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(kernel_record("mce: [Hardware Error]: Machine check events logged"))
    answer = run_program("memory", tmp_path, {"AEGIS_CHECKS_ROOT": str(tmp_path), "AEGIS_CHECKS_KERNEL_LOG": str(log)})
    assert (answer["pass"], answer["code"]) == (False, "machine_check"), answer


def test_neighbours_are_told_of_and_accuse_nobody() -> None:
    answer = Answer("contention")
    contention.judge(answer, contention.Sample(0, 0, 0, 0), contention.Sample(30, 100, 10, 9), 50.0, None)
    line = answer.line()
    assert line["pass"] and {"contention_steal_share", "contention_throttled_share", "contention_memory_full"} <= set(line["result"].split())
    assert line["values"]["steal_share"] == 0.3 and "io_full" not in line["values"]


def test_throttling_is_read_from_the_own_cgroup(tmp_path: Path) -> None:
    for group, path in (("0::/kube/pod7\n", "sys/fs/cgroup/kube/pod7/cpu.stat"), ("5:cpu,cpuacct:/pod7\n", "sys/fs/cgroup/cpu/pod7/cpu.stat")):
        lay(tmp_path, {"proc/self/cgroup": group, "proc/stat": "cpu 1 0 1 6 0 0 0 2 0 0\n", path: "nr_periods 10\nnr_throttled 4\n"})
        assert contention.sample(from_environment({"AEGIS_CHECKS_ROOT": str(tmp_path)})) == (2, 10, 10, 4)


def test_every_threshold_has_a_unit_and_a_source() -> None:
    for group in ("io", "gpu", "memory", "contention", "rdma.counter"):
        for name, row in limits(group).items():
            assert row.unit and row.source and row.severity in ("warning", "critical", "fatal"), name
    assert limit("io.free_bytes").value == 500_000_000


SENSORS = """Fan1A            | 30h | ok  |  7.1 | 8760 RPM
Fan2B            | 35h | {fan}  |  7.1 | 0 RPM
PS1 Status       | 85h | ok  | 10.1 | Presence detected
PS2 Status       | 86h | ok  | 10.2 | Presence detected{supply}
PS Redundancy    | 77h | ok  |  7.1 | {redundancy}
Inlet Temp       | 05h | ok  |  7.1 | 24 degrees C
Exhaust Temp     | 06h | ns  |  7.1 | No Reading
"""


def test_a_machine_without_sensors_has_nothing_to_judge_and_one_that_tells_is_judged(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    env = {"AEGIS_CHECKS_ROOT": str(tmp_path), "PATH": f"{tools}:/usr/bin:/bin"}
    answer = run_program("power", tmp_path, env)
    assert answer["pass"] and "not applicable" in answer["result"]
    hwmon = "sys/class/hwmon/hwmon0"
    lay(tmp_path, {f"{hwmon}/fan1_input": "0\n", f"{hwmon}/fan1_min": "600\n", f"{hwmon}/fan2_input": "900\n"})
    answer = run_program("power", tmp_path, env)
    assert (answer["pass"], answer["code"], answer["values"]["fans"]) == (False, "fan_failed", 2.0) and "hwmon0 fan1" in answer["result"]
    lay(tmp_path, {f"{hwmon}/fan1_input": "900\n", "dev/ipmi0": "", "bin/ipmitool": '#!/bin/sh\ncat "$0.txt"\n'})
    (tools / "ipmitool").chmod(0o755)
    for fan, supply, redundancy, passed, codes in (
        ("ok", "", "Fully Redundant", True, set[str]()),
        ("lcr", "", "Fully Redundant", False, {"fan_failed"}),
        ("ok", ", Power Supply AC lost", "Redundancy Lost", True, {"power_supply_failed", "power_redundancy_lost"}),
    ):
        lay(tmp_path, {"bin/ipmitool.txt": SENSORS.format(fan=fan, supply=supply, redundancy=redundancy)})
        answer = run_program("power", tmp_path, env)
        assert answer["pass"] is passed and codes <= set(answer["result"].split()) and answer["values"]["sensors"] == 7.0, answer
        assert codes or answer["code"] == "", answer
