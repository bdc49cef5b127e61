"""A training that needs its peers: gloo, one all_reduce a step, until the file `done` is there. Writes run-<pod>-<incarnation>-<node>.

Rank 0 tells its steps, and a checkpoint when the file `save` is there.
"""

import json
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
Path(f"run-{os.environ['AEGIS_POD']}-{os.environ['AEGIS_INCARNATION']}-{os.environ['AEGIS_NODE']}").touch()
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["AEGIS_CONTROL_SOCKET"])


def tell(verb: str, step: int) -> None:
    agent.sendall(json.dumps({"verb": verb, "step": step}).encode() + b"\n")
    agent.recv(4096)


ended, step = torch.zeros(1), 0
while ended.item() == 0:
    ended[0] = float(Path("done").exists())
    dist.all_reduce(ended)
    step += 1
    if dist.get_rank() == 0 and step % 10 == 0:
        tell("progress", step)
        if Path("save").exists():
            tell("checkpoint", step)
    time.sleep(0.05)
dist.destroy_process_group()
