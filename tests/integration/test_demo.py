"""`aegis demo`, as a user starts it: everything comes out as promised, and nothing is left behind."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from aegis_cli.stack import guard

pytestmark = [pytest.mark.integration, pytest.mark.torch]


@pytest.mark.timeout(400)
def test_the_demo_survives_three_faults_with_the_weights_of_an_undisturbed_run(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    environ = {key: value for key, value in os.environ.items() if not key.startswith("AEGIS_")}
    environ |= {"TMPDIR": str(tmp_path)}
    before = set(guard.processes())
    done = subprocess.run(
        [sys.executable, "-m", "aegis_cli", "demo", "--report", str(path)], env=environ, capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(path.read_text())
    assert (report["apiVersion"], report["kind"]) == ("aegis/v1", "DemoReport")
    assert report["result"] == "Succeed"
    assert report["recover_count"] == 2
    assert report["incarnations"] == 3
    assert report["retries_history"] == ["0:0:0", "1:0:0", "1:1:1", "1:2:1", "2:2:2"]
    assert report["final_state_equal"] is True
    assert report["not_as_promised"] == []
    assert [phase["phase"] for phase in report["phases"] if phase["counted"]] == ["Restarting", "Troubleshooting"]
    assert [phase["worker"] for phase in report["phases"] if phase["counted"]] == ["w0", "w1"]
    assert len(report["kill_to_first_step_s"]) == len(report["respawn_s"]) == 2
    assert all(0 < respawn < step for respawn, step in zip(report["respawn_s"], report["kill_to_first_step_s"], strict=True))
    assert 0 < report["takeover_s"] < 15
    assert report["accuracy"] > 0.9
    assert statistics.median(report["kill_to_first_step_s"]) < 60
    for text in ("virtual nodes of this machine", "the agent of w0 killed", "took over in", "ValueError: bad sample", "bit for bit"):
        assert text in done.stdout
    left = [pid for pid in set(guard.processes()) - before if str(tmp_path).encode() in _command(pid)]
    assert left == []
    assert list(tmp_path.glob("aegis-demo-*")) == []


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
