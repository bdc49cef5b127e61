"""The service beside the training (`ckpt.sh`): says when a checkpoint is complete, and removes what no complete one needs.

Reads the folder; removes old parts and manifests; tells the agent's socket `checkpoint`. May die at any instruction: it is started again, and
looks anew.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from aegis_saver.folder import complete, prune
from aegis_saver.saver import tell

EVERY = 2.0


def look(folder: Path, known: int | None) -> int:
    """The newest complete step (-1: none), said when it is another than `known`. The first look (None) only learns what earlier runs left."""
    newest = complete(folder)[:1]
    if not newest or newest[0].step == known:
        return -1 if known is None else known
    one = newest[0]
    mib = sum(one.files.values()) / 2**20
    print(f"{one.run}: complete at step {one.step}: {len(one.keys)} keys in {len(one.parts)} parts, {mib:.1f} MiB", flush=True)
    if known is not None:
        tell("checkpoint", step=one.step)
    for name in prune(folder):
        print(f"removed {name}", flush=True)
    return one.step


def main() -> int:
    folder, parent = Path(sys.argv[1]), os.getppid()
    known: int | None = None
    while os.getppid() == parent:
        try:
            first, known = known is None, look(folder, known)
            if first:
                print(f"watching {folder}", flush=True)
        except OSError as error:
            print(f"{folder}: {error}", file=sys.stderr, flush=True)
        time.sleep(EVERY)
    return 0
