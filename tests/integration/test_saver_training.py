"""The saver in trainings: a save that is cut is never taken for complete, and what is resumed is what was saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aegis_agent.ports import free_port
from aegis_saver.folder import complete

pytestmark = [pytest.mark.integration, pytest.mark.torch]

TRAIN = """
import hashlib, json, os, sys, time
import torch
torch.manual_seed(0); torch.set_num_threads(1)
from aegis_saver import Saver
from aegis_saver import saver as module
if os.environ.get("WORLD_SIZE", "1") != "1":
    torch.distributed.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 4))
net[0].requires_grad_(False)                      # what does not change is not written again
opt = torch.optim.AdamW(net[1].parameters(), lr=1e-2)
saver = Saver(sys.argv[1], every=5, model=net, optimizer=opt)
start = saver.start()
if os.environ.get("DIE"):
    import torch.distributed.checkpoint.filesystem as fs
    write = fs.FileSystemWriter.finish
    fs.FileSystemWriter.finish = lambda *a, **k: os.kill(os.getpid(), 9) if str(a[0].path).endswith("-10") else write(*a, **k)
sizes = []
for step in range(start, int(sys.argv[2])):
    torch.manual_seed(step)
    opt.zero_grad(); net(torch.randn(8, 512)).square().mean().backward(); opt.step()
    if saver.step % 5 == 0:
        sizes.append(saver.written)
saver.wait()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
print(json.dumps({"start": start, "digest": digest, "sizes": sizes}))
"""


def train(tmp_path: Path, target: str, steps: int, *, ranks: int = 1, code: int = 0, **env: str) -> dict[str, object]:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    base = {**os.environ, "AEGIS_JOB": "job-1", "AEGIS_CONTROL_SOCKET": "", "OMP_NUM_THREADS": "1", **env}
    base |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port((20000, 29999)))}
    command = [sys.executable, str(script), str(tmp_path / target), str(steps)]
    started = [
        subprocess.Popen(command, env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)
    ]
    ended = [process.communicate(timeout=60) for process in started]
    assert started[0].returncode == code, ended[0][1]
    return json.loads(ended[0][0].splitlines()[-1]) if code == 0 else {}


def test_a_training_killed_in_the_middle_of_a_save_resumes_from_the_last_complete_one_to_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    whole = train(tmp_path, "whole", 15)
    train(tmp_path, "cut", 15, code=-9, DIE="1")
    assert [one.step for one in complete(tmp_path / "cut")] == [5]
    assert any(path.name.endswith("-10") for path in (tmp_path / "cut" / "parts").iterdir()), "the part of the save that was cut"
    resumed = train(tmp_path, "cut", 15, ranks=1, AEGIS_INCARNATION="1")
    assert (resumed["start"], resumed["digest"]) == (5, whole["digest"])
    first, *later = whole["sizes"]  # type: ignore[misc]
    assert all(size < first / 10 for size in later), "the frozen layer is written once"
    newest = complete(tmp_path / "cut")[0]
    assert newest.step == 15 and newest.run == "fault-job-1-i1" and "fault-job-1-i0-5" in newest.parts


def test_ranks_save_together_and_resume_from_one_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    first = train(tmp_path, "two", 10, ranks=2)
    again = train(tmp_path, "two", 10, ranks=2, AEGIS_INCARNATION="1")
    assert again["start"] == 10 and again["digest"] == first["digest"]
