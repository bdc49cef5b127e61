"""The training as the demo sees it: how it is started, what its ranks logged, which weights came out. Reads its folder, starts the reference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from aegis_bus.natsserver import free_port

from aegis_cli.stack.guard import dies_with_parent

WORKERS, STEPS = 3, 240
SCRIPT = Path(__file__).with_name("train.py")


def rank_log(out: Path, incarnation: int, rank: int) -> list[dict[str, Any]]:
    """What the script of one rank logged in one incarnation; [] when nothing yet."""
    try:
        text = (out / f"log-{incarnation}-{rank}.jsonl").read_text()
    except OSError:
        return []
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break  # the last line is still being written
    return lines


def first_steps(out: Path, incarnation: int) -> tuple[float, float, int] | None:
    """(last process start, first step of the last rank, number of that step) of an incarnation, once all ranks made a step."""
    starts, firsts, numbers = [], [], []
    for rank in range(WORKERS):
        log = rank_log(out, incarnation, rank)
        steps = [line for line in log if line["event"] == "step"]
        if not steps:
            return None
        starts.append(log[0]["t"])
        firsts.append(steps[0]["t"])
        numbers.append(steps[0]["step"])
    return max(starts), max(firsts), min(numbers)


def last_step(out: Path, incarnation: int) -> int:
    """The highest step every rank has made in an incarnation; -1 when one has made none."""
    found = []
    for rank in range(WORKERS):
        steps = [line["step"] for line in rank_log(out, incarnation, rank) if line["event"] == "step"]
        found.append(steps[-1] if steps else -1)
    return min(found)


def training_environment() -> dict[str, str]:
    """One thread per process: two cores, and the same sums in the same order."""
    return {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def command(out: Path) -> list[str]:
    return [sys.executable, str(SCRIPT), "--out", str(out), "--steps", str(STEPS)]


def reference(out: Path) -> list[subprocess.Popen[bytes]]:
    """The same training without Aegis and without faults, beside the demo and a little behind it (nice 5)."""
    out.mkdir()
    port = free_port()
    running = []
    for rank in range(WORKERS):
        ranks = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": WORKERS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **training_environment(), **{key: str(value) for key, value in ranks.items()}}
        with open(out / f"output-{rank}.log", "wb") as log:
            running.append(
                subprocess.Popen(
                    ["nice", "-n", "5", *command(out)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=dies_with_parent(),  # noqa: PLW1509 - one thread here
                )
            )
    return running


def weights(out: Path) -> dict[str, Any]:
    """What the script said about the final weights; {} when it did not come so far."""
    try:
        found = json.loads((out / "final.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
