"""One run of the command: exit codes, the first failing rank, what is kept of its output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from aegis_agent.env import RunPlan
from aegis_agent.output import Sink
from aegis_agent.procs import scope_id
from aegis_agent.reaper import Reaper
from aegis_agent.runner import Run, RunResult
from aegis_agent.scope import end_scope
from aegis_proto.phases import LostReason
from agent_scripted_master import until
from harness.waiting import until_sync

UID = f"run-{os.getpid()}"


@pytest_asyncio.fixture
async def reaper() -> AsyncIterator[Reaper]:
    opened = Reaper()
    opened.open()
    yield opened
    await end_scope(f"{UID}.", limit=5.0)
    opened.close()


class Out(Sink):
    """Keeps what would be shown."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


class Made:
    def __init__(self, reaper: Reaper, folder: Path, argv: list[str], *, nproc: int = 1, env: dict[str, str] | None = None, **options) -> None:
        scope = scope_id(UID, "w1", 1, 0)
        plan = RunPlan("job-1", "w1", 1, 0, 1, 2, nproc, "127.0.0.1", 29500, 3, scope, error_dir=str(folder / "logs" / "0"), node="n1")
        self.out, self.err = Out(), Out()
        self.log_dir = folder / "logs"
        environ = {**os.environ, **(env or {})}
        self.run = Run(reaper, plan, argv, environ=environ, grace=2.0, out=self.out, err=self.err, log_dir=self.log_dir, **options)

    async def result(self) -> RunResult:
        self.run.start()
        async with asyncio.timeout(20):
            result = await self.run.result
            await self.run.stop()
        return result


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, 0), ("exit 3", 3, 0), ("kill -9 $$", 137, 9), ("kill -15 $$", 143, 15), ("kill -SEGV $$", 139, 11), ("exit 126", 126, 0)],
)
async def test_exit_codes_are_128_plus_n(reaper: Reaper, tmp_path: Path, script: str, code: int, number: int) -> None:
    result = await Made(reaper, tmp_path, ["sh", "-c", script]).result()
    assert result.code == code and (result.ending.signal if result.ending else 0) == number


async def test_the_first_failing_rank_decides_and_the_others_are_ended_at_once(reaper: Reaper, tmp_path: Path) -> None:
    made = Made(reaper, tmp_path, ["sh", "-c", "test $LOCAL_RANK = 2 && { echo 'ValueError: bad' >&2; exit 7; }; exec sleep 600"], nproc=4)
    made.run.start()
    result = await made.run.result
    assert result.ending is not None and (result.code, result.rank, result.ending.message) == (7, 6, "rank 6: ValueError: bad")
    await until(lambda: made.run.gone is not None, "the others ended, without anybody asking")
    assert made.run.gone.clean and not made.run.alive


async def test_a_signal_is_stronger_evidence_than_the_words_of_a_victim(reaper: Reaper, tmp_path: Path) -> None:
    made = Made(reaper, tmp_path, ["sh", "-c", "test $LOCAL_RANK = 0 && { echo 'Connection closed by peer' >&2; exit 1; }; kill -9 $$"], nproc=2)
    made.run.start()
    ended = [psutil.Process(rank.child.pid) for rank in made.run._ranks]
    until_sync(lambda: all(process.status() == psutil.STATUS_ZOMBIE for process in ended), 30.0, "both ended before the loop sees either")
    result = await made.run.result
    await made.run.stop()
    assert result.ending is not None and (result.ending.reason, result.rank) == (LostReason.SIGNAL, 3)


async def test_ranks_that_end_well_one_after_the_other_are_no_failure(reaper: Reaper, tmp_path: Path) -> None:
    result = await Made(reaper, tmp_path, ["sh", "-c", "sleep 0.$LOCAL_RANK"], nproc=3).result()
    assert result.ending is None and result.rank == -1


async def test_output_is_shown_by_line_with_its_rank_and_kept_as_it_is(reaper: Reaper, tmp_path: Path) -> None:
    script = r"import sys; sys.stdout.buffer.write(b'one\ntwo \xff\x00\nrest'); sys.stderr.write('bad\n')"
    made = Made(reaper, tmp_path, [sys.executable, "-c", script])
    await made.result()
    assert made.out.data == b"[w1/r1 i0] one\n[w1/r1 i0] two \xff\x00\n[w1/r1 i0] rest\n"
    assert made.err.data == b"[w1/r1 i0] bad\n"
    kept = (made.log_dir / "0" / "rank1.log").read_bytes()
    assert sorted(kept.replace(b"rest", b"rest\n").split(b"\n")) == sorted(b"one\ntwo \xff\x00\nrest\nbad\n".split(b"\n"))


async def test_raw_output_is_not_touched(reaper: Reaper, tmp_path: Path) -> None:
    made = Made(reaper, tmp_path, ["printf", "a\\nb\\rc"], raw=True)
    await made.result()
    assert made.out.data == b"a\nb\rc"


