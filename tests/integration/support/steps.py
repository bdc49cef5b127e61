"""A training without torch: all ranks step together, each waits for the others in `all_reduce` and prints its step. For tests of hangs.

stuck-<pod>     that worker does something else while the file is there
slow            steps take a second
finish          every rank exits 0
save-<step>     a complete checkpoint of that step is written to ckpt/ as Megatron-LM would
"""

import os
import sys
import time
from pathlib import Path

pod, incarnation, world = os.environ["AEGIS_POD"], os.environ["AEGIS_INCARNATION"], int(os.environ["WORLD_SIZE"])
here = Path.cwd()
(here / f"run-{pod}-{incarnation}-{os.getpid()}").touch()


def all_reduce(step: int) -> None:
    (here / f"at-{incarnation}-{pod}-{step}").touch()
    while not all((here / f"at-{incarnation}-w{i}-{step}").exists() for i in range(world)):
        if (here / "finish").exists():
            sys.exit(0)
        time.sleep(0.02)


def load_data() -> None:
    while (here / f"stuck-{pod}").exists():
        time.sleep(0.02)


step = 0
while not (here / "finish").exists():
    step += 1
    load_data()
    all_reduce(step)
    print(f"step {step} loss 1.0", flush=True)
    time.sleep(0.2)
