"""`aegis-agent` as people and containers start it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from aegis_agent.checks.registry import gpu_count
from aegis_agent.handover import BadTask, Exit, WorkerTask, read_exit, read_task, read_token, task_from_environment, write_exit
from aegis_agent.main import shell_command
from aegis_agent.procs import processes, start_ticks
from aegis_proto.messages import encode
from aegis_proto.state import JobSpec
from agent_scripted_master import until

AGENT = [sys.executable, "-m", "aegis_agent"]


def agent(*argv: str, env: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*AGENT, *argv], capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})}, check=False, **options)


@pytest.mark.parametrize(
    ("text", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("no-such-command-here", 127), ("/etc/passwd", 126)]
)
def test_the_exit_code_is_the_commands(text: str, code: int) -> None:
    assert agent("-c", text).returncode == code


def test_a_plain_command_runs_as_if_we_were_not_there() -> None:
    """Its input, output, environment and arguments are its own."""
    done = agent("-c", 'read x; echo "$x $1 $RANK"; echo err >&2', "arg0", "one", env={"RANK": "3"}, input="hello\n")
    assert (done.stdout, done.stderr) == ("hello one 3\n", "err\n")


@pytest.mark.parametrize("words", [("-c", "cd / && pyhton train.py"), ("run", "--", "pyhton", "train.py")])
def test_a_misspelt_command_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to("/bin/true")
    done = agent(*words, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 127
    assert 'E111 w0: "pyhton" not found in PATH (exit 127). Not counted, not retried. Did you mean python?' in done.stderr


def test_an_exit_of_127_for_another_reason_is_not_explained_away() -> None:
    assert "E111" not in agent("-c", "cd / && true && exit 127").stderr


def test_secrets_of_the_agent_do_not_reach_it() -> None:
    done = agent("-c", "env", env={"AEGIS_JOIN_TOKEN": "secret-1", "AEGIS_TLS_CA": "secret-2", "MINE": "3"})
    assert "secret-" not in done.stdout and "MINE=3" in done.stdout


def test_run_takes_a_command_with_and_without_dashes() -> None:
    for words in (["--", "echo", "a", "--b"], ["echo", "a", "--b"]):
        assert agent("run", *words).stdout == "a --b\n"
    assert agent("run").returncode == 2 and "a command is needed" in agent("run").stderr


def test_run_starts_every_local_rank_with_its_variables(tmp_path: Path) -> None:
    done = agent("run", "--nproc-per-node", "3", "--state", str(tmp_path / "s"), "--", "sh", "-c", "echo $RANK/$WORLD_SIZE $MASTER_ADDR")
    assert sorted(done.stdout.splitlines()) == [f"[w0/r{rank} i0] {rank}/3 127.0.0.1" for rank in range(3)]
    last = read_exit(tmp_path / "s")
    assert last is not None and (last.code, last.plain, last.clean) == (0, True, True)
    assert sorted(path.name for path in (tmp_path / "s" / "logs" / "0").glob("*.log")) == ["rank0.log", "rank1.log", "rank2.log"]


def test_bad_usage_is_refused_and_says_what_was_expected() -> None:
    assert agent("walk").returncode == 2 and "unknown command 'walk'" in agent("walk").stderr
    assert agent("-c").returncode == 2
    assert "a number from 1 to 1024, or auto" in agent("run", "--nproc-per-node", "0", "--", "true").stderr
    assert agent("-c", "true", env={"AEGIS_ATTEMPT": "two"}).stderr == "aegis-agent: E130 AEGIS_ATTEMPT='two': a whole number is needed\n"
    assert "E130 AEGIS_AGENT_START_WAIT='x'" in agent("-c", "true", env={"AEGIS_JOB": "j-1", "AEGIS_AGENT_START_WAIT": "x"}).stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)])
async def test_signals_are_forwarded(number: int, code: int) -> None:
    process = subprocess.Popen([*AGENT, "-c", "exec sleep 600"])  # noqa: ASYNC220
    try:
        await until(lambda: [p for p in processes().values() if p.parent == process.pid], "child")
        process.send_signal(number)
        await until(lambda: process.poll() is not None, "end")
        assert process.returncode == code
    finally:
        process.kill()
        process.wait()


async def test_as_pid_1_it_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    begun = time.monotonic()
    process = subprocess.Popen([*AGENT, "-c", f"setsid sleep 600 & echo $! > {file}; exit 5"])  # noqa: ASYNC220
    try:
        await until(lambda: process.poll() is not None, "end")
        assert process.returncode == 5 and start_ticks(int(file.read_text())) is None
        assert time.monotonic() - begun < 10
    finally:
        process.kill()
        process.wait()


async def test_the_second_signal_kills(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = subprocess.Popen([*AGENT, "-c", f"trap '' TERM INT; touch {ready}; while :; do sleep 0.1; done"])  # noqa: ASYNC220
    try:
        await until(ready.exists, "trap")
        process.terminate()
        process.terminate()
        await until(lambda: process.poll() is None, "still there", 1.0)
        process.send_signal(signal.SIGINT)
        await until(lambda: process.poll() is not None, "end", 10.0)
        assert process.returncode == 137
    finally:
        process.kill()
        process.wait()


def test_the_termination_file_says_how_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    assert agent("-c", "kill -9 $$", env={"AEGIS_TERMINATION_FILE": str(file)}).returncode == 137
    last = json.loads(file.read_text())
    assert (last["code"], last["signal"], last["plain"], last["reason"]) == (137, 9, True, "exited") and last["at"] > 0


def test_a_termination_file_that_cannot_be_written_changes_no_exit_code() -> None:
    done = agent("-c", "exit 4", env={"AEGIS_TERMINATION_FILE": "/no/such/dir/file"})
    assert done.returncode == 4 and "cannot write /no/such/dir/file" in done.stderr


def test_a_state_directory_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = agent("run", "--nproc-per-node", "2", "--state", str(tmp_path / "file" / "s"), "--", "sh", "-c", "echo ran; exit 3")
    assert done.returncode == 3 and done.stdout.count("ran") >= 1 and "going on without a state directory" in done.stderr


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="a new PID namespace needs root")
def test_as_pid_1_of_a_container_it_reaps_forwards_and_ends() -> None:
    text = "(setsid sh -c 'sleep 0.1; exit 0' &); sleep 0.5; ps -eo stat= | grep -c Z; kill -TERM 1; sleep 60"
    done = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", *AGENT, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("0\n", 143)


def test_checks_can_be_listed_and_run() -> None:
    assert agent("check", "list").stdout.startswith("process ")
    done = agent("check", "run", "process", "--json")
    result = json.loads(done.stdout)
    assert done.returncode == 0 and (result["CheckType"], result["Pass"]) == ("process", True)
    unknown = agent("check", "run", "gpux")
    assert (
        unknown.returncode == 2
        and "no check 'gpux'; did you mean gpu?" in unknown.stderr
        and "known: process, io, gpu, runtime, rdma, hang, memory, power, contention, environment, allreduce, performance" in unknown.stderr
    )
    assert agent("check", "run", "gpu", "gpux").returncode == 2
    failed = agent("check", "run", "gpu", "process", env={"AEGIS_CHECKS_EXPECTED_GPUS": "1000"})
    assert failed.returncode == 1 and failed.stdout.startswith("fail  gpu: ") and "\nok    process: " in failed.stdout


def test_ctl_without_an_agent_says_so() -> None:
    assert "AEGIS_CONTROL_SOCKET is not set" in agent("ctl", "status", env={"AEGIS_CONTROL_SOCKET": ""}).stderr
    assert agent("ctl", "status", "--socket", "/no/such/socket").returncode == 5


def test_ctl_from_inside_a_run() -> None:
    done = agent("run", "--nproc-per-node", "2", "--", "sh", "-c", f"test $RANK = 1 || {sys.executable} -m aegis_agent ctl status")
    assert done.returncode == 0 and '"running": true' in done.stdout


def test_the_plain_agent_loads_neither_the_bus_nor_grpc() -> None:
    heavy = ("nats", "grpc", "nkeys", "prometheus_client", "structlog")
    code = f"import sys, aegis_agent.main, aegis_agent.plain; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    code = "import sys, aegis_agent.worker, aegis_bus.connection; print('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# --- what passes between the platform and the worker -------------------------------------------------------------------------


def test_the_task_of_a_container_comes_from_its_environment(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")
    environ = {
        "AEGIS_JOB": "ddp-1",
        "AEGIS_UID": "u",
        "AEGIS_POD": "w3",
        "AEGIS_ATTEMPT": "2",
        "AEGIS_WORKERS": "4",
        "AEGIS_JOIN_TOKEN_FILE": str(token),
        "AEGIS_PLAIN_ADDR": "w0",
        "AEGIS_PLAIN_PORT": "23456",
    }
    task = task_from_environment(JobSpec(name="x"), environ)
    assert (task.job, task.pod, task.attempt, task.workers, task.token, task.plainPort) == ("ddp-1", "w3", 2, 4, "abc", 23456)


def test_a_container_without_a_token_looks_for_it_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    task = task_from_environment(JobSpec(name="x"), {"AEGIS_JOB": "ddp-1", "AEGIS_JOIN_TOKEN_FILE": str(path), "AEGIS_NODE": "gpu-1.example.org"})
    assert (task.token, read_token(task.tokenFile), task.node) == ("", "", "gpu-1-example-org")
    path.write_text("late\n")
    assert read_token(task.tokenFile) == "late"


def test_what_the_platform_wrote_of_the_job_goes_with_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(msgspec.json.encode(JobSpec(name="x", command=("other",), env={"OF_THE_JOB": "1"})))
    assert agent("-c", "echo $OF_THE_JOB", env={"AEGIS_JOB_SPEC_FILE": str(path)}).stdout == "1\n"
    path.write_text("not json")
    done = agent("-c", "echo it runs all the same", env={"AEGIS_JOB_SPEC_FILE": str(path)})
    assert done.stdout == "it runs all the same\n" and "AEGIS_JOB_SPEC_FILE" in done.stderr


def test_a_task_file_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "task.json"
    task = WorkerTask(spec=JobSpec(name="x", command=("true",)), job="j-1", token="t")
    file.write_bytes(encode(task))
    assert read_task(str(file)) == task and not file.exists()


def test_a_bad_task_names_the_field(tmp_path: Path) -> None:
    file = tmp_path / "task.json"
    file.write_text('{"spec": {"name": "x"}, "attempt": "two"}')
    with pytest.raises(BadTask, match=r"attempt"):
        read_task(str(file))


def test_a_mounted_termination_file_is_written_in_place(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.touch()
    inode = file.stat().st_ino
    tmp_path.chmod(0o500)
    try:
        write_exit(None, str(file), Exit(3))
    finally:
        tmp_path.chmod(0o700)
    assert json.loads(file.read_text()) == {"code": 3} and (os.getuid() == 0 or file.stat().st_ino == inode)


def test_auto_means_the_gpus_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for visible, count in (("0,1,3", 3), ("GPU-a", 1), ("", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpu_count() == count


def test_a_command_line_gets_a_shell_even_where_there_is_no_bash(tmp_path: Path) -> None:
    assert shell_command("x", path=str(tmp_path)) == ("/bin/sh", "-c", "x")
