"""What a slot needs next, as a table; and what its directory remembers."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest
from aegis_agent.daemon.cli import settings
from aegis_agent.daemon.keeper import agent_environment
from aegis_agent.daemon.processes import attempt_of
from aegis_agent.daemon.reconcile import Action, decide
from aegis_agent.daemon.slotdir import LOG_BYTES, Record, SlotDir, Stage, status_of
from aegis_agent.daemon.tail import Tail
from aegis_proto.messages import Slot

MINE = Slot("job-a", "u1", "default", "w0", 2)
OTHER = Slot("job-b", "u2", "default", "w0", 1)
OLDER = msgspec.structs.replace(MINE, attempt=1)
STOPPED = msgspec.structs.replace(MINE, stop=True)
EMPTY = Slot()
RUNS = Record("job-a", "u1", "w0", 2, Stage.RUNNING, pid=5, start=6)
STARTS = Record("job-a", "u1", "w0", 2, Stage.STARTING)
GONE = Record("job-a", "u1", "w0", 2, Stage.GONE)
STUCK = Record("job-a", "u1", "w0", 2, Stage.GONE, clean=False)

TABLE = [
    # wanted, record, lives, action
    (None, None, False, Action.HOLD),
    (None, RUNS, True, Action.HOLD),
    (None, RUNS, False, Action.SETTLE),
    (None, GONE, False, Action.HOLD),
    (EMPTY, None, False, Action.HOLD),
    (EMPTY, RUNS, True, Action.STOP),
    (EMPTY, RUNS, False, Action.SETTLE),
    (EMPTY, GONE, False, Action.HOLD),
    (MINE, None, False, Action.START),
    (MINE, RUNS, True, Action.HOLD),
    (MINE, RUNS, False, Action.SETTLE),
    (MINE, STARTS, False, Action.SETTLE),
    (MINE, GONE, False, Action.HOLD),
    (MINE, STUCK, False, Action.SETTLE),
    (STOPPED, None, False, Action.REFUSE),
    (STOPPED, RUNS, True, Action.STOP),
    (STOPPED, GONE, False, Action.HOLD),
    (OLDER, RUNS, True, Action.HOLD),
    (OLDER, RUNS, False, Action.SETTLE),
    (OLDER, GONE, False, Action.HOLD),
    (msgspec.structs.replace(OLDER, stop=True), RUNS, True, Action.HOLD),
    (OTHER, RUNS, True, Action.STOP),
    (OTHER, RUNS, False, Action.SETTLE),
    (OTHER, STUCK, False, Action.SETTLE),
    (OTHER, GONE, False, Action.START),
]


@pytest.mark.parametrize(("wanted", "record", "lives", "action"), TABLE)
def test_the_next_step_of_a_slot(wanted: Slot | None, record: Record | None, lives: bool, action: Action) -> None:
    assert decide(wanted, record, lives) is action


def test_a_slot_that_is_being_started_is_told_as_empty() -> None:
    assert status_of("0", STARTS).state == "empty"
    assert status_of("0", RUNS).state == "running" and status_of("0", RUNS).pid == 5


def test_the_task_and_the_record_are_for_nobody_else(tmp_path: Path) -> None:
    files = SlotDir(tmp_path, "0")
    files.prepare(b"{}", "job-a u1 w0")
    files.save(RUNS)
    assert files.load() == RUNS
    assert stat.S_IMODE(os.stat(files.slot_file).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(files.path).st_mode) == 0o700


def test_a_damaged_record_counts_as_none(tmp_path: Path) -> None:
    files = SlotDir(tmp_path, "0")
    files.write("record.json", b'{"job":')
    assert files.load() is None


def test_the_last_word_of_another_attempt_is_not_taken_for_this_one(tmp_path: Path) -> None:
    files = SlotDir(tmp_path, "0")
    files.write("exit.json", b'{"code": 3, "uid": "u1", "pod": "w0", "attempt": 1}')
    assert files.word(RUNS).code is None
    files.write("exit.json", b'{"code": 3, "uid": "u1", "pod": "w0", "attempt": 2}')
    assert files.word(RUNS).code == 3 and files.word(RUNS).last


def test_a_new_start_keeps_the_log_and_the_last_word_of_the_one_before(tmp_path: Path) -> None:
    files = SlotDir(tmp_path, "0")
    for number in range(5):
        files.write("agent.log", f"run {number}\n".encode())
        files.write("exit.json", f'{{"code": {number}}}'.encode())
        files.prepare(b"{}", "job-a u1 w0")
    assert not files.log.exists() and not (files.path / "exit.json").exists()
    assert (files.path / "agent.log.1").read_text() == "run 4\n"
    assert sorted(p.name for p in files.path.glob("agent.log*")) == ["agent.log.1", "agent.log.2", "agent.log.3"]
    assert (files.path / "previous-exit.json").read_bytes() == b'{"code": 4}'


def test_logs_of_the_ranks_of_different_workers_never_mix_and_those_of_one_worker_stay_together(tmp_path: Path) -> None:
    files = SlotDir(tmp_path, "0")
    for worker in ("job-a u1 w0", "job-a u1 w0", "job-b u2 w0", "job-c u3 w1", "job-d u4 w0", "job-e u5 w0"):
        files.prepare(b"{}", worker)
        run = files.path / "logs" / "0"
        run.mkdir(parents=True, exist_ok=True)
        with (run / "rank0.log").open("a") as log:
            log.write(f"{worker}\n")
    texts = {folder.name: (folder / "0" / "rank0.log").read_text() for folder in files.path.glob("logs*") if folder.is_dir()}
    assert texts == {"logs": "job-e u5 w0\n", "logs.1": "job-d u4 w0\n", "logs.2": "job-c u3 w1\n", "logs.3": "job-b u2 w0\n"}


def test_a_worker_finds_the_logs_of_its_attempt_before(tmp_path: Path) -> None:
    for _ in range(2):
        files = SlotDir(tmp_path, "0")
        files.prepare(b"{}", "job-a u1 w0")
        (files.path / "logs" / "3").mkdir(parents=True, exist_ok=True)
    assert [path.name for path in files.path.glob("logs*") if path.is_dir()] == ["logs"]


def test_a_log_is_rotated_under_the_hands_of_the_agent(tmp_path: Path) -> None:
    files = SlotDir(tmp_path, "0")
    handle = files.open_log()
    os.write(handle, b"a" * LOG_BYTES)
    tail = Tail(files.log)
    assert files.rotate_log() and not files.rotate_log()
    os.write(handle, b"after\n")
    os.close(handle)
    assert files.log.read_bytes() == b"after\n" and tail.read() == b"after\n"
    assert (files.path / "agent.log.1").stat().st_size == LOG_BYTES


def test_a_scope_names_its_attempt() -> None:
    assert attempt_of("u1.w0.12.3", "u1", "w0") == 12
    assert attempt_of("u1.w0.12.agent", "u1", "w0") == 12
    for scope in ("u1.w01.2.3", "u11.w0.2.3", "", "u1.w0", "u1.w0.x.1"):
        assert attempt_of(scope, "u1", "w0") is None


def test_agents_do_not_inherit_the_daemons_secrets() -> None:
    environ = {
        "PATH": "/bin",
        "AEGIS_BUS_CREDS": "/etc/node.creds",
        "AEGIS_NODE_SLOTS": "2",
        "AEGIS_SCOPE": "of-somebody",
        "AEGIS_AGENT_START_WAIT": "30",
        "AEGIS_CRASH_AT": "daemon.after-start,agent.before-run",
    }
    assert agent_environment(environ) == {"PATH": "/bin", "AEGIS_AGENT_START_WAIT": "30", "AEGIS_CRASH_AT": "agent.before-run"}


def test_settings_come_from_flags_before_environment_and_name_what_is_wrong(tmp_path: Path) -> None:
    environ = {"AEGIS_BUS_CREDS": "/c", "AEGIS_BUS_SERVERS": "nats://h:1, nats://h:2", "AEGIS_NODE_SLOTS": "4", "AEGIS_NODE_NODE": "n7"}
    made = settings(["--slots", "2", "--virtual", "--label", "rack=r1"], environ)
    assert (made.node, made.slots, made.addr, made.servers, made.labels) == ("n7", 2, "127.0.0.1", ("nats://h:1", "nats://h:2"), {"rack": "r1"})
    for flags, words in ((["--slots", "0"], "--slots"), (["--node", "Cn_1"], "Nearest: cn-1"), (["--label", "x"], "expected K=V")):
        with pytest.raises(ValueError, match=words):
            settings(flags, environ)
    with pytest.raises(ValueError, match="AEGIS_BUS_CREDS"):
        settings([], {})
