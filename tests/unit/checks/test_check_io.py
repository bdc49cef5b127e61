"""The check of storage: what is broken is named, what is well passes, and one dead mount hides nothing of the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from aegis_agent.checks import io, kernellog
from aegis_agent.checks.answer import Answer
from aegis_agent.checks.settings import Mount, from_environment
from check_machine import kernel_record, lay, run_program


def judged(seen: dict[str, Any]) -> dict[str, Any]:
    answer = Answer("io")
    io.judge(answer, "/data", seen)
    return answer.line()


def test_a_writable_folder_passes_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    answer = run_program("io", tmp_path, {"AEGIS_CHECKS_MOUNTS": str(data)})
    assert answer["pass"], answer
    assert list(data.iterdir()) == [] and answer["values"][f"seconds {data}"] > 0


def test_modules_of_the_training_s_folder_are_never_ours(tmp_path: Path) -> None:
    for name in ("json", "select", "types"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    code = "import sys, subprocess; from aegis_agent import own; sys.exit(subprocess.run([*own.python(), '-m', 'aegis_agent.checks.io']).returncode)"
    done = subprocess.run([sys.executable, "-P", "-c", code], input="", cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and '"pass"' in done.stdout, done


def test_a_mount_that_is_not_there_or_not_mounted_fails_and_is_named(tmp_path: Path) -> None:
    answer = run_program("io", tmp_path, {"AEGIS_CHECKS_MOUNTS": f"{tmp_path}/gone,{tmp_path}:mount"})
    assert not answer["pass"] and f"mount_missing {tmp_path}/gone" in answer["result"] and "nothing is mounted there" in answer["result"]


def test_a_mount_that_does_not_answer_is_named_and_the_others_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stalled(mount: Mount) -> dict[str, Any]:
        if mount.path == "/stalled":
            signal.pause()
        return {"seconds": 0.1}

    monkeypatch.setattr(io, "probe", stalled)
    answers = io.probe_all([Mount("/stalled"), Mount("/well")], 2.5)
    assert answers["/stalled"]["code"] == "mount_stalled" and answers["/well"] == {"seconds": 0.1}
    assert not judged(answers["/stalled"])["pass"]


def test_what_a_disk_says_of_itself_counts_by_hand_and_one_that_says_nothing_is_noted(tmp_path: Path) -> None:
    lay(tmp_path, {"sys/block/nvme0n1/size": "", "sys/block/sda/size": "", "sys/block/loop0/size": ""})
    script = "#!/bin/sh\ncase $4 in */nvme0n1) echo '{0}'; exit 8;; *) echo '{1}'; exit 2;; esac\n"
    bad = '{"smartctl": {}, "device": {"name": "/dev/nvme0n1"}, "smart_status": {"passed": false}}'
    mute = '{"smartctl": {"messages": [{"string": "Unknown USB bridge"}]}, "device": {"name": "/dev/sda"}}'
    (tmp_path / "smartctl").write_text(script.replace("{0}", bad).replace("{1}", mute))
    (tmp_path / "smartctl").chmod(0o755)
    env = {"AEGIS_CHECKS_ROOT": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (tmp_path / "proc").mkdir()
    answer = run_program("io", tmp_path, env)
    assert (answer["pass"], answer["code"]) == (False, "smart_failed") and "/dev/sda: /dev/sda: tells nothing: Unknown USB bridge" in answer["result"]
    assert run_program("io", tmp_path, env, round="troubleshoot", run_for=1.0)["pass"], "asking disks is not on the way of a recovery"


def test_a_probe_that_answered_and_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel holds on its way out: closing a file on a dead server."""
    before = {child.pid for child in psutil.Process().children()}
    monkeypatch.setattr(io, "probe", lambda mount: {"seconds": 0.1})
    monkeypatch.setattr(os, "_exit", lambda code: signal.pause())
    try:
        assert io.probe_all([Mount("/lingers")], 60.0) == {"/lingers": {"seconds": 0.1}}
    finally:
        for child in psutil.Process().children():
            if child.pid not in before:
                child.kill()
                child.wait(30)


def test_data_that_comes_back_changed_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pread", lambda fd, size, at: b"x" * size)
    assert io.probe(Mount(str(tmp_path)))["code"] == "data_corrupt"