async def test_the_exception_and_its_place_are_the_message(reaper: Reaper, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\n\ndef step():\n    raise ValueError('loss is NaN')\n\nstep()\n")
    result = await Made(reaper, tmp_path, [sys.executable, str(script)]).result()
    assert result.ending is not None and result.ending.message == "ValueError: loss is NaN (train.py:4)"


async def test_torchs_error_file_is_read(reaper: Reaper, tmp_path: Path) -> None:
    script = (
        "import json, os, sys; json.dump({'message': {'message': 'RuntimeError: from the file', 'extraInfo': {}}},"
        " open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w')); sys.exit(1)"
    )
    result = await Made(reaper, tmp_path, [sys.executable, "-c", script]).result()
    assert result.ending is not None and result.ending.message == "RuntimeError: from the file"


async def test_an_error_file_of_an_earlier_run_is_not(reaper: Reaper, tmp_path: Path) -> None:
    stale = tmp_path / "logs" / "0" / "error1.json"
    stale.parent.mkdir(parents=True)
    stale.write_text('{"message": "old"}')
    result = await Made(reaper, tmp_path, ["sh", "-c", "exit 1"]).result()
    assert result.ending is not None and result.ending.message == "exit 1"


@pytest.mark.parametrize("argv", [["pyhton", "train.py"], ["sh", "-c", "pyhton train.py"]])
async def test_a_misspelt_command_is_127_and_says_what_was_meant(reaper: Reaper, tmp_path: Path, argv: list[str]) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    result = await Made(reaper, tmp_path, argv, env={"PATH": f"{folder}:/usr/bin:/bin"}).result()
    assert result.ending is not None and result.code == 127
    assert result.ending.message == 'E111 w1 on n1: "pyhton" not found in PATH (exit 127). Not counted, not retried. Did you mean python?'


async def test_what_may_not_be_run_is_126(reaper: Reaper, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("true")
    result = await Made(reaper, tmp_path, [str(script)]).result()
    assert result.code == 126 and result.ending is not None and result.ending.message.startswith("E111 w1 on n1:")


async def test_a_working_directory_that_is_not_there_is_named(reaper: Reaper, tmp_path: Path) -> None:
    result = await Made(reaper, tmp_path, ["true"], cwd="/no/such/folder").result()
    assert result.code == 126 and result.ending is not None and "working directory '/no/such/folder'" in result.ending.message


async def test_a_nested_launcher_is_run_once(reaper: Reaper, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "torchrun").write_text('#!/bin/sh\necho $PET_NNODES $PET_NODE_RANK $PET_NPROC_PER_NODE ${RANK-none} "$@"\n')
    (folder / "torchrun").chmod(0o755)
    made = Made(reaper, tmp_path, ["sh", "-c", "torchrun train.py"], nproc=8, env={"PATH": f"{folder}:/usr/bin:/bin"})
    assert (await made.result()).code == 0
    assert made.out.data == b"[w1 i0] 2 1 8 none train.py\n"


async def test_a_preempted_run_gets_the_signal_and_its_grace(reaper: Reaper, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    made = Made(reaper, tmp_path, ["sh", "-c", f"trap 'echo saved > {saved}; exit 0' TERM; echo ready; while :; do sleep 0.05; done"])
    made.run.start()
    await until(lambda: b"ready" in made.out.data, "handler")
    made.run.preempted = True
    ended = await made.run.stop(10.0)
    assert ended.clean and ended.killed == 0 and saved.read_text() == "saved\n"


async def test_a_training_that_saves_when_told_to_stop_is_told_once(reaper: Reaper, tmp_path: Path) -> None:
    script = f"""
import signal, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("ready", flush=True)
while not heard:
    time.sleep(0.02)
end = time.monotonic() + 0.6  # it saves
while time.monotonic() < end:
    time.sleep(0.02)
open({str(tmp_path / "heard")!r}, "w").write(str(len(heard)))
"""
    made = Made(reaper, tmp_path, [sys.executable, "-c", script])
    made.run.start()
    await until(lambda: b"ready" in made.out.data, "script")
    ended = await made.run.stop(10.0)
    assert ended.clean
    assert (tmp_path / "heard").read_text() == "1"


async def test_a_kill_that_came_before_the_order_to_stop_is_not_ours(reaper: Reaper, tmp_path: Path) -> None:
    made = Made(reaper, tmp_path, ["sleep", "600"])
    made.run.start()
    os.kill(made.run.pids[0], signal.SIGKILL)
    await made.run.stop()
    assert made.run.result.result().code == 137 and not made.run.ended_by_us
    obedient = Made(reaper, tmp_path, ["sleep", "600"])
    obedient.run.start()
    await obedient.run.stop()
    assert obedient.run.ended_by_us
