"""Real torch under the agent: ranks find each other by what the agent gives them, directly and through torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from aegis_agent import ports

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
line = f"rank {dist.get_rank()} of {dist.get_world_size()} sum {total.item():g} run {os.environ['TORCHELASTIC_RUN_ID']}"
print(line, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("command", ["python {script}", "torchrun {script}", "python -m torch.distributed.run --max-restarts=0 {script}"])
def test_two_workers_form_one_world(command: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shared = {
        **os.environ,
        "PATH": path,
        "OMP_NUM_THREADS": "1",
        "AEGIS_JOB": "torch-000001",
        "AEGIS_UID": f"torch-{os.getpid()}",
        "AEGIS_WORKERS": "2",
        "AEGIS_PLAIN_ADDR": "127.0.0.1",
        "AEGIS_PLAIN_PORT": str(ports.free_port((20000, 29999))),
    }
    argv = [sys.executable, "-m", "aegis_agent", "-c", command.format(script=script)]
    workers = [
        subprocess.Popen(argv, env={**shared, "AEGIS_POD": f"w{index}"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for index in range(2)
    ]
    try:
        texts = [worker.communicate(timeout=200)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], texts
    for index, text in enumerate(texts):
        assert f"rank {index} of 2 sum 3 run torch-000001-i0" in text, text
