"""Progress is read in what trainings print, without a change of their code; a quiet run is known by how its processes look."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from aegis_agent import evidence, stacks, steplines
from aegis_agent.progress import Progress
from aegis_agent.signature import Signature
from harness.waiting import until

TABLE = tomllib.loads((Path(steplines.__file__).parent / "steplines.toml").read_text())


@pytest.mark.parametrize("row", TABLE["step"], ids=lambda row: row["source"][:20])
def test_each_row_of_steps_is_progress_when_its_number_changes(row: dict[str, Any]) -> None:
    progress = Progress()
    progress.printed(row["sample"].encode() + b"\n", 1.0)
    assert progress.at == 1.0
    progress.printed(row["sample"].encode() + b"\n", 2.0)
    assert progress.at == 1.0  # said again: no progress
    assert progress.line_at == 2.0


@pytest.mark.parametrize("row", TABLE["long"], ids=lambda row: row["sample"][:20])
def test_each_row_of_long_phases_asks_for_its_patience_until_the_next_step(row: dict[str, Any]) -> None:
    progress = Progress()
    progress.printed(b"step 1\n" + row["sample"].encode() + b"\n", 10.0)
    assert progress.long_until == 10.0 + row["patience"]
    progress.printed(b"step 2\n", 20.0)
    assert progress.long_until == 0.0
    progress.printed(row["sample"].encode() + b"\nstep 3\n", 30.0)
    assert progress.long_until == 0.0


NO_STEPS = ["save_steps: 500", "max_steps=1000", "every 10 steps", "elapsed time per iteration (ms): 1203.4", "[2026-11-29 10:00:00]"]


@pytest.mark.parametrize("line", NO_STEPS)
def test_settings_and_clocks_are_no_steps(line: str) -> None:
    assert not [found for found in steplines.find(line.encode()) if not found.patience]


HOSTILE = ["1", "step ", "iteration ", f"step{' ' * 99_999}", "iteration 1 / ", "1/1 [", "saving ", "'epoch': 1.", "iteration 1" + "\t" * 99_999]


@pytest.mark.parametrize("unit", HOSTILE, ids=lambda unit: unit[:12])
def test_a_hostile_chunk_costs_time_by_its_length(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steplines, "READ", 1 << 16)  # sixteen times what is read: what grows by the square takes half a minute
    chunk = (unit * (1 + (1 << 16) // len(unit))).encode()[: 1 << 16]
    begin = time.process_time()
    list(steplines.find(chunk + b"x"))
    assert time.process_time() - begin < 3.0


def test_a_new_epoch_that_counts_from_one_again_is_progress_and_the_step_does_not_fall() -> None:
    progress = Progress()
    for at, line in enumerate((b"step 99\n", b"step 100\n", b"step 1\n"), 1):
        progress.printed(line, float(at))
    assert (progress.step, progress.at) == (100, 3.0)


def test_the_usual_pause_is_known_after_twenty() -> None:
    progress = Progress()
    for step in range(21):
        assert progress.usual_gap == 0.0
        progress.advance(step, step * 2.0)
    assert progress.usual_gap == 2.0


def test_what_a_save_stops_is_the_longest_pause_around_it_without_the_usual_one() -> None:
    progress, now = Progress(), 0.0
    for step in range(60):
        now += 9.0 if step in (30, 40) else 2.0
        progress.advance(step, now)
        if step in (30, 39):  # the first is seen when steps go on already, the second before they do
            progress.saved(step)
        if step in (31, 40):
            assert progress.stall == 7.0
            progress.stall = -1.0
    assert (progress.checkpoint, progress.stall) == (39, -1.0)


async def test_a_stopped_process_below_a_rank_is_seen() -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)  # noqa: ASYNC220
    try:
        signature = Signature()
        inner = int((await until(lambda: Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split(), 10))[0])
        assert signature.look([child.pid], time.monotonic()).sign == ""
        assert signature.look([child.pid], time.monotonic() + 1.0).sign == "idle"
        os.kill(inner, signal.SIGSTOP)
        look = await until(lambda: (found := signature.look([child.pid], time.monotonic() + 2.0)).sign == "stopped" and found, 10)
        assert look.pid == inner
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def thread(*frames: tuple[str, str]) -> str:
    told = [{"name": name, "filename": file, "line": 7} for name, file in frames]
    return json.dumps([{"pid": 1, "thread_name": "Thread-2", "frames": []}, {"pid": 1, "thread_name": "MainThread", "frames": told}])


def test_stacks_say_who_waits_in_a_collective_and_where_the_users_code_stands() -> None:
    torch = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    waits = stacks.read(thread(("all_reduce", torch), ("train", "/w/train.py")))
    loads = stacks.read(thread(("read", "/v/lib/python3.11/gzip.py"), ("load", "/w/data.py"), ("train", "/w/train.py")))
    assert waits is not None and loads is not None
    assert (waits.waiting, waits.where, loads.waiting, loads.where) == (True, "train (train.py:7)", False, "load (data.py:7)")
    assert stacks.grouped([waits, loads, waits]) == "2x waits in train (train.py:7); 1x load (data.py:7)"
    with pytest.raises(ValueError):
        stacks.read("Error: permission denied")


def test_flight_records_are_asked_for_by_pipe_and_a_pipe_that_nobody_reads_is_left_alone(tmp_path: Path) -> None:
    for rank in (0, 1):
        os.mkfifo(tmp_path / f"fr{rank}.pipe")
    reader = os.open(tmp_path / "fr0.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert evidence.ask_for_flight_records(str(tmp_path / "fr")) == 1
        assert os.read(reader, 10) == b"1"
    finally:
        os.close(reader)


@pytest.mark.skipif(evidence.find_py_spy() is None, reason="py-spy is not installed")
def test_what_py_spy_says_of_a_real_process_is_read(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\ndef all_reduce():\n    print('in', flush=True)\n    time.sleep(60)\nall_reduce()\n")
    child = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"in\n"
        py_spy = evidence.find_py_spy()
        assert py_spy is not None
        told = subprocess.run([py_spy, "dump", "--json", "--pid", str(child.pid)], capture_output=True, text=True, timeout=30, check=False)
        if told.returncode:
            pytest.skip(f"py-spy may not trace here: {told.stderr[:200]}")
        stack = stacks.read(told.stdout)
        assert stack is not None and stack.waiting and stack.where == "all_reduce (train.py:4)"
    finally:
        child.kill()
        child.wait()