def test_little_space_warns_and_none_fails() -> None:
    space = {"size": 10 << 40, "inodes": 1000, "inodes_free": 500, "seconds": 0.1}
    assert (judged({**space, "free": 5 << 40})["code"], judged({**space, "free": 5 << 40})["pass"]) == ("", True)
    assert (judged({**space, "free": 1 << 39})["code"], judged({**space, "free": 1 << 39})["pass"]) == ("disk_nearly_full", True)
    assert (judged({**space, "free": 1 << 20})["code"], judged({**space, "free": 1 << 20})["pass"]) == ("disk_full", False)
    assert judged({**space, "free": 5 << 40, "inodes_free": 1})["code"] == "inodes_full"
    own = Answer("io")
    io.judge(own, "/work", {**space, "free": 1 << 20}, own=True)
    assert (own.line()["code"], own.line()["pass"]) == ("disk_full", True)  # nobody said that the working directory takes data
    assert judged({**space, "free": 5 << 40, "inodes": 0, "inodes_free": 0})["pass"]  # btrfs counts none


def test_a_kernel_line_about_storage_fails_while_it_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "kmsg"
    line = "EXT4-fs (sda1): Remounting filesystem read-only"
    log.write_text(kernel_record(line))
    answer = run_program("io", tmp_path, {"AEGIS_CHECKS_KERNEL_LOG": str(log)})
    assert not answer["pass"] and answer["code"] == "fs_readonly", answer
    monkeypatch.setattr(kernellog, "age", lambda line: 90000.0)
    later = Answer("io")
    io.kernel_lines(later, from_environment({"AEGIS_CHECKS_KERNEL_LOG": str(log)}), None)
    assert later.line()["pass"] and "earlier in this boot: fs_readonly" in later.line()["result"]


@pytest.mark.parametrize(("run_for", "code"), [(5.0, "fs_readonly"), (0.5, "")], ids=["since the run began", "before it"])
def test_in_a_round_a_kernel_line_speaks_of_its_own_run_alone_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_for: float, code: str
) -> None:
    log = tmp_path / "kmsg"
    log.write_text(kernel_record("EXT4-fs (sda1): Remounting filesystem read-only"))
    monkeypatch.setattr(kernellog, "age", lambda line: 1.0)
    answer = Answer("io")
    io.kernel_lines(answer, from_environment({"AEGIS_CHECKS_KERNEL_LOG": str(log)}), run_for)
    assert (answer.line()["pass"], answer.line()["code"]) == (True, code)


def test_a_kernel_log_that_may_not_be_read_is_said_and_fails_nothing(tmp_path: Path) -> None:
    answer = run_program("io", tmp_path, {"AEGIS_CHECKS_KERNEL_LOG": str(tmp_path / "none")})
    assert answer["pass"] and "No such file" in answer["result"]


def test_a_process_in_uninterruptible_sleep_is_stuck_only_if_it_never_runs(tmp_path: Path) -> None:
    status = "Name:\t{name}\nState:\t{state}\nVmSize:\t 100 kB\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t0\n"
    lay(
        tmp_path,
        {
            "11/status": status.format(name="python", state="D (disk sleep)"),
            "12/status": status.format(name="bash", state="S (sleeping)"),
            "13/status": "Name:\tkworker\nState:\tD (disk sleep)\n",
        },
    )
    (tmp_path / "14").mkdir()
    (tmp_path / "14" / "status").write_bytes(status.format(name="?", state="D (disk sleep)").encode().replace(b"?", "训练进程名".encode()[:13]))
    assert io.stuck(str(tmp_path), pause=0.0) == {11: "python", 14: "训练进程\N{REPLACEMENT CHARACTER}"}, "a name is bytes, cut anywhere"


def test_a_site_has_thresholds_of_its_own_and_a_file_with_a_mistake_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    env = {"AEGIS_CHECKS_MOUNTS": str(tmp_path), "AEGIS_CHECKS_LIMITS": str(file)}
    file.write_text('[io.free_bytes]\nvalue = 1e30\nseverity = "warning"\n')
    answer = run_program("io", tmp_path, env)
    assert (answer["pass"], answer["code"]) == (True, "disk_full"), answer
    file.write_text("[io.free_byte]\nvalue = 1e30\n")
    answer = run_program("io", tmp_path, env)
    assert (answer["pass"], answer["code"]) == (True, "settings") and "io.free_byte: no limit of that name" in answer["result"], answer


def test_a_mount_that_is_only_read_may_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of a data set has no free block and no free inode."""
    full = os.statvfs_result((4096, 4096, 1000, 0, 0, 1000, 0, 0, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert judged(io.probe(Mount(str(tmp_path), readonly=True)))["pass"]
    assert judged(io.probe(Mount(str(tmp_path))))["code"] == "fs_readonly"
