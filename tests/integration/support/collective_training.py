"""A training that needs its peers: gloo, one all_reduce a step, until the file `done` is there. Writes run-<pod>-<incarnation>."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
Path(f"run-{os.environ['AEGIS_POD']}-{os.environ['AEGIS_INCARNATION']}-{os.environ['AEGIS_NODE']}").touch()
ended = torch.zeros(1)
while ended.item() == 0:
    ended[0] = float(Path("done").exists())
    dist.all_reduce(ended)
    time.sleep(0.05)
dist.destroy_process_group()
