"""The check of storage on real mounts: full, read-only, gone, stalled, frozen. Needs root, for mounts in a namespace of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="SKIPPED: mounts need root and unshare"),
]


STALL = Path(__file__).parent / "support" / "stalledmount.py"


def check(tmp_path: Path, before: str, mounts: str, around: str = "") -> dict[str, Any]:
    """The result of `check run io` behind `before`, shell commands in a mount namespace that dies with them; `around`: a command that runs it."""
    log = tmp_path / "quiet.log"
    log.touch()
    env = {**os.environ, "AEGIS_CHECKS_MOUNTS": mounts, "AEGIS_CHECKS_KERNEL_LOG": str(log)}
    script = f"set -e\n{before}\nexec {around} {sys.executable} -m aegis_agent check run io --json\n"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=100, check=False)
    assert done.returncode in (0, 1), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if result["Pass"] else 1)
    return result


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def test_a_mounted_file_system_that_works_passes(tmp_path: Path, data: Path) -> None:
    result = check(tmp_path, f"mount -t tmpfs -o size=1g none {data}", f"{data}:mount")
    assert result["Pass"] and result.get("code", "") == "", result


def test_a_full_file_system_fails(tmp_path: Path, data: Path) -> None:
    fill = f"mount -t tmpfs -o size=4m none {data}; dd if=/dev/zero of={data}/all bs=64k 2>/dev/null || true"
    result = check(tmp_path, fill, str(data))
    assert (result["Pass"], result["code"]) == (False, "disk_full") and str(data) in result["Result"], result


def test_a_file_system_turned_read_only_fails_unless_it_may_be(tmp_path: Path, data: Path) -> None:
    before = f"mount -t tmpfs -o size=1g none {data}; mount -o remount,ro {data}"
    result = check(tmp_path, before, str(data))
    assert (result["Pass"], result["code"]) == (False, "fs_readonly"), result
    assert check(tmp_path, before, f"{data}:ro")["Pass"]


def test_a_mount_that_went_away_fails(tmp_path: Path, data: Path) -> None:
    result = check(tmp_path, f"mount -t tmpfs none {data}; umount {data}", f"{data}:mount")
    assert (result["Pass"], result["code"]) == (False, "mount_missing"), result


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="SKIPPED: no FUSE in this kernel: no mount that stalls")
def test_a_mount_that_does_not_answer_is_named_and_the_others_are_judged(tmp_path: Path, data: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    result = check(tmp_path, ":", f"{data},{other}", around=f"{sys.executable} {STALL} {data}")
    assert (result["Pass"], result["code"]) == (False, "mount_stalled") and str(data) in result["Result"], result
    assert f"seconds {other}" in result["values"] and result["duration"] < 30, result


@pytest.mark.skipif(not (shutil.which("mkfs.ext4") and shutil.which("fsfreeze")), reason="SKIPPED: no mkfs.ext4, or no fsfreeze")
def test_a_file_system_whose_writers_are_stuck_in_the_kernel_is_named_though_its_probe_cannot_be_ended(tmp_path: Path, data: Path) -> None:
    """Frozen: a write waits in uninterruptible sleep, as behind a dead storage server. It thaws when the check has spoken."""
    image = tmp_path / "image"
    before = f"truncate -s 16M {image}; mkfs.ext4 -q {image}; mount -o loop {image} {data}; fsfreeze -f {data}"
    code = f"import subprocess as s, sys; c = s.run(sys.argv[1:]).returncode; s.run(['fsfreeze', '-u', '{data}']); sys.exit(c)"
    thaw = f'{sys.executable} -c "{code}"'
    result = check(tmp_path, before, str(data), around=thaw)
    assert (result["Pass"], result["code"]) == (False, "mount_stalled") and str(data) in result["Result"], result
